"""The documents name files, functions and commands that exist."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("docs/**/*.md")])
SUFFIXES = "py|cpp|h|md|txt"
LINE_LIMITS = {"README.md": 150, "ARCHITECTURE.md": 250}


def references(document: Path, pattern: str) -> Iterator[tuple[str, ...]]:
    """Yields the groups of every match of ``pattern`` in a document."""
    for match in re.finditer(pattern, document.read_text(encoding="utf-8")):
        yield match.groups(default="")


def resolve(name: str, document: Path) -> Path | None:
    """Returns the file that a document means by ``name``: seen from the root, the package, or the document's folder."""
    places = (ROOT / name, ROOT / "src" / "octavo" / name, ROOT / "csrc" / name, document.parent / name)
    return next((place for place in places if place.exists()), None)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_and_functions_exist(document: Path) -> None:
    missing = []
    for name, member in references(document, rf"`([\w./-]+\.(?:{SUFFIXES}))(?::([\w.]+))?`"):
        path = resolve(name, document)
        last = member.rsplit(".", 1)[-1]
        if path is None or (last and not re.search(rf"\b{last}\b", path.read_text(encoding="utf-8"))):
            missing.append(f"{name}:{member}" if member else name)
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = [target for (target,) in references(document, r"\]\(([^)#\s]+)") if "://" not in target]
    assert not [target for target in targets if not (document.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert not {target for (target,) in references(document, r"`make ([a-z-]+)")} - targets


@pytest.mark.parametrize(("name", "limit"), LINE_LIMITS.items())
def test_document_is_not_longer_than_a_reader_has_patience_for(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= limit


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_compile(document: Path) -> None:
    for (code,) in references(document, r"```python\n(.*?)```".replace(".*?", r"[\s\S]*?")):
        compile(code, str(document), "exec")


@pytest.mark.parametrize("name", ["generate_reference.py", "generate_guides.py", "generate_pictures.py"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    script = ROOT / "docs" / name
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
