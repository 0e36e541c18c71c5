"""How many bytes a file's tensor takes once this engine has packed it.

Owns: the sizes of the engine's packed groups. Must not know: what a tensor is for.

Invariants:
1. A matrix takes what `Operations.pack_weight` with the format "auto" makes of it; anything else stays as it is in the file.
"""

from octavo.kernels.kv_layout import round_up

# Bytes of 32 weights of one output: their bits, and the scales and minima that the engine widens so that it can stream them.
PACKED_GROUP_BYTES = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q4_0": 20,
    "q4_1": 20,
    "q4_k": 24,
    "q5_0": 34,
    "q8_0": 34,
    "q5_1": 40,
    "q5_k": 40,
    "q6_k": 40,
}
GROUP_SIZE = 32
OUTPUTS_PER_PANEL = 32  # outputs are packed side by side; the last panel is filled up


def packed_bytes(encoding: str, shape: tuple[int, ...], num_bytes: int) -> int:
    """Returns the bytes of a tensor in memory.

    Args:
        encoding: as in the file.
        shape: outermost first.
        num_bytes: its length in the file.
    """
    if len(shape) != 2 or encoding not in PACKED_GROUP_BYTES:
        return num_bytes
    num_groups = round_up(shape[1], GROUP_SIZE) // GROUP_SIZE
    return round_up(shape[0], OUTPUTS_PER_PANEL) * num_groups * PACKED_GROUP_BYTES[encoding]
