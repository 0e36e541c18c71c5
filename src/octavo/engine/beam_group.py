"""The sequences of one beam search.

Owns: the way from scored beams to forked, continued and ended sequences. Must not know: how beams are chosen, arrays.

All beams are computed in the same step where there is room. One that is scored wants no token until the others are; then each beam
that lives on gets its token, further continuations of it are forked from its blocks, and the others end.

Invariants:
1. What is chosen depends on the beams' scores alone: not on the order in which they were computed, nor on preemptions.
2. A request's choices are its live beams, best first, until the search is over; then its answers.
"""

from octavo.engine.beam_search import BeamSearch, Continuation, Hypothesis
from octavo.engine.in_flight import InFlight
from octavo.engine.request import Choice, Request
from octavo.outputs import CompletionOutput
from octavo.runner.sampler import TokenLogprobs
from octavo.sampling_params import BeamSearchParams
from octavo.scheduler.sequence import Sequence


class BeamGroup:
    """One request's beams.

    Args:
        request: it has one choice, whose sequence is not queued yet.
        search: a search that has not begun.
    """

    def __init__(self, request: Request, search: BeamSearch, params: BeamSearchParams, in_flight: InFlight):
        self._request = request
        self._search = search
        self._num_answers = params.num_answers
        self._in_flight = in_flight
        self._free_arrivals = in_flight.scheduler.reserve_arrivals(params.num_beams - 1)
        self._scored: dict[int, TokenLogprobs] = {}  # by sequence id

    def take_scores(self, sequence: Sequence, logprobs: TokenLogprobs) -> bool:
        """Takes a beam's most likely next tokens; once all beams have theirs, moves on. Returns whether the search is over."""
        self._scored[sequence.sequence_id] = logprobs
        choices = self._request.choices
        if any(choice.sequence.sequence_id not in self._scored for choice in choices):
            return False
        self._request.num_past_generated_tokens += len(choices)
        scores = [self._scored[choice.sequence.sequence_id] for choice in choices]
        candidates = [zip(entry.token_ids[1:], entry.logprobs[1:], strict=True) for entry in scores]
        live = self._search.advance(self._answers(), candidates)
        self._scored.clear()
        if not live:
            self.end(self._search.finished)
            return True
        self._continue(live)
        return False

    def abort(self) -> None:
        """Ends the search where it is, with the best answers so far."""
        self.end(self._search.best_answers(self._answers()), is_aborted=True)

    def end(self, hypotheses: list[Hypothesis], *, is_aborted: bool = False) -> None:
        """Ends all beams and makes the best hypotheses the request's answers."""
        request, beams = self._request, list(self._request.choices)
        for choice in beams:
            self._in_flight.drop(choice)
        for choice in beams[1:]:  # the answers count as the first beam's
            request.forget(choice.sequence)
        request.choices = [
            beams[0].with_output(self._output(index, hypothesis, is_aborted))
            for index, hypothesis in enumerate(hypotheses[: self._num_answers])
        ]

    def _answers(self) -> list[list[int]]:
        num_prompt_tokens = len(self._request.prompt.token_ids)
        return [choice.sequence.token_ids[num_prompt_tokens:] for choice in self._request.choices]

    def _continue(self, live: list[Continuation]) -> None:
        """Ends the beams that nothing continues, then forks and continues the others."""
        parents = list(self._request.choices)
        continued = {continuation.beam for continuation in live}
        for beam, choice in enumerate(parents):
            if beam not in continued:
                self._in_flight.drop(choice)
                self._request.forget(choice.sequence)
                self._free_arrivals.append(choice.sequence.arrival)
        self._request.choices = []
        firsts: list[tuple[Choice, int]] = []
        for continuation in live:
            parent = parents[continuation.beam]
            if continuation.beam in continued:
                continued.remove(continuation.beam)
                self._request.choices.append(parent)
                firsts.append((parent, continuation.token_id))
            else:
                self._fork(parent, continuation.token_id)
        for parent, token_id in firsts:  # only now: a fork takes the parent's computed tokens as they are
            parent.sequence.token_ids.append(token_id)
            self._in_flight.scheduler.resume(parent.sequence)

    def _fork(self, parent: Choice, token_id: int) -> None:
        child = self._in_flight.make_sequence(self._request, parent.sequence.max_tokens)
        child.token_ids[:] = [*parent.sequence.token_ids, token_id]
        child.arrival = self._free_arrivals.pop()
        self._in_flight.track(self._request, child, parent.sampling)
        self._in_flight.scheduler.branch(parent.sequence, child)

    def _output(self, index: int, hypothesis: Hypothesis, is_aborted: bool) -> CompletionOutput:
        params = self._request.params
        shown = hypothesis.token_ids[:-1] if hypothesis.is_ended else hypothesis.token_ids
        reason = "stop" if hypothesis.is_ended else "abort" if is_aborted and hypothesis not in self._search.finished else "length"
        return CompletionOutput(
            index=index,
            text=self._in_flight.tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens),
            token_ids=hypothesis.token_ids,
            finish_reason=reason,
            cumulative_logprob=hypothesis.logprob,
            beam_score=hypothesis.score,
        )
