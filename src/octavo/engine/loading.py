"""Puts an engine together: model files, weights, KV memory, scheduler, runner.

Owns: the order of construction and the sizes that follow from the settings, the model and the machine. Must not know: requests.

Invariants:
1. Everything that can be refused is refused before weights are read.
2. A block id is an index into the KV storage; the pool never hands out one that the storage lacks.
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from octavo.config import EngineConfig, parse_bytes
from octavo.engine.engine import Engine
from octavo.engine.memory_budget import MemoryBudget, format_bytes, make_budget
from octavo.engine.memory_guard import MemoryGuard
from octavo.engine.model_text import ModelText
from octavo.engine.pool_control import PoolControl
from octavo.engine.sessions import Sessions
from octavo.engine.validation import RequestChecker
from octavo.errors import CapacityError, ConfigError, UnsupportedModelError
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.operations import Operations
from octavo.kernels.step_arrays import StepArrays
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup, group_layers, layers_per_block
from octavo.models.decoder import DecoderBuffers, LayerCache
from octavo.models.gguf_config import from_gguf_metadata
from octavo.models.hf_config import from_hf_config
from octavo.models.model_files import ModelFiles, load_model_files
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights, load_weights
from octavo.planner.host_memory import read_host_memory
from octavo.planner.load_sizes import LoadSizes, load_sizes
from octavo.runner.batch_arrays import BatchArrays
from octavo.runner.forward import EagerForward, Forward, RecordedForward
from octavo.runner.kv_check import KVCheck
from octavo.runner.kv_storage import KVStorage
from octavo.runner.model_runner import ModelRunner
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.tiers.fingerprint import Fingerprint, take_fingerprint
from octavo.tiers.opening import open_disk_tier

logger = logging.getLogger("octavo.models")

HEAD_DIM_MULTIPLE, MAX_HEAD_DIM = 16, 256  # what the attention kernels are written for


@dataclass(frozen=True)
class KVSizes:
    """How the KV memory is cut.

    Attributes:
        groups: the model's layer groups.
        layout: one block.
        num_blocks: blocks of the pool.
        max_model_len: most tokens of one sequence.
    """

    groups: tuple[LayerGroup, ...]
    layout: KVLayout
    num_blocks: int
    max_model_len: int


class ModelParts(NamedTuple):
    """A loaded model, of which any number of engines can be built; ``budget`` is what there was before it was loaded."""

    files: ModelFiles
    spec: ModelSpec
    weights: DecoderWeights
    operations: Operations
    budget: MemoryBudget | None = None


def load_engine(config: EngineConfig) -> Engine:
    """Returns an engine for the model and settings of ``config``; raises what `load_parts` does."""
    return build_engine(config, *load_parts(config))


def load_parts(config: EngineConfig) -> ModelParts:
    """Returns the model of ``config``, its weights packed.

    Raises:
        ConfigError, CapacityError: a setting does not go with the model or with the machine's memory.
        CheckpointError, UnsupportedModelError: the model's files are damaged, or ask for what the engine lacks.
    """
    with garbage_left_alone():
        files = load_model_files(config.model, chat_template=Path(config.chat_template) if config.chat_template else None)
        spec = read_spec(files)
        check_settings(config, spec)
        budget = make_budget(config, spec, lambda weights: load_sizes(spec, files.source, weights), read_host_memory())
        kv_sizes(config, spec, budget)
        operations = CpuOperations(config.num_threads or default_num_threads())
        weights = load_weights(spec, files.source, operations, config.weights)
    logger.info("weights: %s", weights.packing)
    return ModelParts(files, spec, weights, operations, budget)


@contextmanager
def garbage_left_alone() -> Iterator[None]:
    """Keeps Python's cycle collector from running in the body: a vocabulary's many objects make it start again and again, and
    none of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_spec(files: ModelFiles) -> ModelSpec:
    """Returns the spec that a model's files describe."""
    if files.source.naming == "gguf":
        return from_gguf_metadata(files.description, files.source.names())
    return from_hf_config(files.description)


def check_settings(config: EngineConfig, spec: ModelSpec) -> None:
    """Refuses what can be refused before weights are read.

    Raises:
        UnsupportedModelError: the kernels do not have the model's head dimension.
        ConfigError: a setting does not go with the model.
    """
    if spec.head_dim % HEAD_DIM_MULTIPLE or spec.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"head_dim={spec.head_dim} is not supported: it must be a multiple of {HEAD_DIM_MULTIPLE} and at most {MAX_HEAD_DIM}"
        )
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is more than the model's {spec.max_position} positions",
            hint=f"leave max_model_len out, or give at most {spec.max_position}",
        )


