"""octavo.cli.options: every setting is an option, and only what the user gives is passed on."""

import dataclasses

import click
import pytest
from click.testing import CliRunner

from octavo.cli.options import (
    SAMPLING_FIELDS,
    field_descriptions,
    given_sampling,
    given_settings,
    sampling_options,
    settings_options,
)
from octavo.config import EngineConfig
from octavo.sampling_params import SamplingParams


def parse(*arguments: str) -> tuple[dict, dict]:
    """Returns the engine and sampling settings that a command with all options makes of ``arguments``."""
    seen: list[tuple[dict, dict]] = []
    command = click.Command(
        "try",
        callback=lambda **values: seen.append((given_settings(EngineConfig, values), given_sampling(values))),
        params=[*settings_options(EngineConfig), *sampling_options()],
    )
    command.main(list(arguments), standalone_mode=False)
    return seen[0]


def test_nothing_given_is_nothing_passed_on() -> None:
    assert parse() == ({}, {})


def test_values_arrive_with_their_types() -> None:
    engine, sampling = parse(
        *("--model", "x.gguf", "--block-size", "32", "--max-model-len", "512"),
        *("--no-enable-prefix-caching", "--kv-memory", "64 blocks"),
        *("--temperature", "0", "--top-k", "5", "--stop", "a", "--stop", "b", "--ignore-eos"),
    )
    assert engine == {
        "model": "x.gguf",
        "block_size": 32,
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "kv_memory": "64 blocks",
    }
    assert sampling == {"temperature": 0.0, "top_k": 5, "stop": ("a", "b"), "ignore_eos": True}
    EngineConfig.from_settings(engine)
    SamplingParams(**sampling)


@pytest.mark.parametrize("field", dataclasses.fields(EngineConfig), ids=lambda field: field.name)
def test_every_setting_is_an_option_with_its_description_and_default(field: dataclasses.Field) -> None:
    help_text = (
        CliRunner().invoke(click.Command("try", params=settings_options(EngineConfig)), ["--help"], terminal_width=1000).output
    )
    assert "--" + field.name.replace("_", "-") in help_text
    assert field.metadata["help"] in help_text


def test_choices_are_enforced() -> None:
    with pytest.raises(click.BadParameter, match="16"):
        parse("--block-size", "17")


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_sampling_options_say_what_the_field_documents(name: str) -> None:
    option = next(option for option in sampling_options() if option.name == name)
    described = field_descriptions(SamplingParams)[name].replace("`", "")
    assert option.help is not None
    assert described[1:] in option.help


def test_every_sampling_parameter_is_described() -> None:
    assert field_descriptions(SamplingParams).keys() == {field.name for field in dataclasses.fields(SamplingParams)}


def test_tuple_setting_may_be_given_several_times() -> None:
    @dataclasses.dataclass
    class Settings:
        names: tuple[str, ...] = dataclasses.field(default=(), metadata={"help": "Names.", "unit": "", "choices": ()})

    seen: list[dict] = []
    command = click.Command(
        "try", callback=lambda **values: seen.append(given_settings(Settings, values)), params=settings_options(Settings)
    )
    command.main(["--names", "a", "--names", "b"], standalone_mode=False)
    assert seen == [{"names": ("a", "b")}]
