"""octavo.engine.loading: what does not go together is refused before weights are read."""

from dataclasses import replace

import pytest

from engine.tiny_engine import MAX_LEN, SPEC
from octavo.config import EngineConfig
from octavo.engine.loading import check_settings, kv_sizes
from octavo.errors import CapacityError, ConfigError, UnsupportedModelError


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


def test_memory_below_one_block_is_refused() -> None:
    with pytest.raises(CapacityError):
        check_settings(EngineConfig(kv_memory="1KiB"), SPEC)


def test_more_kv_memory_than_the_machine_has_is_refused() -> None:
    with pytest.raises(CapacityError, match="this machine has") as caught:
        kv_sizes(EngineConfig(kv_memory="1000000000 blocks"), SPEC)
    assert caught.value.hint == "lower kv_memory"
