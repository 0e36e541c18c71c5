"""What happened to a request, for whoever asks why it was slow.

Owns: the record, and the explanations of requests that left lately. Must not know: how it is shown.
"""

from collections import OrderedDict
from dataclasses import dataclass

from octavo.engine.request import Choice, Request
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waiting_queue import WaitingQueue

OTHERS_FIRST = "others were served first"
NUM_KEPT = 256  # of requests that left; about a kilobyte each


@dataclass(frozen=True)
class ChoiceExplanation:
    """One choice.

    Attributes:
        state: waiting, running, suspended (a beam between two of its tokens) or finished.
        num_computed_tokens: tokens whose KV is in memory now.
        num_blocks: blocks held now, shared ones included.
        preempted_by: the sequences that took its blocks; its own when it gave way to all others.
        num_recomputed_tokens: tokens computed again because of that.
    """

    index: int
    sequence_id: int
    state: str
    num_tokens: int
    num_computed_tokens: int
    num_blocks: int
    preempted_by: list[int]
    num_recomputed_tokens: int
    finish_reason: str | None


@dataclass(frozen=True)
class PrefixExplanation:
    """What the prefix cache gave.

    Attributes:
        num_hit_tokens: tokens that did not have to be computed; the match ended at this token.
        num_disk_tokens: tokens read from disk for this request, after preemptions too.
        reason: why it was not longer; None when the cache was not asked (yet).
    """

    num_prompt_tokens: int
    num_hit_tokens: int
    num_disk_tokens: int
    reason: str | None


@dataclass(frozen=True)
class RequestExplanation:
    """One request; times in milliseconds, None until they are known.

    Attributes:
        queue_ms: from arrival to the first step that computed something of it.
        waited_for: steps in which it was not admitted, by reason.
        prefill_ms: from then to the first token.
        decode_ms: from the first token to the last.
    """

    request_id: str
    priority: int
    queue_ms: float | None
    waited_for: dict[str, int]
    prefill_ms: float | None
    decode_ms: float | None
    prefix: PrefixExplanation
    choices: list[ChoiceExplanation]


def explain(request: Request, waiting: WaitingQueue) -> RequestExplanation:
    """Returns what is known of a request now."""
    metrics, lead = request.metrics, request.choices[0].sequence
    return RequestExplanation(
        request_id=request.request_id,
        priority=request.priority,
        queue_ms=metrics.queue_ms,
        waited_for=_count_waits(lead, waiting),
        prefill_ms=_milliseconds(metrics.first_scheduled_time, metrics.first_token_time),
        decode_ms=_milliseconds(metrics.first_token_time, metrics.finished_time),
        prefix=PrefixExplanation(
            len(request.prompt.token_ids),
            lead.num_hit_tokens or 0,
            lead.num_disk_tokens,
            None if lead.match_end is None else lead.match_end.value,
        ),
        choices=[_explain_choice(choice) for choice in request.choices],
    )


def _explain_choice(choice: Choice) -> ChoiceExplanation:
    sequence = choice.sequence
    return ChoiceExplanation(
        index=choice.output.index,
        sequence_id=sequence.sequence_id,
        state=sequence.status.value,
        num_tokens=sequence.num_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_blocks=0 if sequence.cache is None else len(sequence.cache.held_blocks()),
        preempted_by=list(sequence.preempted_by),
        num_recomputed_tokens=sequence.num_recomputed_tokens,
        finish_reason=choice.output.finish_reason,
    )


def _count_waits(sequence: Sequence, waiting: WaitingQueue) -> dict[str, int]:
    counts = {reason.value: count for reason, count in sequence.wait_reasons.items()}
    num_others = waiting.num_waited_steps(sequence) - sum(counts.values())
    return counts | ({OTHERS_FIRST: num_others} if num_others > 0 else {})


def _milliseconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else 1e3 * (end - begin)


class ExplanationLog:
    """The explanations of the requests that left last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, RequestExplanation] = OrderedDict()

    def add(self, explanation: RequestExplanation) -> None:
        """Keeps the explanation of a request that leaves."""
        self._kept[explanation.request_id] = explanation
        self._kept.move_to_end(explanation.request_id)
        if len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)

    def find(self, request_id: str) -> RequestExplanation | None:
        """Returns the explanation of a request that left lately."""
        return self._kept.get(request_id)
