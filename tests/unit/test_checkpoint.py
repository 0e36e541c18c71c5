"""`GGUFSource` and `SafetensorsSource`: what they read, and what they refuse before anything is read."""

import json
import tracemalloc

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import CheckpointError
from octavo.kernels.host_tensor import QUANTISED_ENCODINGS
from octavo.models.checkpoint import INDEX_NAME, GGUFSource, SafetensorsSource

RANDOM = np.random.default_rng(7)
TENSORS = {
    "a.weight": RANDOM.standard_normal((4, 6), dtype=np.float32),
    "b.weight": RANDOM.standard_normal((3, 5)).astype(np.float16),
    "c.bias": RANDOM.standard_normal(9, dtype=np.float32),
}


def write_raw(path, tensors: dict[str, tuple[str, list[int], bytes]], *, header_changes: dict | None = None) -> None:
    """Writes a safetensors file from dtype, shape and bytes, as the format's description says."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header | (header_changes or {})).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_shards(folder):
    """Writes the tensors into two shards with an index and returns the index as a dict."""
    shards = {"model-00001-of-00002.safetensors": ["a.weight", "b.weight"], "model-00002-of-00002.safetensors": ["c.bias"]}
    for file_name, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / file_name)
    index = {"weight_map": {name: file_name for file_name, names in shards.items() for name in names}}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    return index


def assert_holds_tensors(source):
    assert set(source.names()) == set(TENSORS)
    for name, expected in TENSORS.items():
        assert source.shape(name) == expected.shape
        tensor = source.read(name)
        assert (tensor.name, tensor.shape, tensor.data.dtype) == (name, expected.shape, expected.dtype)
        np.testing.assert_array_equal(tensor.data, expected)


def test_a_single_file_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = SafetensorsSource(tmp_path)
    assert source.naming == "hf"
    assert_holds_tensors(source)


def test_the_only_file_of_a_folder_is_read_whatever_its_name(tmp_path):
    save_file(TENSORS, tmp_path / "weights.safetensors")
    assert_holds_tensors(SafetensorsSource(tmp_path))


def test_shards_are_read_as_one(tmp_path):
    write_shards(tmp_path)
    assert_holds_tensors(SafetensorsSource(tmp_path))


def test_a_single_file_makes_the_index_beside_it_irrelevant(tmp_path):
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"gone": "gone.safetensors"}}))
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_holds_tensors(SafetensorsSource(tmp_path))


def test_bf16_keeps_its_bits(tmp_path):
    bits = np.array([[0x3F80, 0xC000], [0x7F80, 0x0001]], np.uint16)
    write_raw(tmp_path / "model.safetensors", {"w": ("BF16", [2, 2], bits.tobytes())})
    tensor = SafetensorsSource(tmp_path).read("w")
    assert tensor.encoding == "bf16"
    np.testing.assert_array_equal(tensor.data, bits)
    np.testing.assert_array_equal(tensor.to_float32()[0], [1.0, -2.0])


def test_an_unknown_tensor_is_named(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    for ask in (source.shape, source.read):
        with pytest.raises(CheckpointError, match="no tensor 'd'"):
            ask("d")


def test_a_missing_shard_is_named(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        SafetensorsSource(tmp_path)


def test_an_index_entry_without_a_tensor_is_named(tmp_path):
    index = write_shards(tmp_path)
    index["weight_map"]["d.weight"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'d\.weight'.*does not hold it"):
        SafetensorsSource(tmp_path)


def test_a_tensor_that_the_index_leaves_out_is_named(tmp_path):
    index = write_shards(tmp_path)
    del index["weight_map"]["b.weight"]
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'b\.weight'.*does not place"):
        SafetensorsSource(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path):
    write_shards(tmp_path)
    save_file({name: TENSORS[name] for name in ("b.weight", "c.bias")}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"'b\.weight' is in both"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "..", "", 3])
def test_an_index_cannot_point_out_of_its_folder(tmp_path, place):
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(CheckpointError, match="weight_map"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": 3}', "[" * 100_000, '{"weight_map": {"a": "x", "a": "y"}}'])
def test_a_damaged_index_is_refused(tmp_path, text):
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        SafetensorsSource(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="safetensors files: none"):
        SafetensorsSource(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path):
    for file_name in ("one.safetensors", "two.safetensors"):
        save_file(TENSORS, tmp_path / file_name)
    with pytest.raises(CheckpointError, match=r"one\.safetensors, two\.safetensors"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("file_name", ["model.safetensors", "x.safetensors"])
def test_a_folder_with_the_name_of_a_file_is_refused(tmp_path, file_name):
    (tmp_path / file_name).mkdir()
    with pytest.raises(CheckpointError, match="is not a file"):
        SafetensorsSource(tmp_path)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    content = path.read_bytes()
    for kept in range(len(content)):
        path.write_bytes(content[:kept])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            SafetensorsSource(tmp_path)


def test_bytes_behind_the_last_tensor_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="tensors end at byte"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "'w' has type F8_E4M3; supported: F32, F16, BF16"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}, "'w' of type F32 and shape"),
        ({"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}, "cannot fill"),
        ({"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}, "cannot fill"),
        ({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}, "cannot fill"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, "cannot fill"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "ends at byte"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "extra": 1}, None),
        ({"dtype": "F32", "shape": [1]}, "'w' is damaged"),
        ({"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}, "'w'"),
        (7, "'w' is damaged"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path, entry, message):
    write_raw(tmp_path / "model.safetensors", {"w": ("F32", [1], bytes(4))}, header_changes={"w": entry})
    if message is None:
        assert SafetensorsSource(tmp_path).shape("w") == (1,)
        return
    with pytest.raises(CheckpointError, match=message):
        SafetensorsSource(tmp_path)


def test_tensors_that_share_bytes_are_refused(tmp_path):
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    write_raw(tmp_path / "model.safetensors", {"w": ("F32", [1], bytes(4))}, header_changes={"v": entry})
    with pytest.raises(CheckpointError, match="begins at byte"):
        SafetensorsSource(tmp_path)


def test_a_header_length_beyond_the_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="a header of"):
        SafetensorsSource(tmp_path)


def write_gguf(path, tensors: dict[str, np.ndarray], kinds: dict[str, gguf.GGMLQuantizationType], **metadata: int):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_uint16(key.replace("_", "."), value)
    for name, data in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_bytes_of(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    group_size, group_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = RANDOM.integers(0, 256, (rows, columns // group_size, group_bytes), np.uint8)
    data[..., [1, 3, -1]] &= 0x3B  # keeps half-precision scales at the group's beginning or end (q6_k) finite
    return data.reshape(rows, -1)


@pytest.mark.parametrize("encoding", QUANTISED_ENCODINGS)
def test_quantised_tensors_keep_their_bytes(tmp_path, encoding):
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    data = random_bytes_of(kind, 3, 512)
    write_gguf(tmp_path / "m.gguf", {"w": data}, {"w": kind})
    source = GGUFSource(tmp_path / "m.gguf")
    tensor = source.read("w")
    assert source.naming == "gguf"
    assert (source.shape("w"), tensor.shape, tensor.encoding) == ((3, 512), (3, 512), encoding)
    np.testing.assert_array_equal(tensor.data, data)
    assert tensor.to_float32().shape == (3, 512)


def test_dense_gguf_tensors_have_their_values(tmp_path):
    write_gguf(tmp_path / "m.gguf", TENSORS, {})
    assert_holds_tensors(GGUFSource(tmp_path / "m.gguf"))
    with pytest.raises(CheckpointError, match="no tensor 'd'"):
        GGUFSource(tmp_path / "m.gguf").read("d")


def test_one_part_of_a_split_gguf_is_refused(tmp_path):
    write_gguf(tmp_path / "m.gguf", TENSORS, {}, split_count=2)
    with pytest.raises(CheckpointError, match="one of 2 files"):
        GGUFSource(tmp_path / "m.gguf")


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-60])
    with pytest.raises(CheckpointError, match=r"truncated: tensor '\w\.\w+'"):
        for name in source.names():
            source.read(name)


def test_reading_one_by_one_holds_one_tensor_at_a_time(tmp_path):
    num_bytes = 4 << 20
    save_file({f"t{i}": np.zeros(num_bytes // 4, np.float32) for i in range(8)}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    tracemalloc.start()
    try:
        for name in source.names():
            source.read(name)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1.1 * num_bytes
