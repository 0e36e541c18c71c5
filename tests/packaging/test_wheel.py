"""The wheel that a user's ``pip install .`` makes: built in a path with spaces, installed, imported from there.

Building compiles the whole extension, which makes this one of the slower files of the suite.
"""

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "src", "csrc")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

# What is tested is what the wheel holds: compiling without optimisation takes a quarter of the time.
UNOPTIMISED = ("--config-settings=cmake.build-type=Debug", "--config-settings=cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy of the sources whose path has spaces in it."""
    checkout = tmp_path_factory.mktemp("a path") / "with some spaces"
    checkout.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, checkout / name)
    for built in checkout.rglob("*.so"):
        built.unlink()
    command = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", *UNOPTIMISED, "--wheel-dir", "dist", "."]
    subprocess.run(command, cwd=checkout, check=True)
    (built_wheel,) = (checkout / "dist").glob("octavo-*.whl")
    return built_wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel into a folder of its own, whose path has a space too."""
    target = tmp_path_factory.mktemp("installed here")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    return target


def run_installed(installed: Path, code: str) -> str:
    """Runs code that sees the installed wheel first, and neither torch nor transformers; returns what it prints."""
    start = f"import sys; sys.path.insert(0, {str(installed)!r}); sys.modules.update(torch=None, transformers=None)\n"
    result = subprocess.run([sys.executable, "-c", start + code], cwd=installed, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_wheel_holds_the_package_the_extension_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"octavo/errors.py", "octavo/cli/main.py"} <= set(names)
    assert [name for name in names if name.startswith("octavo/_cpu.") and name.endswith(".so")]
    assert [name for name in names if name.endswith("/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"octavo"}


def test_wheel_needs_no_test_library(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    needed = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    unconditional = {entry.split(">")[0].split("=")[0].strip() for entry in needed if "extra ==" not in entry}
    assert "numpy" in unconditional
    assert not unconditional & {"torch", "transformers", "pytest"}


def test_installed_wheel_imports_and_finds_its_kernels(installed: Path) -> None:
    printed = run_installed(installed, "import octavo, octavo._cpu; octavo.LLM; print(octavo.__file__, octavo._cpu.__file__)")
    assert printed.count(str(installed)) == 2


def test_installed_command_line_answers(installed: Path) -> None:
    version = run_installed(installed, "from octavo.cli.main import main; sys.exit(main(['--version']))")
    assert version.startswith("octavo 0.")
