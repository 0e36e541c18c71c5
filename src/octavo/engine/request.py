"""A request while the engine works on it.

Owns: the pairing of a request's choices with their sequences, texts and reasons to end. Must not know: scheduling, memory, arrays.

Invariants:
1. A choice's answer grows only in `Choice.append_plain` and `Choice.append`, and not at all after its finish reason is set.
2. The end is decided by one order: the model's end token, stop token, stop string, length.
"""

import math
import time
from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.detokenizer import Detokenizer
from octavo.engine.stop_strings import StopStringMatcher
from octavo.memory.claims import Retention
from octavo.memory.match_end import TENANT
from octavo.models.tokenizer import Tokenizer
from octavo.outputs import CompletionOutput, Logprob, OutputDelta, RequestMetrics, RequestOutput
from octavo.runner.sampler import NO_TOKEN, TokenLogprobs
from octavo.runner.sampling_request import SamplingRequest
from octavo.sampling_params import SamplingParams
from octavo.scheduler.sequence import Sequence

NO_TOKEN_REASON = "no token is allowed here"


@dataclass(frozen=True)
class PromptInput:
    """What a caller asks for.

    Attributes:
        text: the prompt's text; None when it came as token ids.
    """

    text: str | None
    token_ids: list[int]


def namespace_of(cache_salt: str | None) -> Hashable:
    """Returns the namespace of requests with this salt; what is before a NUL character in it is a tenant's name."""
    if not cache_salt:
        return ()
    before, separator, after = cache_salt.partition("\0")
    if not separator:
        return (("salt", before),)
    return ((TENANT, before), ("salt", after)) if after else ((TENANT, before),)


