"""What a caller gets back.

Owns: the result records. Must not know: how results come about.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Logprob(NamedTuple):
    """A token's log-probability under the model's raw distribution.

    Attributes:
        rank: 1 for the most likely token.
        decoded_token: the token's text; bytes that are no character of their own are shown as U+FFFD.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    """One choice.

    Attributes:
        text: the answer; empty when the request asked for no detokenising.
        logprobs: for each token of the answer a map from token id to `Logprob`, the chosen one first; None if not asked for.
        finish_reason: "stop", "length" or "abort"; None while it runs.
        stop_reason: the stop string or stop token that ended it; None for the model's own end token.
        seed: the seed that the draws used; None for greedy choices.
        cumulative_logprob: sum of the tokens' log-probabilities; None where nothing asked for them.
        beam_score: what a beam search ranked the answer by; None for any other.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    seed: int | None = None
    cumulative_logprob: float | None = None
    beam_score: float | None = None


@dataclass
class RequestMetrics:
    """Times and counts of one request; times are seconds of `time.monotonic`, None until they happen.

    Attributes:
        num_preemptions: how often blocks were taken back from one of its sequences.
        num_recomputed_tokens: tokens computed again because of that.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0

    @property
    def queue_ms(self) -> float | None:
        """Milliseconds from arrival to the first step that computed something of it."""
        return None if self.first_scheduled_time is None else 1e3 * (self.first_scheduled_time - self.arrival_time)

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds from arrival to the first token."""
        return None if self.first_token_time is None else 1e3 * (self.first_token_time - self.arrival_time)


@dataclass
class RequestOutput:
    """A request and its choices.

    Attributes:
        prompt: the prompt's text; None when it was given as token ids.
        prompt_logprobs: for each prompt token a map as in `CompletionOutput.logprobs`; the first is None; None if not asked for.
        num_prefix_hit_tokens: prompt tokens whose KV came from the prefix cache.
        num_generated_tokens: of all choices and beams, also of those that are not among the outputs.
        embedding: the prompt's pooled hidden states, float32 ``[hidden]`` of length 1; None if not asked for, or aborted before.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_prefix_hit_tokens: int = 0
    num_generated_tokens: int = 0
    embedding: "np.ndarray | None" = None

    @property
    def finished(self) -> bool:
        """True when every choice has its finish reason."""
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(slots=True)
class OutputDelta:
    """What one step added to one choice.

    Attributes:
        text: text that became certain in this step; may be empty while a possible stop string or a cut character is held back.
        logprobs: one map per new token; None if not asked for.
        finish_reason: set on the choice's last delta.
        prompt_logprobs: those of the prompt, on the choice's first delta; None if not asked for.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