def paged_memory(config: EngineConfig, sizes: KVSizes) -> KVManager:
    """Returns the KV memory that an engine has."""
    return KVManager(
        num_blocks=sizes.num_blocks,
        block_size=config.block_size,
        groups=sizes.groups,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def build_engine(
    config: EngineConfig,
    files: ModelFiles,
    spec: ModelSpec,
    weights: DecoderWeights,
    operations: Operations,
    budget: MemoryBudget | None = None,
    make_memory: Callable[[EngineConfig, KVSizes], KVManager] = paged_memory,
) -> Engine:
    """Returns an engine over loaded weights, whatever the backend of ``operations`` and the kind of its KV memory.

    Args:
        budget: made before the weights were loaded; made now if not given.
    """
    budget = budget or make_budget(config, spec, lambda _: LoadSizes(weights.num_bytes, 0), read_host_memory())
    sizes = kv_sizes(config, spec, budget)
    kv = make_memory(config, sizes)
    kv.retention.pin_percent, kv.quotas.default_percent = config.pin_percent, config.salt_percent
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        watermark_blocks=int(kv.watermark_ratio * sizes.num_blocks),
        attention_parity_tokens=spec.attention_parity_tokens,
    )
    end_token_ids = frozenset(token for token in files.defaults.end_token_ids if token < spec.vocab_size)
    checker = RequestChecker(files.tokenizer, spec.vocab_size, sizes.max_model_len, end_token_ids)
    scheduler = Scheduler(kv, limits)
    runner = build_runner(config, spec, weights, operations, sizes)
    if config.kv_check != "off":
        runner.kv_check = KVCheck(runner.kv_blocks, kv.watch_freed(), config.block_size, checks_all=config.kv_check == "all")
        kv.restorer.on_fill = runner.kv_check.forget
    engine = Engine(
        text=ModelText(files.name, files.tokenizer, files.chat_template, files.defaults.sampling),
        scheduler=scheduler,
        runner=runner,
        checker=checker,
        seed=config.seed,
        guard=MemoryGuard(PoolControl(scheduler, runner), budget),
    )
    fingerprint = cache(partial(read_fingerprint, config, files, spec, sizes, operations))
    engine.sessions = Sessions(kv, runner.kv_blocks, fingerprint)
    if config.disk_cache is not None:
        size_bytes = parse_bytes(config.disk_cache_size, name="disk_cache_size")
        engine.tier = open_disk_tier(Path(config.disk_cache), size_bytes, kv, runner.kv_blocks, fingerprint())
        scheduler.prefix_reader = engine.tier
    return engine


def read_fingerprint(
    config: EngineConfig, files: ModelFiles, spec: ModelSpec, sizes: KVSizes, operations: Operations
) -> Fingerprint:
    """Returns what must be equal for stored KV to be this engine's."""
    return take_fingerprint(
        source=files.source,
        spec=spec,
        tokenizer=files.tokenizer,
        weight_format=config.weights,
        layout=sizes.layout,
        groups=sizes.groups,
        instruction_set=operations.instruction_set,
    )


def build_runner(
    config: EngineConfig, spec: ModelSpec, weights: DecoderWeights, operations: Operations, sizes: KVSizes
) -> ModelRunner:
    """Allocates storage, arrays and buffers, and binds the forward pass to them."""
    storage = KVStorage(sizes.layout, sizes.num_blocks)
    step = StepArrays.allocate(
        max_tokens=config.max_num_batched_tokens,
        max_seqs=config.max_num_seqs,
        num_groups=len(sizes.groups),
        max_blocks_per_seq=-(-sizes.max_model_len // config.block_size),
    )
    buffers = DecoderBuffers.allocate(spec, config.max_num_batched_tokens)
    caches = layer_caches(sizes.groups, storage)
    bound: Forward
    if isinstance(operations, CpuOperations):
        bound = RecordedForward(operations, spec, weights, step, caches, buffers)
    else:
        bound = EagerForward(operations, spec, weights, step, caches, buffers)
    return ModelRunner(operations, spec, weights, storage, BatchArrays(step, config.block_size), buffers, bound)


def layer_caches(groups: tuple[LayerGroup, ...], storage: KVStorage) -> list[LayerCache]:
    """Returns each layer's group and its place in that group's blocks, in layer order."""
    caches = {
        layer: LayerCache(index, storage.layer(place))
        for index, group in enumerate(groups)
        for place, layer in enumerate(group.layers)
    }
    return [caches[layer] for layer in sorted(caches)]


def kv_sizes(config: EngineConfig, spec: ModelSpec, budget: MemoryBudget) -> KVSizes:
    """Returns how the KV memory is cut into blocks.

    Raises:
        CapacityError: ``kv_memory`` is less than one block of each layer group, or more than the budget leaves.
    """
    groups = group_layers(spec.windows)
    layout = KVLayout(config.kv_dtype, config.block_size, layers_per_block(groups), spec.num_kv_heads, spec.head_dim)
    max_model_len = config.max_model_len or spec.max_position
    left = budget.kv_bytes // layout.block_bytes
    kind, amount = config.kv_memory_request()
    if kind == "auto":
        num_blocks = min(left, config.max_num_seqs * len(groups) * -(-max_model_len // config.block_size))
    else:
        num_blocks = amount if kind == "blocks" else amount // layout.block_bytes
    if num_blocks > left:
        raise CapacityError(
            f"kv_memory={config.kv_memory!r} is {format_bytes(num_blocks * layout.block_bytes)}; memory={config.memory!r} leaves "
            f"{format_bytes(budget.kv_bytes)} for KV",
            hint=f'give at most kv_memory="{left} blocks", or leave it out to take that',
        )
    if num_blocks < len(groups):
        knob = "memory" if kind == "auto" else "kv_memory"
        raise CapacityError(
            f"kv_memory={config.kv_memory!r} holds {num_blocks} blocks of {layout.block_bytes} bytes; "
            f"the model needs at least {len(groups)}, one for each layer group",
            hint=f"raise {knob} by at least {(len(groups) - num_blocks) * layout.block_bytes} bytes",
        )
    return KVSizes(groups, layout, num_blocks, max_model_len)
