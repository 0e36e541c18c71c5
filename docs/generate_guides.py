"""Fills the tables of the READMEs, the guides and the concepts that come from the planner and from committed measurements.

Usage: python docs/generate_guides.py [--check]        (--check writes nothing and fails when a page is out of date)

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; everything else of a page is left alone.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from markdown_table import table

from octavo.config import EngineConfig
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.machines import find_machine
from octavo.planner.plan import Plan, Planner, PlanRequest
from octavo.planner.shipped_models import shipped_models
from octavo.planner.weight_sizes import sizes_from_parameters

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("docs/concepts/*.md")),
    *sorted(ROOT.glob("docs/guides/*.md")),
]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
GIB = 2**30
ENGINE = EngineConfig()
CONTEXTS = (8 * 1024, 32 * 1024, 128 * 1024)
MIN_TOKENS_PER_S = 10.0
ON_A_SPARK = (  # model, format of its weights
    ("llama-3.1-8b", "bf16"),
    ("llama-3.1-8b", "nvfp4"),
    ("qwen3-8b", "bf16"),
    ("gemma-3-12b", "bf16"),
    ("qwen3-30b-a3b", "bf16"),
    ("qwen3-30b-a3b", "nvfp4"),
    ("qwen3-32b", "fp8"),
    ("gemma-3-27b", "q4_k_m"),
    ("gpt-oss-20b", "mxfp4"),
    ("gpt-oss-120b", "mxfp4"),
    ("nemotron-3-nano-30b-a3b", "bf16"),
    ("llama-3.1-70b", "bf16"),
    ("llama-3.1-70b", "nvfp4"),
    ("qwen3-235b-a22b", "nvfp4"),
)


def make_plan(name: str, weights: str, machine: str) -> Planner:
    """Returns the planner of one model with the engine's defaults."""
    request = PlanRequest(
        kv_dtype=ENGINE.kv_dtype,
        block_size=ENGINE.block_size,
        context_tokens=None,
        num_users=1,
        shared_tokens=0,
        step_tokens=ENGINE.max_num_batched_tokens,
        max_num_seqs=ENGINE.max_num_seqs,
        min_tokens_per_s=MIN_TOKENS_PER_S,
    )
    spec = read_plan_spec(shipped_models()[name].config)
    return Planner(name, spec, find_machine(machine), sizes_from_parameters(spec, weights), weights, request)


def spark_table() -> str:
    """Returns what fits on one DGX Spark, and for how many users."""
    headings = ("model", "weights", "GiB", "KV GiB", *(f"users at {context // 1024}K" for context in CONTEXTS), "one user at 8K")
    return table(headings, [spark_row(make_plan(name, weights, "dgx-spark"), weights) for name, weights in ON_A_SPARK])


def spark_row(planner: Planner, weights: str) -> tuple[str, ...]:
    """Returns a model's line; users are those by memory and those by speed."""
    plan: Plan = planner.plan()
    cells = [plan.model, weights, f"{plan.budget.weight_bytes / GIB:.1f}"]
    if plan.budget.shortage_bytes:
        return (*cells, "does not fit", *("–" for _ in CONTEXTS), "–")
    return (
        *cells,
        f"{plan.budget.kv_bytes / GIB:.1f}",
        *(users(planner, context) for context in CONTEXTS),
        f"{planner.speed.tokens_per_s(1, CONTEXTS[0]):.0f} tokens/s",
    )


def users(planner: Planner, context_tokens: int) -> str:
    """Returns the users at one context under either ceiling."""
    if context_tokens > planner.spec.max_position:
        return "–"
    row = planner.row(context_tokens)
    return f"{row.users_by_memory:,} / {row.users_by_speed:,}"


def read_results(path: Path) -> dict[str, Any]:
    """Returns what a benchmark saved."""
    return json.loads(path.read_text(encoding="utf-8"))


def own_table() -> str:
    """Returns this engine's measured throughput."""
    rows = []
    for path in sorted(RESULTS.glob("offline-*.json")):
        record = read_results(path)
        timings = {timing["workload"]: timing for timing in record["timings"]}
        if not {"W1", "W64"} <= timings.keys():
            continue
        one, many = (f"{timings[name]['output_tokens_per_s']:.0f}" for name in ("W1", "W64"))
        parameters = record["parameters"]
        rows.append((parameters["model"], parameters["weights"], one, many, record["processor"], record["commit"]))
    return table(("model", "weights", "one request, tokens/s", "64 at once, tokens/s", "processor", "commit"), rows)


