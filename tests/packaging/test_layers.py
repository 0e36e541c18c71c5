"""The layering of ARCHITECTURE.md: a module imports only from strictly lower layers or from its own folder."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "octavo"
LAYERS = {
    "errors": -1,  # everybody may raise them
    **dict.fromkeys(("config", "sampling_params", "outputs"), 0),
    **dict.fromkeys(("memory", "kernels"), 1),
    **dict.fromkeys(("scheduler", "models"), 2),
    **dict.fromkeys(("planner", "simulator", "runner", "tiers"), 3),
    "engine": 4,
    **dict.fromkeys(("llm", "server", "comparison"), 5),
    "cli": 6,
}
TENSOR_FREE = ("memory", "scheduler")
TENSOR_LIBRARIES = {"numpy", "torch", "triton"}
TEST_ONLY_LIBRARIES = {"torch", "transformers"}
ROOT_MODULES = ("__init__", "__main__")  # they hand out names of every layer
MODULES = sorted(SOURCE.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Yields the absolute name of everything that a module imports, lazily or for types alone included."""
    package = ["octavo", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{target}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_imports_only_from_lower_layers(path: Path) -> None:
    own = part_of(path)
    if own in ROOT_MODULES:
        return
    targets = [name.split(".") for name in imported_modules(path)]
    parts = {target[1] for target in targets if target[0] == "octavo" and len(target) > 1 and target[1] in LAYERS}
    too_high = {part for part in parts - {own} if LAYERS[part] >= LAYERS[own]}
    assert not too_high, f"{own} is layer {LAYERS[own]} and imports {sorted(too_high)}"


def test_every_module_has_a_layer() -> None:
    unknown = {part_of(path) for path in MODULES} - LAYERS.keys() - set(ROOT_MODULES)
    assert not unknown


@pytest.mark.parametrize("folder", TENSOR_FREE)
def test_accounting_imports_no_tensor_library(folder: str) -> None:
    found = {name.split(".")[0] for path in (SOURCE / folder).rglob("*.py") for name in imported_modules(path)}
    assert not found & TENSOR_LIBRARIES


def test_package_imports_no_test_only_library() -> None:
    found = {name.split(".")[0] for path in MODULES for name in imported_modules(path)}
    assert not found & TEST_ONLY_LIBRARIES
