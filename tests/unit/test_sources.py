"""What a user may call a model, and what each name leads to."""

import json
import subprocess
import sys

import pytest

from octavo.errors import CheckpointError, ConfigError
from octavo.models import sources
from octavo.models.packaged_models import PACKAGED_MODELS
from octavo.models.sources import cached_snapshot, fetch_snapshot, pull_model, resolve_model


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def write_snapshot(hub_cache, *files: str, weight_map: dict | None = None):
    repository = hub_cache / "models--org--name"
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    for file_name in files:
        (snapshot / file_name).write_text("{}")
    if weight_map is not None:
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return snapshot


def refuse_network(*_):
    raise AssertionError("the network was asked")


def test_a_gguf_file_is_itself(tmp_path):
    path = tmp_path / "some.model.gguf"
    path.touch()
    resolved = resolve_model(str(path))
    assert (resolved.name, resolved.path, resolved.is_gguf) == ("some.model", path, True)


def test_a_folder_is_itself(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "extra.gguf").touch()
    resolved = resolve_model(str(tmp_path))
    assert (resolved.name, resolved.path, resolved.is_gguf) == (tmp_path.name, tmp_path, False)


def test_a_folder_with_only_a_gguf_file_is_that_file(tmp_path):
    (tmp_path / "model.gguf").touch()
    assert resolve_model(str(tmp_path)).path == tmp_path / "model.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ConfigError, match=r"model\.gguf, other\.gguf"):
        resolve_model(str(tmp_path))


def test_an_alias_leads_to_its_packaged_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "packaged_model_path", lambda model: tmp_path / model.file_name)
    resolved = resolve_model("smollm2-135m")
    assert (resolved.name, resolved.path.name, resolved.is_gguf) == ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf", True)


def test_an_alias_in_the_cache_needs_neither_pip_nor_network_modules(tmp_path):
    model = PACKAGED_MODELS["smollm2-135m"]
    (tmp_path / "models").mkdir()
    with open(tmp_path / "models" / model.file_name, "wb") as file:
        file.truncate(model.num_bytes)
    code = (
        "import sys, subprocess; subprocess.run = subprocess.Popen = None\n"
        "from octavo.models.sources import resolve_model; resolve_model('smollm2-135m')\n"
        "print(*{'pip', 'httpx', 'huggingface_hub', 'requests', 'ssl', 'jinja2', 'tokenizers', 'gguf'} & set(sys.modules))"
    )
    environment = {"OCTAVO_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("smollm2-135", "did you mean smollm2-135m"),
        ("no such thing", "smollm2-135m, gemma3-270m"),
        ("missing/model.gguf", "hub id"),
        ("/missing/folder", "hub id"),
        ("../a/b", "hub id"),
    ],
)
def test_an_unknown_model_is_refused_with_a_hint(model, hint, hub_cache):
    with pytest.raises(ConfigError, match="neither a file, a folder, a hub id nor a known alias") as caught:
        resolve_model(model)
    assert hint in caught.value.hint


COMPLETE = ("config.json", "tokenizer.json", "model.safetensors")


def test_a_complete_snapshot_is_used_without_the_network(hub_cache, monkeypatch):
    snapshot = write_snapshot(hub_cache, *COMPLETE)
    monkeypatch.setattr(sources, "fetch_snapshot", refuse_network)
    resolved = resolve_model("org/name")
    assert (resolved.name, resolved.path, resolved.is_gguf) == ("org/name", snapshot, False)


@pytest.mark.parametrize("missing", COMPLETE)
def test_an_incomplete_snapshot_is_not_used(hub_cache, missing):
    write_snapshot(hub_cache, *(name for name in COMPLETE if name != missing))
    assert cached_snapshot("org/name") is None


def test_a_snapshot_lacking_a_shard_is_not_used(hub_cache):
    snapshot = write_snapshot(
        hub_cache, "config.json", "tokenizer.json", "1.safetensors", weight_map={"a": "1.safetensors", "b": "2.safetensors"}
    )
    assert cached_snapshot("org/name") is None
    (snapshot / "2.safetensors").touch()
    assert cached_snapshot("org/name") == snapshot


def test_the_library_s_own_cache_layout_is_understood(hub_cache):
    """The layout is read without the library; it must lead to where the library itself finds the file."""
    from huggingface_hub import try_to_load_from_cache

    snapshot = write_snapshot(hub_cache, *COMPLETE)
    assert try_to_load_from_cache("org/name", "config.json", cache_dir=hub_cache) == str(snapshot / "config.json")


def test_pulling_asks_for_the_newest_files_of_a_hub_model_only(hub_cache, tmp_path, monkeypatch):
    write_snapshot(hub_cache, *COMPLETE)
    monkeypatch.setattr(sources, "fetch_snapshot", lambda hub_id: tmp_path / hub_id)
    assert pull_model("org/name").path == tmp_path / "org/name"
    (tmp_path / "m.gguf").touch()
    assert pull_model(str(tmp_path / "m.gguf")).path == tmp_path / "m.gguf"


def test_the_hub_s_answers_become_checkpoint_errors(hub_cache, tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def answer(outcome):
        def snapshot_download(hub_id, *, allow_patterns):
            assert hub_id == "org/name"
            assert "*.safetensors" in allow_patterns
            if isinstance(outcome, Exception):
                raise outcome
            return str(outcome)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    answer(LocalEntryNotFoundError("offline"))
    with pytest.raises(CheckpointError, match="cannot be reached"):
        fetch_snapshot("org/name")
    answer(OSError("disk full\nmore"))
    with pytest.raises(CheckpointError, match="org/name cannot be fetched from the model hub: disk full"):
        fetch_snapshot("org/name")
    answer(tmp_path)
    with pytest.raises(CheckpointError, match="no safetensors files"):
        fetch_snapshot("org/name")
    (tmp_path / "model.safetensors").touch()
    assert fetch_snapshot("org/name") == tmp_path


def test_a_folder_without_a_model_is_refused(tmp_path):
    for find in (resolve_model, pull_model):
        with pytest.raises(CheckpointError, match="folder without a model"):
            find(f"{tmp_path}/../{tmp_path.name}")