def peers_table() -> str:
    """Returns what `benchmarks/compare.py` measured of this engine and of others on one machine: medians over the rounds."""
    runs = read_results(RESULTS / "compare.json")["runs"]
    rows = []
    for contestant in dict.fromkeys(run["contestant"] for run in runs):
        own = [run for run in runs if run["contestant"] == contestant]
        of = {name: [run for run in own if run["workload"] == name] for name in ("W1", "W64")}
        rates = (f"{median(run['output_tokens_per_s'] for run in some):.0f}" if some else "–" for some in of.values())
        factors = (times_as_fast(runs, some) for some in of.values())
        version = own[0]["version"].partition("-")[0]
        rows.append((f"{contestant} ({version})", *rates, f"{median(run['ready_s'] for run in own):.1f}", *factors))
    one, many = "one request, tokens/s", "64 at once, tokens/s"
    return table(("engine, weights (version)", one, many, "ready after, s", "Octavo is faster by, one request", "64 at once"), rows)


def times_as_fast(runs: list[dict[str, Any]], peers: list[dict[str, Any]]) -> str:
    """Returns how many times as fast Octavo was in the same rounds with the same weights: the median, the least and the most."""
    ratios = []
    for peer in peers:
        ours = "Octavo," + peer["contestant"].partition(",")[2]
        same_place = (ours, peer["workload"], peer["round"])
        rates = [run["output_tokens_per_s"] for run in runs if (run["contestant"], run["workload"], run["round"]) == same_place]
        ratios += [rate / peer["output_tokens_per_s"] for rate in rates]
    if not ratios or peers[0]["contestant"].startswith("Octavo"):
        return "–"
    return f"{median(ratios):.1f} ({min(ratios):.1f} … {max(ratios):.1f})"


def shapes_table() -> str:
    """Returns how near the engine comes to the machine's limits with models of several sizes."""
    rows = []
    for path in sorted(RESULTS.glob("shape-*.json")):
        record = read_results(path)
        timings = {timing["workload"]: timing for timing in record["timings"]}
        cells = [record["parameters"]["model"], record["parameters"]["weights"]]
        for workload, rate in (("W1", "output_tokens_per_s"), ("W64", "output_tokens_per_s"), ("P1024", "prompt_tokens_per_s")):
            timing = timings.get(workload)
            cells += (f"{timing[rate]:.1f}", f"{100 * timing['share_of_limit']:.0f} %") if timing else ("–", "–")
        rows.append(cells)
    one, many, prompt = "one request, tokens/s", "64 at once, tokens/s", "prompt of 1,024, tokens/s"
    return table(("model", "weights", one, "of read bandwidth", many, "of arithmetic", prompt, "of arithmetic"), rows)


def products_table() -> str:
    """Returns how near the matrix products come to the machine's limits: one row to reading, many rows to arithmetic."""
    rows, num_rows = [], set()
    for path in sorted(RESULTS.glob("kernels-*.json")):
        record = read_results(path)
        products: dict[tuple[str, str], list[str]] = {}
        for figure in record["figures"]:
            num_rows.add(figure["num_rows"])
            cells = products.setdefault((figure["product"], figure["weight_format"]), [])
            cells.append(read_rate(figure) if figure["num_rows"] == 1 else arithmetic_rate(figure))
        rows += [(record["model"], *product, *cells) for product, cells in products.items()]
    return table(("model", "product", "weights", *("1 row" if n == 1 else f"{n} rows" for n in sorted(num_rows))), rows)


def attention_table() -> str:
    """Returns how near paged attention comes to its limit: the one of which it uses the larger share."""
    rows = []
    for path in sorted(RESULTS.glob("attention-*.json")):
        record = read_results(path)
        for figure in record["figures"]:
            rate = read_rate(figure) if figure["read_share"] > figure["arithmetic_share"] else arithmetic_rate(figure)
            rows.append((figure["case"].replace(" x ", " × "), record["kv_dtype"], f"{figure['microseconds'] / 1e3:.1f}", rate))
    return table(("case", "KV", "ms a layer", "rate"), rows)


def read_rate(figure: Mapping[str, Any]) -> str:
    """Returns how fast a kernel reads memory, and the share of what the machine can."""
    return f"{figure['gb_per_s']:.1f} GB/s ({100 * figure['read_share']:.0f} %)"


def arithmetic_rate(figure: Mapping[str, Any]) -> str:
    """Returns how fast a kernel multiplies and adds, and the share of what the machine can."""
    return f"{figure['gflop_per_s']:.0f} GFLOP/s ({100 * figure['arithmetic_share']:.0f} %)"


def paging_table() -> str:
    """Returns what a shuffled block table costs."""
    record = read_results(RESULTS / "paging.json")
    rows = []
    for figure in record["figures"]:
        rates = (f"{figure[name]:.1f}" for name in ("contiguous_gb_per_s", "shuffled_gb_per_s"))
        low, high = figure["ratio_quartiles"]
        rows.append((str(figure["block_size"]), *rates, f"{figure['ratio']:.3f} ({low:.3f} to {high:.3f})"))
    return table(("block size", "contiguous, GB/s", "shuffled, GB/s", "time, shuffled to contiguous (quartiles)"), rows)


