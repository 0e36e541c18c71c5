"""Draws the pictures of the concept pages from simulations.

Usage: python docs/generate_pictures.py [--check]        (--check writes nothing and fails when a picture is out of date)
"""

import sys
from pathlib import Path

from octavo.comparison.svg import Drawing, share_bar
from octavo.simulator.settings import SimulationSettings, simulate
from octavo.simulator.step_time import A100_40GB, OPT_13B, Roofline

PICTURES = Path(__file__).parent / "pictures"
ALLOCATORS = {
    "maximum": "room for the longest sequence",
    "power-of-two": "room for the prompt and the next power of two of the answer",
    "oracle": "room for exactly what it will need, which nobody can know",
    "paged": "blocks of 16 tokens, as tokens come",
}
KINDS = {
    "tokens": ("#0b72b5", "holds a token"),
    "reservation": ("#7fc0ea", "reserved for a later token"),
    "internal": ("#c8501e", "never used"),
    "external": ("#c9c4b8", "broken up, or kept free"),
}
WIDTH, ROW, TOP = 720, 50, 34
NUM_REQUESTS = 400
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292e}.label{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e8ea}.label{fill:#9aa4ae}}"
    + "".join(f".{kind}{{fill:{colour}}}" for kind, (colour, _) in KINDS.items())
    + "text.on{fill:#fff;font-weight:600}text.external-text{fill:#1c2126}"
)


def shares(allocator: str) -> dict[str, float]:
    """Returns what a simulated memory's slots are used for while requests wait for it."""
    report = simulate(
        SimulationSettings(allocator=allocator, rate=2.0, requests=NUM_REQUESTS), OPT_13B, Roofline(OPT_13B, A100_40GB)
    )
    assert report.split is not None, "requests wait at this rate"
    return report.split


def memory_picture() -> str:
    """Returns a bar for each allocator."""
    drawing = Drawing(WIDTH, TOP + ROW * len(ALLOCATORS), "what KV memory is used for, by allocator")
    x = 0.0
    for kind, (_, name) in KINDS.items():
        drawing.rect(x, 4, 11, 11, kind)
        drawing.text(x + 17, 14, name)
        x += 40 + 7.0 * len(name)
    for index, (allocator, words) in enumerate(ALLOCATORS.items()):
        y = TOP + index * ROW
        drawing.text(0, y + 12, allocator, "name")
        drawing.text(110, y + 12, words)
        share_bar(drawing, shares(allocator).items(), y + 19)
    return drawing.render().replace("<title>", f"<style>{STYLE}</style><title>", 1) + "\n"


def main() -> None:
    """Writes the pictures, or checks them."""
    path, new = PICTURES / "memory.svg", memory_picture()
    if "--check" not in sys.argv:
        PICTURES.mkdir(exist_ok=True)
        path.write_text(new, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != new:
        sys.exit(f"{path.name} is out of date: run python docs/generate_pictures.py")


if __name__ == "__main__":
    main()
