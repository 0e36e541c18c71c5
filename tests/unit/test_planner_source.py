"""octavo.planner.model_source and hub_headers: headers are read wherever they are, and weights are not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest

from octavo.errors import CheckpointError, ConfigError
from octavo.planner import hub_headers
from octavo.planner.hub_headers import parse_gguf_start, read_hub_gguf
from octavo.planner.model_source import describe_model, read_tensor_lengths
from octavo.planner.shipped_models import shipped_models

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def write_safetensors(path: Path, lengths: dict[str, int], *, dtype: str = "F8_E4M3") -> None:
    header, end = {}, 0
    for name, length in lengths.items():
        header[name] = {"dtype": dtype, "shape": [length], "data_offsets": [end, end + length]}
        end += length
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)  # the header alone: nothing else is to be read


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """Returns a GGUF file of one tiny layer."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 128),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_vocab_size, 64),
    ):
        add(value)
    writer.add_tensor("token_embd.weight", np.zeros((64, 64), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_folder_with_several_files_of_any_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    write_safetensors(tmp_path / "a.safetensors", {"x": 100, "y": 28})
    write_safetensors(tmp_path / "b.safetensors", {"z": 7})
    assert describe_model(str(tmp_path)).tensors == {"x": 100, "y": 28, "z": 7}
    assert describe_model(str(tmp_path / "b.safetensors")).tensors == {"x": 100, "y": 28, "z": 7}


def test_config_alone_has_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert describe_model(str(tmp_path)).tensors is None
    assert describe_model(str(tmp_path / "config.json")).spec.engine_spec is not None


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        describe_model(str(tmp_path))


def test_gguf_file_and_its_folder(gguf_file: Path) -> None:
    described = describe_model(str(gguf_file))
    assert described.tensors == {"token_embd.weight": 64 * 64 * 4, "output_norm.weight": 256}
    assert [kind.elements for kind in described.spec.attention] == [2 * 2 * 16]
    assert describe_model(str(gguf_file.parent)) == described


@pytest.mark.parametrize("content", [b"\xff" * 64, b"\x05\0\0\0\0\0\0\0{]}{}", b'\x10\0\0\0\0\0\0\0{"x": {"a": 1} }  '])
def test_damaged_safetensors_header_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_tensor_lengths(path)


def test_unknown_name_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="--list"):
        describe_model("lama-3")


def test_start_of_a_gguf_file_is_enough(gguf_file: Path) -> None:
    whole = gguf_file.read_bytes()
    header = parse_gguf_start(whole[:-1000], len(whole))
    assert header.tensors["token_embd.weight"].num_bytes == 64 * 64 * 4


def test_range_that_ends_inside_the_header_is_not_believed(gguf_file: Path) -> None:
    whole = gguf_file.read_bytes()
    with pytest.raises(CheckpointError):
        parse_gguf_start(whole[:100], len(whole))


def test_hub_gguf_is_read_in_growing_ranges(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, reads = gguf_file.read_bytes(), []

    class File(BytesIO):
        size = len(whole)

        def read(self, num_bytes: int | None = -1) -> bytes:
            reads.append(num_bytes)
            return super().read(num_bytes)

    class FileSystem:
        @contextmanager
        def open(self, name: str, mode: str, *, block_size: int) -> Iterator[File]:
            assert (name, mode) == ("org/name/tiny.gguf", "rb")
            yield File(whole)

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", FileSystem)
    monkeypatch.setattr(hub_headers, "FIRST_RANGE_BYTES", 256)
    header = read_hub_gguf("org/name/tiny.gguf")
    assert set(header.tensors) == {"token_embd.weight", "output_norm.weight"}
    assert reads[0] == 256 and sum(reads) < 2 * len(whole)


def test_hub_model_is_read_from_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    file = SimpleNamespace(tensors={"x": SimpleNamespace(data_offsets=(10, 110))})
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _id, name: str(tmp_path / name))
    monkeypatch.setattr(
        huggingface_hub, "get_safetensors_metadata", lambda _id: SimpleNamespace(files_metadata={"model.safetensors": file})
    )
    assert describe_model("org/name").tensors == {"x": 100}


def test_hub_that_cannot_be_reached_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def fail(*_: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(CheckpointError, match="org/name cannot be read from the model hub: no route"):
        describe_model("org/name")


def test_shipped_name_is_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert all(describe_model(name).tensors is None for name in shipped_models())
