"""`octavo.engine.memory_budget`: one budget for everything, and what to change when it is too small."""

import math
from dataclasses import replace

import pytest

from engine.tiny_engine import SPEC, RandomSource
from octavo.config import EngineConfig
from octavo.engine.memory_budget import make_budget, reserve_bytes
from octavo.errors import CapacityError, ConfigError
from octavo.kernels.cpu import CpuOperations
from octavo.models.gguf_header import TensorEntry
from octavo.models.weights import load_weights
from octavo.planner.host_memory import HostMemory, MemoryStep, default_reserve, read_host_memory
from octavo.planner.load_sizes import LoadSizes, load_sizes
from octavo.planner.process_memory import process_bytes

MIB, GIB = 2**20, 2**30
STEPS = (MemoryStep("MemAvailable 14.00 GiB", 14 * GIB, "free memory and caches that can be dropped"),)
MACHINE = HostMemory(16 * GIB, 14 * GIB, STEPS)
FORMAT_BYTES = {"auto": 8 * GIB, "int8": 4 * GIB, "int4": 2 * GIB}


def sizes_in(weights: str) -> LoadSizes:
    return LoadSizes(FORMAT_BYTES[weights], 100 * MIB)


def budget_of(machine: HostMemory = MACHINE, **settings):
    return make_budget(EngineConfig(**settings), SPEC, sizes_in, machine)


def test_auto_takes_what_is_available_less_the_reserve() -> None:
    budget = budget_of()
    assert (budget.available_bytes, budget.reserve_bytes, budget.budget_bytes) == (14 * GIB, 2 * GIB, 12 * GIB)
    assert budget.kv_bytes == 12 * GIB - 8 * GIB - process_bytes(SPEC.vocab_size) - budget.workspace_bytes


