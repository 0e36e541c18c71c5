"""The sequences of all requests in flight, and whose answers they are.

Owns: making sequences, and the pairing of each with its choice and its sampling side. Must not know: steps, results.

Invariants:
1. Choices and samplings name the same sequences: those that run, wait or are suspended.
"""

from octavo.engine.branching import PastRequest, past_request
from octavo.engine.request import Choice, Request
from octavo.models.tokenizer import Tokenizer
from octavo.runner.sampling_request import SamplingRequest
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence, SequenceStatus


class InFlight:
    """Sequences by id.

    Attributes:
        choices, samplings: by sequence id.
    """

    def __init__(self, scheduler: Scheduler, tokenizer: Tokenizer):
        self.scheduler = scheduler
        self.choices: dict[int, Choice] = {}
        self.samplings: dict[int, SamplingRequest] = {}
        self.tokenizer = tokenizer
        self._num_sequences = 0
        self._sampled: tuple[list[Sequence], list[Choice]] = [], []  # see `choices_of`

    def make_sequence(self, request: Request, max_tokens: int, *, num_choices: int = 1) -> Sequence:
        """Returns a sequence of a request's prompt that the scheduler does not know yet."""
        self._num_sequences += 1
        return Sequence(
            sequence_id=self._num_sequences,
            token_ids=list(request.prompt.token_ids),
            max_tokens=max_tokens,
            priority=request.priority,
            namespace=request.namespace,
            num_choices=num_choices,
            retentions=request.retentions,
            reads_cached_prefix=request.params.prompt_logprobs is None,
        )

    def track(self, request: Request, sequence: Sequence, sampling: SamplingRequest) -> Choice:
        """Returns a new choice of a request."""
        choice = Choice(request, sequence, sampling, self.tokenizer)
        request.choices.append(choice)
        self.choices[sequence.sequence_id] = choice
        self.samplings[sequence.sequence_id] = sampling
        return choice

    def fork(self, lead: Choice) -> list[Choice]:
        """Starts the other choices of a request whose prompt was just computed."""
        children = []
        for index in range(1, lead.sequence.num_choices):
            child = self.make_sequence(lead.request, lead.sequence.max_tokens)
            self.scheduler.fork(lead.sequence, child)
            children.append(self.track(lead.request, child, lead.sampling.for_choice(index)))
        return children

    def choices_of(self, sequences: list[Sequence]) -> list[Choice]:
        """Returns each sequence's choice; the list is kept, as from step to step the same are asked for."""
        if sequences != self._sampled[0]:
            self._sampled = sequences, [self.choices[sequence.sequence_id] for sequence in sequences]
        return self._sampled[1]

    def snapshot(self, request: Request) -> PastRequest:
        """Returns what can be branched off from a request in flight, and shares all that is computed of it."""
        for choice in request.choices:
            sequence = choice.sequence
            if sequence.cache is not None:
                self.scheduler.kv.share_tail(sequence.cache, sequence.token_ids)
        return past_request(request)

    def drop(self, choice: Choice) -> None:
        """Takes a choice's sequence out, wherever it is."""
        self.scheduler.finish(choice.sequence)
        del self.choices[choice.sequence.sequence_id]
        del self.samplings[choice.sequence.sequence_id]

    def check_invariants(self) -> None:
        """Raises AssertionError if the scheduler holds other sequences."""
        assert set(self.choices) == set(self.samplings), "choices and samplings name different sequences"
        held = {sequence.sequence_id for sequence in (*self.scheduler.running, *self.scheduler.waiting)}
        suspended = {key for key, choice in self.choices.items() if choice.sequence.status is SequenceStatus.SUSPENDED}
        assert not held & suspended, "a suspended sequence runs or waits"
        assert held | suspended == set(self.choices), "scheduler and engine hold different sequences"
