"""One budget for everything that the engine takes: weights, KV, workspace and the process itself.

Owns: how large the budget is, what is left for KV, and what to change when a model does not fit. Must not know: blocks, requests.

Invariants:
1. The budget and the reserve are together no more than what the machine has available.
2. Every change that a refusal suggests makes the model fit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from octavo.config import EngineConfig, parse_share
from octavo.errors import CapacityError, ConfigError
from octavo.models.spec import ModelSpec
from octavo.planner.host_memory import HostMemory, MemoryStep, default_reserve
from octavo.planner.load_sizes import LoadSizes
from octavo.planner.process_memory import process_bytes, workspace_bytes

MIB, GIB = 2**20, 2**30
MIN_KV_BYTES = 64 * MIB  # of a suggestion: with less it would load and serve next to nothing
SMALLER_WEIGHTS = ("int8", "int4")
SMALLER_STEP_TOKENS = (256, 32)


@dataclass(frozen=True)
class MemoryBudget:
    """What the budget goes to, in bytes.

    Attributes:
        budget_bytes: all that the engine may take.
        available_bytes: what the machine could give when the engine started.
        reserve_bytes: what is left to everybody else.
        process_bytes: allowance for libraries, tokenizer and server.
        load_peak_bytes: the most that loading takes.
        steps: how the available memory comes about.
    """

    budget_bytes: int
    available_bytes: int
    reserve_bytes: int
    weights_bytes: int
    workspace_bytes: int
    process_bytes: int
    load_peak_bytes: int
    steps: tuple[MemoryStep, ...]

    @property
    def needed_bytes(self) -> int:
        """What the engine takes without a KV block, or while it loads if that is more."""
        return max(self.load_peak_bytes, self.weights_bytes + self.workspace_bytes + self.process_bytes)

    @property
    def kv_bytes(self) -> int:
        """What is left for KV."""
        return max(0, self.budget_bytes - self.weights_bytes - self.workspace_bytes - self.process_bytes)

    def lines(self) -> Iterator[str]:
        """Yields in words what was subtracted from what, and why."""
        yield from (f"{step.what}: {step.why}" for step in self.steps)
        yield f"reserve {format_bytes(self.reserve_bytes)}: left to everybody else (memory_reserve)"
        yield (
            f"budget {format_bytes(self.budget_bytes)}: weights {format_bytes(self.weights_bytes)}, workspace "
            f"{format_bytes(self.workspace_bytes)}, process {format_bytes(self.process_bytes)}, at most "
            f"{format_bytes(self.kv_bytes)} for KV"
        )


def make_budget(config: EngineConfig, spec: ModelSpec, sizes_in: Callable[[str], LoadSizes], memory: HostMemory) -> MemoryBudget:
    """Returns the budget of an engine on a machine.

    Args:
        sizes_in: the model's sizes for weights held in a format.

    Raises:
        ConfigError: ``memory`` is more than what is available beside the reserve.
        CapacityError: the model does not fit.
    """
    reserve = reserve_bytes(config, memory.total_bytes)
    usable = max(0, memory.allocatable_bytes - reserve)
    budget = _take(config, memory.total_bytes, usable, reserve)
    made = _divide(
        config, spec, sizes_in(config.weights), MemoryBudget(budget, memory.allocatable_bytes, reserve, 0, 0, 0, 0, memory.steps)
    )
    if made.needed_bytes >= budget:
        options = list(_options(config, spec, sizes_in, made))
        raise CapacityError(
            f"the model takes {format_bytes(made.needed_bytes)} without any KV (weights {format_bytes(made.weights_bytes)}, "
            f"workspace {format_bytes(made.workspace_bytes)}, process {format_bytes(made.process_bytes)}, at its peak while "
            f"loading {format_bytes(made.load_peak_bytes)}); memory={config.memory!r} is {format_bytes(budget)}",
            hint=f"it fits with {' or '.join(options)}" if options else "no setting makes it fit; take a smaller model",
        )
    return made


def reserve_bytes(config: EngineConfig, total_bytes: int) -> int:
    """Returns the size of ``memory_reserve`` on a machine."""
    kind, amount = parse_share(config.memory_reserve, name="memory_reserve")
    if kind == "auto":
        return default_reserve(total_bytes)
    return amount if kind == "bytes" else total_bytes * amount // 100


def _take(config: EngineConfig, total_bytes: int, usable_bytes: int, reserve: int) -> int:
    kind, amount = parse_share(config.memory, name="memory")
    if kind == "auto":
        return usable_bytes
    budget = amount if kind == "bytes" else total_bytes * amount // 100
    if budget > usable_bytes:
        raise ConfigError(
            f"memory={config.memory!r} is {format_bytes(budget)}; this machine has {format_bytes(usable_bytes)} available now "
            f"beside the reserve of {format_bytes(reserve)}",
            hint=f'give at most memory="{usable_bytes // MIB}MiB", leave it out to take that, or lower memory_reserve',
        )
    return budget


def _divide(config: EngineConfig, spec: ModelSpec, load: LoadSizes, budget: MemoryBudget) -> MemoryBudget:
    process = process_bytes(spec.vocab_size)
    return replace(
        budget,
        weights_bytes=load.weight_bytes,
        workspace_bytes=workspace_bytes(
            spec,
            step_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_blocks_per_seq=-(-(config.max_model_len or spec.max_position) // config.block_size),
        ),
        process_bytes=process,
        load_peak_bytes=load.weight_bytes + load.unpacked_bytes + process,
    )


def _options(config: EngineConfig, spec: ModelSpec, sizes_in: Callable[[str], LoadSizes], made: MemoryBudget) -> Iterator[str]:
    """Yields single settings that make the model fit, with some room for KV."""
    wanted = made.needed_bytes + MIN_KV_BYTES
    if wanted <= made.available_bytes - made.reserve_bytes:
        yield f'memory="{-(-wanted // MIB)}MiB"'
    elif config.memory == "auto" and wanted <= made.available_bytes:
        yield f'memory_reserve="{(made.available_bytes - wanted) // MIB}MiB"'
    smaller = [
        replace(config, max_num_seqs=min(config.max_num_seqs, tokens), max_num_batched_tokens=tokens)
        for tokens in SMALLER_STEP_TOKENS
        if tokens < config.max_num_batched_tokens
    ]
    smaller += [replace(config, weights=weights) for weights in SMALLER_WEIGHTS]
    for changed in smaller:
        divided = _divide(changed, spec, sizes_in(changed.weights), made)
        if divided.needed_bytes + MIN_KV_BYTES <= made.budget_bytes:
            yield _changes(config, changed)


def _changes(config: EngineConfig, changed: EngineConfig) -> str:
    names = ("weights", "max_num_batched_tokens", "max_num_seqs")
    return " with ".join(f"{name}={getattr(changed, name)!r}" for name in names if getattr(changed, name) != getattr(config, name))


def format_bytes(num_bytes: int) -> str:
    """Returns a size for people to read."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"
