"""A request while the engine works on it.

Owns: the pairing of a request's choices with their sequences, texts and reasons to end. Must not know: scheduling, memory, arrays.

Invariants:
1. A choice's `output` grows only in `Choice.append`, and not at all after its finish reason is set.
2. The end is decided by one order: the model's end token, stop token, stop string, length.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.detokenizer import Detokenizer
from octavo.engine.stop_strings import StopStringMatcher
from octavo.models.tokenizer import Tokenizer
from octavo.outputs import CompletionOutput, Logprob, OutputDelta, RequestMetrics, RequestOutput
from octavo.runner.sampler import NO_TOKEN, SampledToken, TokenLogprobs
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
    """Returns the namespace of requests with this salt."""
    return (("salt", cache_salt),) if cache_salt else ()


def describe_logprobs(logprobs: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """Returns the map from token id to `Logprob`, the chosen token first."""
    chosen, *most_likely = zip(logprobs.token_ids, logprobs.logprobs, strict=True)
    described = {chosen[0]: Logprob(chosen[1], logprobs.chosen_rank, tokenizer.token_text(chosen[0]))}
    for rank, (token, value) in enumerate(most_likely, start=1):
        described.setdefault(token, Logprob(value, rank, tokenizer.token_text(token)))
    return described


class Choice:
    """One answer in the making."""

    def __init__(self, request: "Request", sequence: Sequence, sampling: SamplingRequest, tokenizer: Tokenizer):
        params = request.params
        self.request = request
        self.sequence = sequence
        self.sampling = sampling
        self.output = CompletionOutput(index=sampling.choice_index, seed=None if params.is_greedy else sampling.seed)
        self.output.logprobs = None if params.logprobs is None else []
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens) if params.detokenize else None
        self._matcher = StopStringMatcher(params.stop, include_match=params.include_stop_str_in_output)

    def append(self, token: SampledToken) -> OutputDelta:
        """Takes the sequence's next token and returns what it adds to the answer."""
        token_id = token.token_id
        if token_id == NO_TOKEN:
            return self._delta([], self._flush(), None, "stop", NO_TOKEN_REASON)
        self.sequence.token_ids.append(token_id)
        self.output.token_ids.append(token_id)
        logprobs = self._describe(token.logprobs) if token.logprobs is not None else None
        finish_reason, stop_reason = self._reason_to_end(token_id)
        text, matched = self._text_of(token_id, ends_by_token=finish_reason == "stop")
        if matched is not None:
            finish_reason, stop_reason = "stop", matched
        elif finish_reason is not None:
            text += self._flush()
        return self._delta([token_id], text, logprobs, finish_reason, stop_reason)

    def end(self) -> OutputDelta:
        """Ends a choice that was to have no tokens: its prompt is computed."""
        return self._delta([], "", None, "stop", None)

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
            output.text += text
        if finish_reason is not None:
            output.finish_reason, output.stop_reason = finish_reason, stop_reason
        return OutputDelta(self.request.request_id, output.index, text, token_ids, logprobs, finish_reason, stop_reason)

    def _describe(self, logprobs: TokenLogprobs) -> list[dict[int, Logprob]]:
        described = [describe_logprobs(logprobs, self._tokenizer)]
        assert self.output.logprobs is not None, "logprobs arrived that nobody asked for"
        self.output.logprobs += described
        return described

    def _reason_to_end(self, token_id: int) -> tuple[str | None, str | int | None]:
        params = self.request.params
        is_constrained = self.sampling.constraint is not None  # an end token then means: complete, before min_tokens or not
        if len(self.output.token_ids) >= params.min_tokens or is_constrained:
            if token_id in self.sampling.end_token_ids:
                return "stop", None
            if token_id in params.stop_token_ids:
                return "stop", token_id
        if len(self.sequence.token_ids) >= self.sequence.max_tokens:
            return "length", None
        return None, None

    def _text_of(self, token_id: int, *, ends_by_token: bool) -> tuple[str, str | None]:
        """Returns the text that became certain and the stop string that it completed, if any.

        Text of the first ``min_tokens`` tokens is not searched for stop strings. The token that ends an answer adds no text
        unless the request wants to see what stopped it.
        """
        params = self.request.params
        if self._detokenizer is None or (ends_by_token and not params.include_stop_str_in_output):
            return "", None
        piece = self._detokenizer.append(token_id)
        if len(self.output.token_ids) < params.min_tokens:
            return piece, None
        return self._matcher.feed(piece)

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text, matched = self._matcher.feed(self._detokenizer.flush())
        return text if matched else text + self._matcher.flush()


@dataclass(eq=False)
class Request:
    """A request and its choices.

    Attributes:
        namespace: what besides token ids must be equal for KV to be shared.
        embedding: the vector of a prompt that is embedded; None before, and for one that is continued.
    """

    request_id: str
    prompt: PromptInput
    params: SamplingParams
    metrics: RequestMetrics
    priority: int = 0
    namespace: Hashable = ()
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    embedding: np.ndarray | None = None

    def output(self) -> RequestOutput:
        """Returns the result as it stands."""
        lead = self.choices[0].sequence
        sequences = [choice.sequence for choice in self.choices]
        self.metrics.num_preemptions = sum(sequence.num_preemptions for sequence in sequences)
        self.metrics.num_recomputed_tokens = sum(sequence.num_recomputed_tokens for sequence in sequences)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.token_ids,
            outputs=[choice.output for choice in self.choices],
            metrics=self.metrics,
            prompt_logprobs=self.prompt_logprobs,
            num_prefix_hit_tokens=lead.num_hit_tokens or 0,
            embedding=self.embedding,
        )

    @property
    def is_finished(self) -> bool:
        """True when every choice has ended."""
        return len(self.choices) == self.params.n and all(choice.output.finish_reason is not None for choice in self.choices)


def new_request(request_id: str, prompt: PromptInput, params: SamplingParams, priority: int, cache_salt: str | None) -> Request:
    """Returns a request that arrives now and has no choice yet."""
    return Request(request_id, prompt, params, RequestMetrics(time.monotonic()), priority, namespace_of(cache_salt))