def accuracy_table() -> str:
    """Returns what `benchmarks/accuracy.py` measured of the formats."""
    record = read_results(RESULTS / "accuracy.json")
    rows = [
        (
            model["model"],
            "as in the file" if row["weights"] == "auto" else row["weights"],
            row["kv_dtype"],
            f"{row['weights_bytes'] / 2**20:.0f}",
            f"{row['perplexity']:.2f}",
            f"{row['divergence']:.4f}",
            f"{100 * row['changed_share']:.1f} %",
        )
        for model in record["models"]
        for row in model["rows"]
    ]
    return table(("model", "weights", "KV", "MiB", "perplexity", "divergence from bf16, nats", "another most likely token"), rows)


def plan_table() -> str:
    """Returns what `benchmarks/plan_vs_reality.py` planned and measured."""
    record = read_results(RESULTS / "plan-vs-reality.json")
    rows = []
    for outcome in record["cases"]:
        case = outcome["case"]
        sizes = (f"{outcome[name] / 2**20:.0f}" for name in ("planned_resident_bytes", "resident_bytes"))
        setting = f"{case['context']} tokens, {case['kv_dtype']} in blocks of {case['block_size']}"
        users = (str(outcome[name]) for name in ("planned_users", "users"))
        rows.append((case["model"], case["memory"], setting, *users, *sizes, f"{100 * outcome['error']:+.1f} %"))
    headings = ("model", "memory", "KV", "users, planned", "real", "resident MiB, planned", "real", "plan is off by")
    return table(headings, rows)


def simulation_table() -> str:
    """Returns what `benchmarks/simulation_vs_reality.py` measured and simulated."""
    rows = []
    for path in sorted(RESULTS.glob("simulation-vs-reality-*.json")):
        record = read_results(path)
        for outcome in record["outcomes"]:
            names = ("mean_running", "output_tokens_per_s")
            cells = [
                f"{outcome[kind][name]:.{digits}f}"
                for name, digits in zip(names, (1, 0), strict=True)
                for kind in ("simulated", "real")
            ]
            steps = f"{outcome['simulated']['num_steps']} / {outcome['real']['num_steps']}"
            times = record["step_times"]
            rows.append((f"{times['model']}, {times['weights']}", outcome["kv_memory"], *cells, steps))
    headings = ("model, weights", "KV memory", "at once, simulated", "real", "tokens/s, simulated", "real", "steps")
    return table(headings, rows)


def memory_figures() -> dict[str, Any]:
    """Returns what `benchmarks/memory.py` measured."""
    return read_results(RESULTS / "memory.json")["figures"]


def held_table() -> str:
    """Returns the conversations that one memory holds, for each way of handing it out."""
    return table(("KV memory", "conversations at once"), [(way, f"{count:g}") for way, count in memory_figures()["held"].items()])


def hog_table() -> str:
    """Returns what a shortage of memory does to the throughput and to physical memory."""
    rows = []
    for place, phases in memory_figures()["hog"].items():
        cells = (
            f"{phases[name]['tokens_per_s']:.0f} / {phases[name]['resident_mib']:.0f}" for name in ("before", "during", "after")
        )
        rows.append((place, *cells))
    return table(("another process takes memory", "before", "during", "after"), rows)


def check_table() -> str:
    """Returns what `kv_check` costs."""
    rows = []
    for name, figure in memory_figures()["check"].items():
        kind, workload = name.split(", ")
        ratio = figure["time_ratio"]
        spread = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        rows.append((f"`{kind}`", workload, f"{figure['share_of_steps']:.2%}".replace("%", " %"), spread))
    return table(("kv_check", "requests", "of the steps' time", "times as long as without, by turns (quartiles)"), rows)


def disk_table() -> str:
    """Returns what the disk cache gains after a restart, and costs beside steady work."""
    figures = read_results(RESULTS / "disk-cache.json")["figures"]
    restart, ratio = figures["restart"], figures["steady"]["time_ratio"]
    times_as_long = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    prefix = f"first token of a prompt of {restart['prefix_tokens']:,} tokens after a restart"
    return table(
        ("", "without", "with"),
        [
            (prefix, f"{restart['computed_s']:.1f} s", f"{restart['from_disk_s']:.1f} s"),
            ("time of work whose every block is evicted", "1", times_as_long),
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": accuracy_table,
    "dgx-spark": spark_table,
    "own-throughput": own_table,
    "peers": peers_table,
    "shapes": shapes_table,
    "products": products_table,
    "attention": attention_table,
    "paging": paging_table,
    "plan": plan_table,
    "simulation": simulation_table,
    "held": held_table,
    "hog": hog_table,
    "kv-check": check_table,
    "disk-cache": disk_table,
}


def fill(text: str) -> str:
    """Returns a page with its tables made anew."""
    return BLOCK.sub(lambda block: f"<!-- table: {block[1]} -->\n{TABLES[block[1]]()}<!-- end -->", text)


def main() -> None:
    """Writes the pages, or checks them."""
    outdated = []
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = fill(old)
        if new != old:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if outdated and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(outdated)}; run python docs/generate_guides.py")


if __name__ == "__main__":
    main()
