"""The plan: what a machine's memory goes to, and how many users at which context fit and get a usable speed.

Owns: the budget and both ceilings. Must not know: where descriptions come from, or how a plan is shown.

Invariants:
1. The terms of a budget and what is left add up to the usable memory.
2. Sizes are bytes on each node; a shortage is stated, never a negative size.
"""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.kernels.kv_layout import KV_DTYPES
from octavo.planner.formats import FOREIGN_WEIGHT_FORMATS, kv_format
from octavo.planner.kv_plan import KVPlan, KVSettings, make_kv_plan
from octavo.planner.machines import Machine
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.process_memory import process_bytes, workspace_bytes
from octavo.planner.speed import SpeedCeiling
from octavo.planner.weight_sizes import WeightSizes

FIRST_CONTEXT_TOKENS = 1024
LOGIT_BYTES = 4


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned.

    Attributes:
        context_tokens: length of a sequence at its end; None = only the tables.
        num_users: sequences at once.
        shared_tokens: of a prefix that all sequences share.
        step_tokens: token budget of a step.
        max_num_seqs: sequences for which a step has room.
        min_tokens_per_s: decode speed below which a user is not served.
    """

    kv_dtype: str
    block_size: int
    context_tokens: int | None
    num_users: int
    shared_tokens: int
    step_tokens: int
    max_num_seqs: int
    min_tokens_per_s: float


@dataclass(frozen=True)
class Budget:
    """What the usable memory of each node goes to.

    Attributes:
        workspace_bytes: activations of the largest step, and the logits of all sequences.
        kv_bytes: what is left for KV; 0 when the rest does not fit.
        shortage_bytes: by how much the rest does not fit, loading included.
        load_peak_bytes: the most that loading takes: all weights, and the largest tensor once more, as it was read.
    """

    usable_bytes: int
    weight_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    kv_bytes: int
    shortage_bytes: int
    load_peak_bytes: int


@dataclass(frozen=True)
class ContextRow:
    """The ceilings at one context.

    Attributes:
        sequence_bytes: of one user, in whole blocks, on each node.
        users_by_memory: as many fit.
        users_by_speed: as many get the least speed that was asked for.
        tokens_per_s: the ceiling for each of ``num_users`` together there.
    """

    context_tokens: int
    sequence_bytes: int
    users_by_memory: int
    users_by_speed: int
    tokens_per_s: float

    @property
    def num_users(self) -> int:
        """Under both ceilings."""
        return min(self.users_by_memory, self.users_by_speed)

    @property
    def binding(self) -> str:
        """Which ceiling is the lower one."""
        if self.users_by_memory == self.users_by_speed:
            return "both"
        return "memory" if self.users_by_memory < self.users_by_speed else "speed"


@dataclass(frozen=True)
class LargestContext:
    """The longest context for a number of users: by memory, by speed; 0 = none. ``tokens`` holds under both."""

    num_users: int
    by_memory: int
    by_speed: int

    @property
    def tokens(self) -> int:
        return min(self.by_memory, self.by_speed)


@dataclass(frozen=True)
class Plan:
    """All of it.

    Attributes:
        resident_bytes: what the engine holds while the users that were asked for run; None if they do not fit.
    """

    model: str
    spec: PlanSpec
    machine: Machine
    weights: WeightSizes
    weight_format: str
    request: PlanRequest
    budget: Budget
    rows: tuple[ContextRow, ...]
    largest_context: LargestContext
    asked: ContextRow | None
    resident_bytes: int | None

    @property
    def runs_here(self) -> bool:
        """Whether this engine runs the model with these settings on this machine."""
        formats_are_own = self.request.kv_dtype in KV_DTYPES and self.weight_format not in FOREIGN_WEIGHT_FORMATS
        return self.spec.engine_spec is not None and self.machine.nodes == 1 and formats_are_own

    @property
    def fits(self) -> bool:
        """Whether what was asked for fits; without a context, whether anything does."""
        if self.asked is None:
            return self.largest_context.tokens > 0
        return self.asked.num_users >= self.request.num_users


class Planner:
    """Plans of one model on one machine."""

    def __init__(
        self, model: str, spec: PlanSpec, machine: Machine, weights: WeightSizes, weight_format: str, request: PlanRequest
    ):
        self.model, self.spec, self.machine = model, spec, machine
        self.weights, self.weight_format, self.request = weights, weight_format, request
        settings = KVSettings(request.kv_dtype, request.block_size, request.step_tokens, machine.nodes)
        self.kv: KVPlan = make_kv_plan(spec, settings)
        self.speed = SpeedCeiling(spec, weights, kv_format(request.kv_dtype), machine.bandwidth * machine.nodes)
        self.budget = self._make_budget()

    def plan(self) -> Plan:
        """Returns the plan."""
        context, num_users = self.request.context_tokens, self.request.num_users
        asked = None if context is None else self.row(context)
        fits = asked is not None and asked.users_by_memory >= num_users
        return Plan(
            model=self.model,
            spec=self.spec,
            machine=self.machine,
            weights=self.weights,
            weight_format=self.weight_format,
            request=self.request,
            budget=self.budget,
            rows=tuple(self.row(context) for context in table_contexts(self.spec.max_position)),
            largest_context=self.largest_context(self.request.num_users),
            asked=asked,
            resident_bytes=self.resident_bytes(asked.context_tokens, num_users) if asked is not None and fits else None,
        )

    def row(self, context_tokens: int) -> ContextRow:
        """Returns the ceilings at one context."""
        by_memory = self.users_by_memory(context_tokens)
        by_speed = self.speed.max_users(context_tokens, self.request.min_tokens_per_s)
        return ContextRow(
            context_tokens=context_tokens,
            sequence_bytes=self.kv.sequence_bytes(context_tokens),
            users_by_memory=by_memory,
            users_by_speed=by_speed,
            tokens_per_s=self.speed.tokens_per_s(max(1, min(by_memory, by_speed)), context_tokens),
        )

    def users_by_memory(self, context_tokens: int) -> int:
        """Returns how many sequences of this length fit at once."""
        if self.budget.shortage_bytes:
            return 0
        return self.kv.max_users(self.budget.kv_bytes, context_tokens, min(self.request.shared_tokens, context_tokens))

    def largest_context(self, num_users: int) -> LargestContext:
        """Returns the longest contexts for ``num_users`` at once, not beyond the model's own limit."""
        min_speed = self.request.min_tokens_per_s
        return LargestContext(
            num_users,
            by_memory=_largest(self.spec.max_position, lambda tokens: self.users_by_memory(tokens) >= num_users),
            by_speed=_largest(self.spec.max_position, lambda tokens: self.speed.tokens_per_s(num_users, tokens) >= min_speed),
        )

    def workspace_bytes(self, num_users: int | None = None) -> int:
        """Returns what a step's buffers take; with ``num_users``, what of it so many sequences ever touch."""
        request, engine_spec = self.request, self.spec.engine_spec
        if engine_spec is None:
            rows = request.max_num_seqs if num_users is None else num_users
            return request.step_tokens * self.spec.workspace_width * 4 + rows * self.spec.vocab_size * LOGIT_BYTES
        return workspace_bytes(
            engine_spec,
            step_tokens=request.step_tokens,
            max_num_seqs=request.max_num_seqs,
            max_blocks_per_seq=-(-engine_spec.max_position // request.block_size),
            num_users=num_users,
        )

    def resident_bytes(self, context_tokens: int, num_users: int) -> int:
        """Returns what the engine holds in memory at the most while ``num_users`` run to their last token."""
        kv = self.kv.users_bytes(num_users, context_tokens, min(self.request.shared_tokens, context_tokens))
        steady = self.budget.weight_bytes + self.budget.overhead_bytes + self.workspace_bytes(num_users) + kv
        return max(steady, self.budget.load_peak_bytes)

    def _make_budget(self) -> Budget:
        usable, nodes = self.machine.usable_bytes, self.machine.nodes
        overhead = process_bytes(self.spec.vocab_size) if self.machine.overhead_bytes is None else self.machine.overhead_bytes
        weights = -(-self.weights.total_bytes // nodes)
        workspace = self.workspace_bytes()
        load_peak = weights + -(-self.weights.largest_tensor_bytes // nodes) + overhead
        left = usable - weights - workspace - overhead
        return Budget(
            usable_bytes=usable,
            weight_bytes=weights,
            workspace_bytes=workspace,
            overhead_bytes=overhead,
            kv_bytes=max(0, left),
            shortage_bytes=max(0, -left, load_peak - usable),
            load_peak_bytes=load_peak,
        )


def table_contexts(max_position: int) -> list[int]:
    """Returns the powers of two from 1,024 below the model's limit, and the limit."""
    contexts, context = [], FIRST_CONTEXT_TOKENS
    while context < max_position:
        contexts.append(context)
        context *= 2
    return [*contexts, max_position]


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Returns the largest number up to ``limit`` of which ``holds`` is true, 0 if none; ``holds`` never turns true again."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
