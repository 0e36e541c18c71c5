"""`read_gguf_header` against files that the `gguf` package writes, and against damaged ones."""

import struct

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.host_tensor import DENSE_DTYPES, QUANTISED_ENCODINGS
from octavo.models.gguf_header import TENSOR_TYPES, read_gguf_header

WORDS = ["a", "", "naïve", "日本", "x" * 5000]


@pytest.fixture
def path(tmp_path):
    """A GGUF file with metadata of every type and two tensors."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_int8("small", -3)
    writer.add_uint64("large", 2**63)
    writer.add_float32("real", 0.5)
    writer.add_float64("double", 1e300)
    writer.add_bool("yes", True)
    writer.add_string("text", "día")
    writer.add_array("words", WORDS)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("half", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def patched(path, old: bytes, new: bytes):
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def test_metadata_have_their_values_and_types(path):
    metadata = read_gguf_header(path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 7
    assert (metadata["small"], metadata["large"]) == (-3, 2**63)
    assert (metadata["real"], metadata["double"]) == (0.5, 1e300)
    assert metadata["yes"] is True
    assert metadata["text"] == "día"
    assert metadata["words"] == WORDS
    assert metadata["numbers"].tolist() == [1, -2, 3]


def test_strings_across_the_read_ahead_border(path, monkeypatch):
    monkeypatch.setattr("octavo.models.gguf_header.READ_AHEAD_BYTES", 7)
    assert read_gguf_header(path).metadata["words"] == WORDS


def test_tensors_are_placed_where_the_file_has_them(path):
    tensors = read_gguf_header(path).tensors
    entry = tensors["matrix"]
    assert (entry.shape, entry.encoding, entry.num_bytes) == ((3, 4), "f32", 48)
    content = path.read_bytes()[entry.offset : entry.offset + entry.num_bytes]
    assert np.frombuffer(content, np.float32).tolist() == list(range(12))
    assert (tensors["half"].shape, tensors["half"].encoding) == ((5,), "f16")


def test_tensor_types_agree_with_the_gguf_package():
    for number, (encoding, group_size, group_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name.lower() == encoding
        assert gguf.GGML_QUANT_SIZES[kind] == (group_size, group_bytes)
    assert {encoding for encoding, _, _ in TENSOR_TYPES.values()} == {*DENSE_DTYPES, *QUANTISED_ENCODINGS}


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 24, 60, 200, 400, -40])
def test_a_truncated_file_is_refused(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        read_gguf_header(path)


def test_every_truncation_of_the_header_is_refused(path):
    content = path.read_bytes()
    for kept in range(0, len(content), 97):
        path.write_bytes(content[:kept])
        with pytest.raises(CheckpointError):
            read_gguf_header(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF", b"GGML", "not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", b"GGUF\x01\x00\x00\x00", "version 1"),
        (b"GGUF\x03\x00\x00\x00", b"GGUF\x00\x00\x00\x03", "little-endian"),
        (string("text"), struct.pack("<Q", 2**40) + b"text", "truncated"),
        (string("text") + b"\x08", string("text") + b"\x63", "metadata type 99"),
        (string("words") + struct.pack("<IIQ", 9, 8, 5), string("words") + struct.pack("<IIQ", 9, 8, 2**60), "truncated"),
        (string("numbers") + struct.pack("<IIQ", 9, 5, 3), string("numbers") + struct.pack("<IIQ", 9, 5, 2**62), "truncated"),
        (
            string("numbers") + struct.pack("<IIQ", 9, 5, 3),
            string("numbers") + struct.pack("<IIQ", 9, 9, 3),
            "array of metadata type 9",
        ),
        (string("yes"), struct.pack("<Q", 3) + b"y\xff\xff", "UTF-8"),
        (string("matrix") + struct.pack("<I", 2), string("matrix") + struct.pack("<I", 9), "'matrix' has 9 dimensions"),
        (
            string("matrix") + struct.pack("<IQ", 2, 4),
            string("matrix") + struct.pack("<IQ", 2, 2**62),
            "'matrix' has .* ends behind",
        ),
        (string("matrix") + struct.pack("<IQQI", 2, 4, 3, 0), string("matrix") + struct.pack("<IQQI", 2, 4, 3, 20), "IQ4_NL"),
        (
            string("matrix") + struct.pack("<IQQI", 2, 4, 3, 0),
            string("matrix") + struct.pack("<IQQI", 2, 4, 3, 8),
            "multiples of 32",
        ),
        (string("half") + struct.pack("<IQIQ", 1, 5, 1, 64), string("half") + struct.pack("<IQIQ", 1, 5, 1, 0), "overlaps"),
        (string("half") + struct.pack("<IQIQ", 1, 5, 1, 64), string("half") + struct.pack("<IQIQ", 1, 5, 1, 65), "not aligned"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(path, old, new, message):
    with pytest.raises(CheckpointError, match=message):
        read_gguf_header(patched(path, old, new))


def test_a_name_that_appears_twice_is_refused(tmp_path):
    path = tmp_path / "twice.gguf"
    pair = string("key") + struct.pack("<II", 4, 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair + pair)
    with pytest.raises(CheckpointError, match="'key' appears twice"):
        read_gguf_header(path)
    tensor = string("t") + struct.pack("<IQIQ", 1, 4, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensor + tensor + bytes(200))
    with pytest.raises(CheckpointError, match="'t' appears twice"):
        read_gguf_header(path)


def test_absurd_counts_neither_hang_nor_allocate(tmp_path):
    path = tmp_path / "counts.gguf"
    for counts in ((2**63, 0), (0, 2**63), (2**64 - 1, 2**64 - 1)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(64))
        with pytest.raises(CheckpointError):
            read_gguf_header(path)


@pytest.mark.parametrize("alignment", [0, 12, -32])
def test_an_impossible_alignment_is_refused(tmp_path, alignment):
    path = tmp_path / "alignment.gguf"
    pair = string("general.alignment") + struct.pack("<Ii", 5, alignment)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(64))
    with pytest.raises(CheckpointError, match="alignment"):
        read_gguf_header(path)
