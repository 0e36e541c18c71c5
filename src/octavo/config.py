"""The engine's settings: one frozen object, validated when it is made.

Owns: how a setting is declared and checked; every engine setting's name, unit, default, allowed values and one-line description, of
which the command line and the reference documentation are made. Must not know: what the settings lead to.

Invariants:
1. An `EngineConfig` that exists is valid in itself; what depends on the model is checked when the model is known.
"""

import os
import re
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from typing import Any

from octavo.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
WEIGHT_FORMATS = ("auto", "fp32", "bf16", "int8", "int4")
MAX_THREADS = 1024
MAX_STEP_TOKENS = 65_536  # the arrays and activations of a step are allocated in full
MAX_BYTES = 2**60
KV_DTYPES = ("fp32", "fp16", "bf16", "int8")
KV_CHECKS = ("off", "sample", "all")
BLOCK_SIZES = (16, 32, 64, 128)

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(value: int | str, *, name: str) -> int:
    """Reads a number of bytes such as ``268435456``, ``"256MiB"`` or ``"1.5 GB"``.

    Args:
        value: the number, or a string of a number and a unit of B, kB, MB, GB, KiB, MiB or GiB.
        name: the setting's name, for the message.

    Raises:
        ConfigError: the value is not of that form.
    """
    match = _SIZE.fullmatch(str(value))
    if isinstance(value, bool) or match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{name}={value!r} is not a size in bytes", hint=f'write for example {name}="256MiB"')
    size = Decimal(match[1]) * _UNITS[match[2].lower()]
    if size > MAX_BYTES:
        raise ConfigError(f"{name}={str(value)[:40]!r} is more than any machine has")
    return int(size)


def parse_share(value: int | str, *, name: str) -> tuple[str, int]:
    """Reads a share of a machine's memory.

    Returns:
        ("auto", 0), ("bytes", n), or ("percent", p) with p from 1 to 100.

    Raises:
        ConfigError: the value is none of these, or nothing.
    """
    if value == "auto":
        return "auto", 0
    percent = re.fullmatch(r"\s*(\d{1,3})\s*%\s*", str(value))
    if percent is not None and not 1 <= int(percent[1]) <= 100:
        raise ConfigError(f"{name}={value!r} is not between 1% and 100%")
    return ("percent", int(percent[1])) if percent else ("bytes", parse_bytes(value, name=name))


def setting(
    default: Any,
    help_text: str,
    *,
    unit: str = "",
    choices: tuple = (),
    minimum: int | None = None,
    maximum: int | None = None,
) -> Any:
    """Declares a field of a settings class: its default, what it is, its unit and its allowed values."""
    metadata = {"help": help_text, "unit": unit, "choices": choices, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata)


def check_fields(settings: Any) -> None:
    """Checks every field of a settings object against what `setting` declared.

    Raises:
        ConfigError: a field has a value that it cannot have.
    """
    for item in fields(settings):
        _check_field(item.name, getattr(settings, item.name), item.metadata, item.type)


