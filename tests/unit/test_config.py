"""`octavo.config`: every setting is checked when the config is made."""

from dataclasses import FrozenInstanceError

import pytest

from octavo.config import EngineConfig, parse_bytes
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"), [("256MiB", 256 * 2**20), ("1.5 GB", 1_500_000_000), (4096, 4096), ("7", 7), ("2kib", 2048)]
)
def test_sizes_are_read_with_their_units(text, expected):
    assert parse_bytes(text, name="kv_memory") == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 MiBs", "1e9", True, None])
def test_a_size_of_another_form_is_refused_by_name_and_value(text):
    with pytest.raises(ConfigError, match=r"kv_memory=.* is not a size") as caught:
        parse_bytes(text, name="kv_memory")
    assert caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 17},
        {"weights": "fp8"},
        {"kv_dtype": "q4"},
        {"max_num_seqs": 0},
        {"max_num_seqs": True},
        {"max_num_seqs": 1.0},
        {"max_model_len": 0},
        {"num_threads": -1},
        {"num_threads": 100_000},
        {"max_num_seqs": 10**12, "max_num_batched_tokens": 10**12},
        {"kv_memory": "9" * 400},
        {"enable_prefix_caching": "yes"},
        {"seed": -1},
        {"kv_memory": "0"},
        {"kv_memory": "0 blocks"},
        {"kv_memory": "plenty"},
        {"max_num_seqs": 64, "max_num_batched_tokens": 63},
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(settings):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_settings(settings)
    assert any(str(value)[:40] in str(caught.value) for value in settings.values())


def test_an_unknown_setting_names_the_closest():
    with pytest.raises(ConfigError, match="did you mean kv_memory"):
        EngineConfig.from_settings({"kv_memry": "1GiB"})


def test_kv_memory_may_be_given_in_blocks():
    assert EngineConfig(kv_memory="12 blocks").kv_memory_request() == ("blocks", 12)
    assert EngineConfig(kv_memory="1MiB").kv_memory_request() == ("bytes", 2**20)
    assert EngineConfig().kv_memory_request() == ("auto", 0)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        EngineConfig().block_size = 32


@pytest.mark.parametrize("name", ["model", "chat_template"])
def test_a_name_is_a_text_or_a_path(name, tmp_path):
    assert getattr(EngineConfig.from_settings({name: tmp_path}), name) == str(tmp_path)
    for value in (3, b"name", ["name"]):
        with pytest.raises(ConfigError, match=f"{name}=.* is not a text"):
            EngineConfig.from_settings({name: value})
    with pytest.raises(ConfigError, match="model=None is not a text"):
        EngineConfig(model=None)
