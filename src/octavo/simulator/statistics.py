"""What a simulation counts, in memory that does not grow with its length.

Owns: counters, means over time, quantiles. Must not know: how anything is shown.

Invariants:
1. A quantile is within 1 % of the exact one; means are exact.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from octavo.simulator.memory_split import MeanSplit

BUCKET_RATIO = 1.02  # neighbouring buckets' middles; so a value is at most 1 % from its bucket's middle
SMALLEST_S = 1e-9  # shorter times count as this


class Durations:
    """Times, kept as counts in buckets of a constant ratio."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sum_s = 0.0
        self._num = 0

    def add(self, duration_s: float) -> None:
        """Counts one time."""
        self._counts[round(math.log(max(duration_s, SMALLEST_S), BUCKET_RATIO))] += 1
        self._sum_s += duration_s
        self._num += 1

    def mean_s(self) -> float | None:
        """Returns the mean; None if there is none."""
        return self._sum_s / self._num if self._num else None

    def quantile_s(self, share: float) -> float | None:
        """Returns the time that ``share`` of the times do not exceed; None if there is none."""
        left = max(1, math.ceil(share * self._num))
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return BUCKET_RATIO**bucket
        return None


@dataclass(frozen=True)
class Goals:
    """What a request must reach to count as served well; None = no such goal."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def reached(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Returns whether a request reached both; an answer of one token has no time per later token."""
        late = self.ttft_s is not None and ttft_s > self.ttft_s
        slow = self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s
        return not (late or slow)


@dataclass
class Statistics:
    """Counts over all replicas.

    Attributes:
        num_good: finished requests that reached their goals.
        num_refused: requests that could never run.
        num_computed_tokens: tokens that went through the model, recomputed ones included.
        busy_s: time in steps, added up over the replicas.
        running_s: sequences in a step times its duration, added up.
        latency_per_token: from arrival to the end, divided by the tokens of the answer.
        split: of the memory, while requests waited for it.
    """

    goals: Goals = field(default_factory=Goals)
    num_finished: int = 0
    num_good: int = 0
    num_refused: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_hit_tokens: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_moved_slots: int = 0
    num_peak_running: int = 0
    busy_s: float = 0.0
    running_s: float = 0.0
    ttft: Durations = field(default_factory=Durations)
    tpot: Durations = field(default_factory=Durations)
    latency_per_token: Durations = field(default_factory=Durations)
    split: MeanSplit = field(default_factory=MeanSplit)

    def count_step(self, num_running: int, num_tokens: int, num_preempted: int, duration_s: float) -> None:
        """Counts one step."""
        self.num_steps += 1
        self.num_preemptions += num_preempted
        self.num_computed_tokens += num_tokens
        self.num_peak_running = max(self.num_peak_running, num_running)
        self.busy_s += duration_s
        self.running_s += num_running * duration_s

    def count_finished(self, num_output_tokens: int, arrival_s: float, first_token_s: float, finished_s: float) -> None:
        """Counts one request that got its whole answer."""
        ttft_s = first_token_s - arrival_s
        tpot_s = (finished_s - first_token_s) / (num_output_tokens - 1) if num_output_tokens > 1 else None
        self.num_finished += 1
        self.num_output_tokens += num_output_tokens
        self.num_good += self.goals.reached(ttft_s, tpot_s)
        self.ttft.add(ttft_s)
        if tpot_s is not None:
            self.tpot.add(tpot_s)
        self.latency_per_token.add((finished_s - arrival_s) / num_output_tokens)