def describe_logprobs(logprobs: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """Returns the map from token id to `Logprob`, the chosen token first."""
    chosen, *most_likely = zip(logprobs.token_ids, logprobs.logprobs, strict=True)
    described = {chosen[0]: Logprob(chosen[1], logprobs.chosen_rank, tokenizer.token_text(chosen[0]))}
    for rank, (token, value) in enumerate(most_likely, start=1):
        described.setdefault(token, Logprob(value, rank, tokenizer.token_text(token)))
    return described


class Choice:
    """One answer in the making.

    Most tokens are plain: they can do nothing but add their own text, which depends on nothing else. Such a token is only added to
    the sequence; `output` gets it when somebody looks.

    Attributes:
        output: why the answer ended, and its tokens and text as far as they are written: see `result`.
    """

    def __init__(self, request: "Request", sequence: Sequence, sampling: SamplingRequest, tokenizer: Tokenizer):
        params = request.params
        self.request = request
        self.sequence = sequence
        self.sampling = sampling
        self.output = CompletionOutput(index=sampling.choice_index, seed=None if params.is_greedy else sampling.seed)
        self.output.logprobs = None if params.logprobs is None else []
        self._pieces: list[str] = []  # text that `output` lacks, but for that of plain tokens
        self._tokenizer = tokenizer
        self._ordinary_text = tokenizer.ordinary_text
        self._token_ids = sequence.token_ids
        self._request_id = request.request_id
        self._index = sampling.choice_index
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopStringMatcher(params.stop, include_match=params.include_stop_str_in_output) if params.stop else None
        self._min_tokens = params.min_tokens
        self._stop_tokens = sampling.end_token_ids.union(params.stop_token_ids)
        self._never_plain = self._stop_tokens | {NO_TOKEN}
        self._plain_below = 0  # tokens of the sequence; when it has as many, none is plain
        # A constrained answer ends where the constraint says that it is complete, before min_tokens or not.
        self._num_unstoppable = 0 if sampling.constraint is not None else params.min_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.sequence.num_tokens - self.sequence.num_prompt_tokens

    def append_plain(self, token_id: int) -> OutputDelta | None:
        """Takes the sequence's next token if it is plain and returns what it adds to the answer; else returns None."""
        token_ids = self._token_ids
        if len(token_ids) >= self._plain_below or token_id in self._never_plain:
            return None
        text = self._ordinary_text(token_id)
        if text is None:
            return None
        token_ids.append(token_id)
        return OutputDelta(self._request_id, self._index, text, [token_id])

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> OutputDelta:
        """Takes the sequence's next token, whatever it is, and returns what it adds to the answer."""
        self._write_plain_tokens()
        if token_id == NO_TOKEN:
            return self._delta([], self._flush(), None, "stop", NO_TOKEN_REASON)
        self._token_ids.append(token_id)
        self.output.token_ids.append(token_id)
        described = None if logprobs is None else self._describe(logprobs)
        finish_reason, stop_reason = self._reason_to_end(token_id)
        text, matched = self._text_of(token_id, ends_by_token=finish_reason == "stop")
        if matched is not None:
            finish_reason, stop_reason = "stop", matched
        elif finish_reason is not None:
            text += self._flush()
        self._plain_below = self.sequence.max_tokens - 1 if self._goes_on_plainly() else 0
        return self._delta([token_id], text, described, finish_reason, stop_reason)

    def _goes_on_plainly(self) -> bool:
        """Returns whether the next token can be plain: it completes no character, and of it nothing is searched or reported."""
        is_only_text = self._matcher is None and self.sampling.num_logprobs is None  # by which choices held back are ranked
        return is_only_text and self.request.params.detokenize and not self._detokenizer.is_inside_character

    def _write_plain_tokens(self) -> None:
        """Adds the plain tokens that came since the last call to `output`, and their text to what it lacks."""
        first = self.sequence.num_prompt_tokens + len(self.output.token_ids)
        if first < len(self._token_ids):
            token_ids = self._token_ids[first:]
            self.output.token_ids += token_ids
            self._pieces += filter(None, map(self._ordinary_text, token_ids))

    def with_output(self, output: CompletionOutput) -> "Choice":
        """Returns a choice that ended with another output."""
        other = copy(self)
        other.output, other._pieces = output, []
        return other

    def end(self) -> OutputDelta:
        """Ends a choice that was to have no tokens: its prompt is computed."""
        return self._delta([], "", None, "stop", None)

    def result(self) -> CompletionOutput:
        """Returns the answer as it stands."""
        if not self.request.is_beam_search:  # of which the tokens are in the search
            self._write_plain_tokens()
        if self._pieces:  # joined when somebody looks, so that a token costs the same however long the answer is
            self.output.text += "".join(self._pieces)
            self._pieces.clear()
        return self.output

    def abort(self) -> OutputDelta:
        """Ends the choice from outside; text that was held back is released."""
        return self._delta([], self._flush(), None, "abort", None)

    def _delta(
        self,
        token_ids: list[int],
        text: str,
        logprobs: list[dict[int, Logprob]] | None,
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> OutputDelta:
        output = self.output
        if text:
            self._pieces.append(text)
        if finish_reason is not None:
            output.finish_reason, output.stop_reason = finish_reason, stop_reason
        return OutputDelta(self.request.request_id, output.index, text, token_ids, logprobs, finish_reason, stop_reason)

    def _describe(self, logprobs: TokenLogprobs) -> list[dict[int, Logprob]] | None:
        """Takes a token's log-probabilities; returns them where they are to be seen and not only to be ranked by."""
        self.output.cumulative_logprob = (self.output.cumulative_logprob or 0.0) + logprobs.logprobs[0]
        if self.output.logprobs is None:
            return None
        described = [describe_logprobs(logprobs, self._tokenizer)]
        self.output.logprobs += described
        return described

    def _reason_to_end(self, token_id: int) -> tuple[str | None, str | int | None]:
        if token_id in self._stop_tokens and self.num_tokens >= self._num_unstoppable:
            return "stop", None if token_id in self.sampling.end_token_ids else token_id
        if len(self.sequence.token_ids) >= self.sequence.max_tokens:
            return "length", None
        return None, None

    def _text_of(self, token_id: int, *, ends_by_token: bool) -> tuple[str, str | None]:
        """Returns the text that became certain and the stop string that it completed, if any.

        Text of the first ``min_tokens`` tokens is not searched for stop strings. The token that ends an answer adds no text
        unless the request wants to see what stopped it.
        """
        params = self.request.params
        if not params.detokenize or (ends_by_token and not params.include_stop_str_in_output):
            return "", None
        piece = self._detokenizer.append(token_id)
        if self._matcher is None or self.num_tokens < self._min_tokens:
            return piece, None
        return self._matcher.feed(piece)

    def _flush(self) -> str:
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest
        text, matched = self._matcher.feed(rest)
        return text if matched else text + self._matcher.flush()


@dataclass(eq=False)
class Request:
    """A request and its choices.

    Attributes:
        cache_salt: what besides token ids must be equal for KV to be shared.
        retentions: what is asked for its blocks when they become cached.
        is_beam_search: its choices are beams until the search is over.
        is_held_back: more choices are made than are returned, and the best are known only at the end.
        num_past_preemptions, num_past_recomputed_tokens: of its sequences that are gone.
        num_past_generated_tokens: of its choices that are gone; of a beam search, all.
        embedding: the vector of a prompt that is embedded; None before, and for one that is continued.
    """

    request_id: str
    prompt: PromptInput
    params: SamplingParams
    metrics: RequestMetrics
    priority: int = 0
    cache_salt: str | None = None
    retentions: tuple[Retention, ...] = ()
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    is_beam_search: bool = False
    num_past_preemptions: int = 0
    num_past_recomputed_tokens: int = 0
    num_past_generated_tokens: int = 0
    embedding: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.is_held_back = self.params.num_choices > self.params.n

    @property
    def namespace(self) -> Hashable:
        """The name under which its KV is shared."""
        return namespace_of(self.cache_salt)

    def output(self) -> RequestOutput:
        """Returns the result as it stands."""
        lead = self.choices[0].sequence
        sequences = {choice.sequence.sequence_id: choice.sequence for choice in self.choices}.values()
        self.metrics.num_preemptions = self.num_past_preemptions + sum(sequence.num_preemptions for sequence in sequences)
        self.metrics.num_recomputed_tokens = self.num_past_recomputed_tokens + sum(
            sequence.num_recomputed_tokens for sequence in sequences
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.token_ids,
            outputs=[choice.result() for choice in self.choices],
            metrics=self.metrics,
            prompt_logprobs=self.prompt_logprobs,
            num_prefix_hit_tokens=lead.num_hit_tokens or 0,
            num_generated_tokens=self.num_generated_tokens,
            embedding=self.embedding,
        )

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all its choices and beams, also of those that are not returned."""
        num_present = 0 if self.is_beam_search else sum(choice.num_tokens for choice in self.choices)
        return self.num_past_generated_tokens + num_present

    @property
    def is_finished(self) -> bool:
        """True when every choice has ended."""
        is_begun = len(self.choices) == self.params.num_choices
        return is_begun and all(choice.output.finish_reason is not None for choice in self.choices)

    def note_token(self, now: float) -> None:
        """Notes when the first token came."""
        if self.metrics.first_token_time is None:
            self.metrics.first_token_time = now

    def forget(self, sequence: Sequence) -> None:
        """Keeps the counts of a sequence that is gone."""
        self.num_past_preemptions += sequence.num_preemptions
        self.num_past_recomputed_tokens += sequence.num_recomputed_tokens

    def keep_best(self) -> None:
        """Keeps those of more choices than are returned whose tokens are most likely on average, best first."""
        if len(self.choices) <= self.params.n:
            return
        self.choices.sort(key=lambda choice: -mean_logprob(choice.result()))
        for choice in self.choices[self.params.n :]:
            self.forget(choice.sequence)
            self.num_past_generated_tokens += choice.num_tokens
        del self.choices[self.params.n :]
        for index, choice in enumerate(self.choices):
            choice.output.index = index

    def last_deltas(self) -> list[OutputDelta]:
        """Returns whole answers as one delta each."""
        return [
            OutputDelta(
                self.request_id,
                output.index,
                output.text,
                output.token_ids,
                output.logprobs,
                output.finish_reason,
                output.stop_reason,
                self.prompt_logprobs,
            )
            for output in (choice.result() for choice in self.choices)
        ]


def mean_logprob(output: CompletionOutput) -> float:
    """Returns the mean log-probability of an answer's tokens; minus infinity where there are none."""
    return -math.inf if output.cumulative_logprob is None else output.cumulative_logprob / len(output.token_ids)


def new_request(request_id: str, prompt: PromptInput, params: SamplingParams, priority: int, cache_salt: str | None) -> Request:
    """Returns a request that arrives now and has no choice yet."""
    return Request(request_id, prompt, params, RequestMetrics(time.monotonic()), priority, cache_salt)
