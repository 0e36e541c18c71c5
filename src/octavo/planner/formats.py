"""How many bytes weights and KV elements take in each storage format.

Owns: the formats' names and sizes. Must not know: models, machines.

Invariants:
1. Sizes are whole groups: a format that stores 32 elements in 34 bytes is counted in such groups, in integers.
"""

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.kernels.kv_layout import KV_DTYPES


@dataclass(frozen=True)
class StorageFormat:
    """``group_bytes`` for every ``group_size`` elements."""

    group_size: int
    group_bytes: int

    def num_bytes(self, num_elements: int) -> int:
        """Returns the bytes that ``num_elements`` take, rounded up."""
        return -(-num_elements * self.group_bytes // self.group_size)


# What only other engines store: floating point of 8 bits, GGUF's blocks of 32, and 4 bits with a scale for every 16.
FOREIGN_KV_FORMATS = {
    "fp8": StorageFormat(1, 1),
    "q8_0": StorageFormat(32, 34),
    "q4_0": StorageFormat(32, 18),
    "nvfp4": StorageFormat(16, 9),
}
KV_FORMATS = {name: StorageFormat(1, size) for name, size in KV_DTYPES.items()} | FOREIGN_KV_FORMATS

LINEAR_PARTS = ("attention", "mlp", "experts")
ALL_MATRICES = (*LINEAR_PARTS, "embedding", "head")


@dataclass(frozen=True)
class WeightFormat:
    """A weight format and the parts of a model that it is used for; the others stay in ``rest``."""

    storage: StorageFormat
    parts: tuple[str, ...]
    rest: StorageFormat = StorageFormat(1, 2)


WEIGHT_FORMATS = {
    "fp32": WeightFormat(StorageFormat(1, 4), ALL_MATRICES, rest=StorageFormat(1, 4)),
    "bf16": WeightFormat(StorageFormat(1, 2), ALL_MATRICES),
    "fp8": WeightFormat(StorageFormat(1, 1), LINEAR_PARTS),
    "int8": WeightFormat(StorageFormat(32, 34), ALL_MATRICES),  # these two as this engine rounds weights to them
    "int4": WeightFormat(StorageFormat(32, 20), ALL_MATRICES),
    "nvfp4": WeightFormat(StorageFormat(16, 9), LINEAR_PARTS),
    "mxfp4": WeightFormat(StorageFormat(32, 17), ("experts",)),
    "q8_0": WeightFormat(StorageFormat(32, 34), ALL_MATRICES),
    "q6_k": WeightFormat(StorageFormat(256, 210), ALL_MATRICES),
    "q5_k": WeightFormat(StorageFormat(256, 176), ALL_MATRICES),
    "q4_k": WeightFormat(StorageFormat(256, 144), ALL_MATRICES),
    "q4_k_m": WeightFormat(StorageFormat(1000, 603), ALL_MATRICES),  # 4.82 bits: the mix of q4_k and q6_k that files hold
    "q4_0": WeightFormat(StorageFormat(32, 18), ALL_MATRICES),
}

# Formats that this engine neither reads nor makes.
FOREIGN_WEIGHT_FORMATS = ("fp8", "nvfp4", "mxfp4")


def kv_format(name: str) -> StorageFormat:
    """Returns a KV format by name.

    Raises:
        ConfigError: there is no such format.
    """
    if name not in KV_FORMATS:
        raise ConfigError(f"kv_dtype={name!r} is not one of {', '.join(KV_FORMATS)}")
    return KV_FORMATS[name]


def weight_format(name: str) -> WeightFormat:
    """Returns a weight format by name.

    Raises:
        ConfigError: there is no such format.
    """
    if name not in WEIGHT_FORMATS:
        raise ConfigError(f"weights={name!r} is not one of {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[name]
