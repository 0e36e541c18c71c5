"""octavo.engine.loading: what does not go together is refused before weights are read."""

from dataclasses import replace

import pytest

from engine.tiny_engine import MAX_LEN, SPEC
from octavo.config import EngineConfig
from octavo.engine.loading import check_settings, kv_sizes
from octavo.engine.memory_budget import make_budget
from octavo.errors import CapacityError, ConfigError, UnsupportedModelError
from octavo.planner.host_memory import HostMemory
from octavo.planner.load_sizes import LoadSizes

MACHINE = HostMemory(16 * 2**30, 14 * 2**30, ())


@pytest.mark.parametrize("head_dim", [24, 100, 272])
def test_head_dimension_without_a_kernel_is_refused(head_dim: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"head_dim={head_dim} "):
        check_settings(EngineConfig(kv_memory="64 blocks"), replace(SPEC, head_dim=head_dim))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
def test_head_dimension_with_a_kernel_is_accepted(head_dim: int) -> None:
    check_settings(EngineConfig(kv_memory="64 blocks"), replace(SPEC, head_dim=head_dim))


def test_length_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"max_model_len={MAX_LEN + 1} is more than the model's {MAX_LEN}"):
        check_settings(EngineConfig(kv_memory="64 blocks", max_model_len=MAX_LEN + 1), SPEC)


def sizes_of(**settings):
    config = EngineConfig(**settings)
    return kv_sizes(config, SPEC, make_budget(config, SPEC, lambda _: LoadSizes(1000, 0), MACHINE))


def test_memory_below_one_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="at least 3, one for each layer group") as caught:
        sizes_of(kv_memory="1KiB")
    assert caught.value.hint.startswith("raise kv_memory by at least")


def test_more_kv_memory_than_the_budget_leaves_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"memory='8GiB' leaves 7\.\d\d GiB for KV") as caught:
        sizes_of(memory="8GiB", kv_memory="8GiB")
    fits = caught.value.hint.partition('kv_memory="')[2].partition('"')[0]
    assert sizes_of(memory="8GiB", kv_memory=fits).num_blocks == int(fits.split()[0])


def test_kv_memory_is_all_that_the_budget_leaves_or_that_the_sequences_need() -> None:
    large = {"max_num_seqs": 4096, "max_num_batched_tokens": 4096}
    assert sizes_of(max_model_len=200, **large).num_blocks == 4096 * 3 * 13
    config = EngineConfig(memory="400MiB", **large)
    left = make_budget(config, SPEC, lambda _: LoadSizes(1000, 0), MACHINE).kv_bytes
    sizes = sizes_of(memory="400MiB", **large)
    assert 0 <= left - sizes.num_blocks * sizes.layout.block_bytes < sizes.layout.block_bytes