@pytest.mark.parametrize(
    ("memory", "expected"), [("9GiB", 9 * GIB), (9 * GIB, 9 * GIB), ("75%", 12 * GIB), (" 60 % ", 16 * GIB * 60 // 100)]
)
def test_budget_can_be_a_size_or_a_share_of_the_machine(memory: str | int, expected: int) -> None:
    assert budget_of(memory=memory).budget_bytes == expected


def test_what_others_use_is_measured() -> None:
    busy = HostMemory(16 * GIB, 11 * GIB, STEPS)
    assert budget_of(busy).budget_bytes == 9 * GIB
    assert budget_of(busy, memory="50%", weights="int8").budget_bytes == budget_of(memory="50%", weights="int8").budget_bytes


@pytest.mark.parametrize(("total", "expected"), [(8 * GIB, 2 * GIB), (100 * GIB, 6 * GIB)])
def test_default_reserve_is_two_gib_or_six_percent(total: int, expected: int) -> None:
    assert default_reserve(total) == expected == reserve_bytes(EngineConfig(), total)


@pytest.mark.parametrize(("reserve", "expected"), [("512MiB", 512 * MIB), ("25%", 4 * GIB), (0, 0)])
def test_reserve_can_be_set(reserve: str | int, expected: int) -> None:
    budget = budget_of(memory_reserve=reserve)
    assert (budget.reserve_bytes, budget.budget_bytes) == (expected, 14 * GIB - expected)


@pytest.mark.parametrize("memory", ["13GiB", "90%", "15GiB"])
def test_more_than_is_available_beside_the_reserve_is_refused(memory: str) -> None:
    with pytest.raises(
        ConfigError, match=f"memory='{memory}' is 1.*has 12.00 GiB available now beside the reserve of 2.00 GiB"
    ) as caught:
        budget_of(memory=memory)
    assert 'memory="12288MiB"' in caught.value.hint
    assert budget_of(memory="12288MiB").budget_bytes == 12 * GIB


@pytest.mark.parametrize("value", ["0%", "101%", "lots", "-1GiB", "1.5%"])
def test_what_is_no_size_is_refused(value: str) -> None:
    for name in ("memory", "memory_reserve"):
        with pytest.raises(ConfigError, match=name):
            EngineConfig(**{name: value})
    with pytest.raises(ConfigError, match="no room"):
        EngineConfig(memory=0)


def test_model_that_does_not_fit_is_refused_with_settings_that_do() -> None:
    with pytest.raises(CapacityError, match=r"weights 8\.00 GiB.*memory='4GiB' is 4\.00 GiB") as caught:
        budget_of(memory="4GiB")
    assert "weights='int4'" in caught.value.hint and 'memory="' in caught.value.hint
    assert budget_of(memory="4GiB", weights="int4").kv_bytes > 0
    larger = caught.value.hint.partition('memory="')[2].partition('"')[0]
    assert budget_of(memory=larger).kv_bytes > 0


def test_reserve_is_suggested_where_it_is_what_stands_in_the_way() -> None:
    tight = HostMemory(16 * GIB, 9 * GIB, STEPS)
    with pytest.raises(CapacityError) as caught:
        budget_of(tight)
    lower = caught.value.hint.partition('memory_reserve="')[2].partition('"')[0]
    assert budget_of(tight, memory_reserve=lower).kv_bytes > 0


def test_smaller_steps_are_suggested_where_the_workspace_is_too_large() -> None:
    wide = replace(SPEC, intermediate_size=2**20)
    with pytest.raises(CapacityError) as caught:
        make_budget(EngineConfig(memory="9GiB"), wide, sizes_in, MACHINE)
    assert "max_num_batched_tokens=" in caught.value.hint
    tokens = int(caught.value.hint.partition("max_num_batched_tokens=")[2].split()[0])
    config = EngineConfig(memory="9GiB", max_num_batched_tokens=tokens, max_num_seqs=tokens)
    assert make_budget(config, wide, sizes_in, MACHINE).kv_bytes > 0


def test_nothing_is_suggested_where_nothing_helps() -> None:
    with pytest.raises(CapacityError) as caught:
        budget_of(HostMemory(4 * GIB, GIB, STEPS))
    assert "smaller model" in caught.value.hint


def test_peak_while_loading_has_to_fit() -> None:
    with pytest.raises(CapacityError, match="at its peak while loading"):
        make_budget(EngineConfig(), SPEC, lambda _: LoadSizes(8 * GIB, 5 * GIB), MACHINE)


def test_every_subtraction_is_told() -> None:
    lines = list(budget_of(memory_reserve="1GiB").lines())
    assert lines[0] == "MemAvailable 14.00 GiB: free memory and caches that can be dropped"
    assert lines[1] == "reserve 1.00 GiB: left to everybody else (memory_reserve)"
    assert lines[2].startswith("budget 13.00 GiB: weights 8.00 GiB, workspace ")


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_seqs": 3, "max_num_batched_tokens": 40, "block_size": 32, "max_model_len": 100}]
)
def test_workspace_is_what_a_runner_takes(models, settings: dict) -> None:
    config = EngineConfig(**{"max_num_seqs": 16, "max_num_batched_tokens": 64} | settings)
    engine = models.engine(**settings)
    budget = make_budget(config, SPEC, lambda _: LoadSizes(GIB, 0), read_host_memory())
    assert budget.workspace_bytes == engine.stats().workspace_bytes


class DescribedSource(RandomSource):
    """A source that knows what a file's header would say."""

    def entry(self, name: str) -> TensorEntry:
        shape = self.shape(name)
        return TensorEntry(shape, "f32", 0, 4 * math.prod(shape))


@pytest.mark.parametrize("weights", ["auto", "fp32", "bf16", "int8", "int4"])
def test_sizes_from_headers_are_those_of_the_packed_weights(weights: str) -> None:
    source = DescribedSource(SPEC, 3)
    sizes = load_sizes(SPEC, source, weights)
    vectors = sum(source.entry(name).num_bytes for name in source.names() if len(source.shape(name)) == 1)
    assert sizes.weight_bytes == load_weights(SPEC, source, CpuOperations(1), weights).num_bytes + vectors
    assert sizes.unpacked_bytes == 4 * SPEC.vocab_size * SPEC.hidden_size
