"""Host tensors in every encoding, with random values."""

import gguf
import numpy as np

from octavo.kernels.host_tensor import QUANTISED_ENCODINGS, HostTensor
from octavo.kernels.rounding import bf16_bits

# Bytes of the fp16 factors at the start of a block; q6_k has its one at the end.
_NUM_LEADING_FACTORS = {"q4_k": 2, "q5_k": 2}
_ENCODED_BY_GGUF = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def dense_tensor(values: np.ndarray, encoding: str = "f32") -> HostTensor:
    """Returns ``values`` as a tensor of a dense encoding."""
    data = {"f32": lambda: values, "f16": lambda: values.astype(np.float16), "bf16": lambda: bf16_bits(values)}[encoding]()
    return HostTensor("w", values.shape, encoding, data)


def random_tensor(rng: np.random.Generator, num_outputs: int, num_inputs: int, encoding: str) -> HostTensor:
    """Returns a tensor of normal values, or of random blocks for the encodings that the gguf package only reads."""
    shape = (num_outputs, num_inputs)
    if encoding not in QUANTISED_ENCODINGS:
        return dense_tensor(rng.standard_normal(shape).astype(np.float32), encoding)
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    if encoding in _ENCODED_BY_GGUF:
        return HostTensor("w", shape, encoding, gguf.quantize(rng.standard_normal(shape).astype(np.float32), kind))
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (num_outputs, num_inputs // block_size, block_bytes), dtype=np.uint8)
    num_factors = _NUM_LEADING_FACTORS.get(encoding, 1)
    factors = (rng.standard_normal((*blocks.shape[:2], num_factors)) / 50).astype(np.float16).view(np.uint8)
    if encoding == "q6_k":
        blocks[:, :, -2:] = factors
    else:
        blocks[:, :, : 2 * num_factors] = factors
    return HostTensor("w", shape, encoding, blocks.reshape(num_outputs, -1))
