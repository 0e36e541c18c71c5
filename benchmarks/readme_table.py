"""Writes the README's table of measurements from the files in `results/`.

Usage: python benchmarks/readme_table.py [--write]

Prints the section; ``--write`` puts it into the README. A test fails while the two differ. What was not measured is a dash.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "## Measured\n\n", "\n## Beside others"
ROWS = {  # results file -> what its row is called
    "offline-auto": "Q4_1 as in the file",
    "offline-auto-kv-int8": "Q4_1, KV in int8",
    "offline-bf16": "bf16",
}
START_NAMES = {"offline-auto": "first token, weights as in the file", "offline-bf16": "first token, bf16"}
COLUMNS = (
    "weights",
    "one request, output tokens/s (share of bandwidth)",
    "64 at once, output tokens/s (of arithmetic)",
    "prompt of 1,024, tokens/s (of arithmetic)",
    "behind 16 × 4,096 tokens, output tokens/s (of bandwidth)",
    "books, ms a step of 64",
    "start to first token, s",
)
HELD_NAMES = {  # ways of handing out memory -> what they are called
    "contiguous, maximum": "conversations in 256 MiB of KV: room for the longest",
    "contiguous, power of two": "for the next power of two",
    "paged": "paged",
    "paged, shared system prompt": "with 256 tokens shared",
    "paged, shared system prompt, int8": "and in int8",
}
DASH = "–"


def load(name: str) -> dict[str, Any]:
    """Returns a results file, empty where there is none."""
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def render() -> str:
    """Returns the section below its heading."""
    reports = {name: report for name in ROWS if (report := load(f"{name}.json"))}
    start = load("start.json").get("figures", {})
    rows = [row(name, report, start) for name, report in reports.items()]
    lines = [introduction(reports), "", table_line(COLUMNS), table_line(["---"] * len(COLUMNS)), *map(table_line, rows)]
    lines += ["", *memory_lines(load("memory.json")["figures"], load("disk-cache.json")["figures"])]
    return "\n".join(lines) + "\n"


def memory_lines(memory: Mapping, disk: Mapping) -> list[str]:
    """Returns what 256 MiB of KV hold, and what a restart costs with and without a disk cache."""
    restart = disk["restart"]
    cells = {HELD_NAMES[way]: f"{count:g}" for way, count in memory["held"].items()}
    prefix = f"{restart['prefix_tokens']:,} known tokens after a restart"
    cells |= {
        f"{prefix}: computed, s": cell(restart["computed_s"], digits=1),
        "from disk, s": cell(restart["from_disk_s"], digits=1),
    }
    return [
        "Conversations of 540 tokens in the mean, held at once ([memory](docs/concepts/memory.md#measured)), and a prefix that",
        "comes back ([disk cache](docs/guides/disk-cache.md#what-it-gains-and-costs)):",
        "",
        table_line(list(cells)),
        table_line(["---"] * len(cells)),
        table_line(list(cells.values())),
    ]


def introduction(reports: Mapping[str, Mapping]) -> str:
    """Returns what was measured, on what."""
    first = next(iter(reports.values()))
    bandwidths, rates = ([report["machine"][name] for report in reports.values()] for name in ("read_gb_per_s", "fp32_gflop_per_s"))
    return (
        f"SmolLM2-135M on two cores of an {first['processor']}. In brackets: the share of what the runs' own probes reached,\n"
        f"reading {spread(bandwidths)} GB/s and multiplying {spread(rates)} GFLOP/s in float32. `make bench` measures all of it\n"
        "([caveats](benchmarks/README.md), [results](benchmarks/results)):"
    )


def spread(values: list[float]) -> str:
    """Returns the range of some values, rounded."""
    least, most = round(min(values)), round(max(values))
    return str(least) if least == most else f"{least} to {most}"


def row(name: str, report: Mapping, start: Mapping) -> list[str]:
    """Returns the cells of one results file."""
    timings = {timing["workload"]: timing for timing in report["timings"]}
    one, many, prompt, contexts = (timings.get(workload, {}) for workload in ("W1", "W64", "P1024", "D16x4096"))
    return [
        ROWS[name],
        rate(one, "output_tokens_per_s"),
        rate(many, "output_tokens_per_s"),
        rate(prompt, "prompt_tokens_per_s"),
        rate(contexts, "output_tokens_per_s"),
        cell(many.get("accounting_ms_per_step"), digits=2),
        cell(start.get(START_NAMES.get(name), {}).get("median_s"), digits=1),
    ]


def rate(timing: Mapping, name: str) -> str:
    """Returns a rate, and in brackets its share of what the machine could do in the same run."""
    return f"{timing[name]:.0f} ({100 * timing['share_of_limit']:.0f} %)" if timing else DASH


def cell(value: float | None, *, digits: int = 0) -> str:
    """Returns a number for the table."""
    return DASH if value is None else f"{value:.{digits}f}"


def table_line(cells: list[str] | tuple[str, ...]) -> str:
    """Returns one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def replaced(readme: str) -> str:
    """Returns the README's text with the section as the results have it."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + render() + END + tail


def main() -> None:
    """Prints the section or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into the README")
    readme = ROOT / "README.md"
    if parser.parse_args().write:
        readme.write_text(replaced(readme.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(render(), end="")


if __name__ == "__main__":
    main()