def _check_field(name: str, value: Any, metadata: Any, declared: Any) -> None:
    choices, minimum = metadata["choices"], metadata["minimum"]
    if choices and value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(str, choices))}")
    if "bool" in str(declared) and not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is not true or false")
    if declared in (str, str | None) and not isinstance(value, str) and (value is not None or declared is str):
        raise ConfigError(f"{name}={value!r} is not a text")
    if minimum is None or (value is None and "None" in str(declared)):
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name}={value!r} is not a whole number of at least {minimum}")
    maximum = metadata["maximum"]
    if maximum is not None and value > maximum:
        raise ConfigError(f"{name}={value!r} is more than {maximum}, the most that is allowed")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All settings of one engine. Each field's metadata holds its description, unit and allowed values."""

    model: str = setting(DEFAULT_MODEL, "Alias, directory, .gguf file or hub id of the model.")
    weights: str = setting(
        "auto",
        "Format in which weights are held; auto keeps what the file holds, except that F16 becomes bf16.",
        choices=WEIGHT_FORMATS,
    )
    kv_dtype: str = setting("bf16", "Format in which K and V are held.", choices=KV_DTYPES)
    memory: str | int = setting(
        "auto",
        'Budget for weights, KV, workspace and the process itself: "12GiB", "60%" of the machine, or auto: what is available '
        "when the engine starts less memory_reserve.",
        unit="bytes",
    )
    memory_reserve: str | int = setting(
        "auto",
        'Memory that is left to everybody else, at the start and later: "4GiB", "10%" of the machine, or auto: the larger of '
        "2 GiB and 6 %.",
        unit="bytes",
    )
    kv_memory: str | int = setting(
        "auto",
        'Cap on the KV blocks, "256MiB" or "64 blocks"; it has to fit in what memory leaves beside weights, workspace and '
        "process. auto takes all of that, up to what max_num_seqs sequences of full length need.",
        unit="bytes",
    )
    kv_check: str = setting(
        "off",
        "Check K and V in memory: poison free blocks and compare checksums of full ones before they are read, of some of them "
        "or of all. A difference ends the engine.",
        choices=KV_CHECKS,
    )
    block_size: int = setting(16, "Tokens per KV block.", unit="tokens", choices=BLOCK_SIZES)
    max_model_len: int | None = setting(
        None, "Most tokens of one sequence, prompt and answer; the model's own limit if not given.", unit="tokens", minimum=1
    )
    max_num_seqs: int = setting(256, "Most sequences that run at once.", unit="sequences", minimum=1, maximum=MAX_STEP_TOKENS)
    max_num_batched_tokens: int = setting(
        512, "Token budget: most tokens computed in one step.", unit="tokens", minimum=1, maximum=MAX_STEP_TOKENS
    )
    num_threads: int | None = setting(
        None,
        "Threads that compute; one per core this process may use if not given.",
        unit="threads",
        minimum=1,
        maximum=MAX_THREADS,
    )
    enable_prefix_caching: bool = setting(True, "Keep finished sequences' blocks and reuse them for equal prefixes.")
    disk_cache: str | None = setting(
        None, "Directory to which evicted KV blocks go, and from which they come back; none if not given."
    )
    disk_cache_size: str | int = setting(
        "8GiB", 'Most bytes of KV blocks of one model in that directory, e.g. "20GiB".', unit="bytes"
    )
    pin_percent: int = setting(25, "Most of the KV blocks that pinned prefixes may hold.", unit="percent", minimum=0, maximum=100)
    salt_percent: int = setting(
        100, "Most of the KV blocks that may be cached for one cache salt.", unit="percent", minimum=0, maximum=100
    )
    seed: int | None = setting(None, "Seed of requests that bring none; a fresh one each if not given.", minimum=0)
    chat_template: str | None = setting(None, "File with a Jinja chat template to use instead of the model's own.")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}",
                hint="a step must have room for one token of each running sequence: lower max_num_seqs",
            )
        self.kv_memory_request()
        if parse_share(self.memory, name="memory") == ("bytes", 0):
            raise ConfigError(f"memory={self.memory!r} leaves no room for anything")
        parse_share(self.memory_reserve, name="memory_reserve")
        parse_bytes(self.disk_cache_size, name="disk_cache_size")
        if self.disk_cache is not None and not self.enable_prefix_caching:
            raise ConfigError("disk_cache needs enable_prefix_caching: what is not cached is not kept on disk either")

    def kv_memory_request(self) -> tuple[str, int]:
        """Returns ("auto", 0), ("bytes", n) or ("blocks", n), as `kv_memory` asks.

        Raises:
            ConfigError: it is none of these, or zero.
        """
        if self.kv_memory == "auto":
            return "auto", 0
        blocks = re.fullmatch(r"\s*(\d+)\s*blocks?\s*", str(self.kv_memory))
        kind, amount = ("blocks", int(blocks[1])) if blocks else ("bytes", parse_bytes(self.kv_memory, name="kv_memory"))
        if amount == 0:
            raise ConfigError(f"kv_memory={self.kv_memory!r} leaves no room for a single KV block")
        return kind, amount

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "EngineConfig":
        """Makes a config from names and values, naming the closest setting when one is unknown.

        Raises:
            ConfigError: a name is unknown or a value not allowed.
        """
        known = {item.name: item.default for item in fields(cls) if item.default is not MISSING}
        for name in settings:
            if name not in known:
                from difflib import get_close_matches

                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(known)}"
                raise ConfigError(f"there is no setting {name!r}", hint=hint)
        return cls(**{name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()})
