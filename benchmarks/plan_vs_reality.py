"""Plans, then runs: users at once and resident memory as `octavo plan` says beforehand, beside what an engine really does.

Usage: python benchmarks/plan_vs_reality.py [--num-threads N] [--output FILE]

For each case the plan is made for a budget in bytes. Then a fresh process loads the server's modules and an engine with that same
budget, and gets three more conversations than were planned. Their prompts are as long as the last block allows, and all of them
fit in one step, so that as many run at once as ever will. The table shows how many did, and the process's largest resident memory.
Figures of memory do not depend on what else the machine does. Prints a table, and one line of JSON last.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from reporting import add_output_argument, save
from workloads import FIRST_TOKEN_ID

NUM_EXTRA = 3
MAX_ERROR = 0.03


@dataclass(frozen=True)
class Case:
    """One model with one set of settings; ``context`` is a whole number of blocks."""

    model: str
    memory: str
    context: int
    kv_dtype: str = "bf16"
    block_size: int = 16
    step_tokens: int = 2048


CASES = (
    Case("smollm2-135m", "322MiB", 208, step_tokens=1760),
    Case("smollm2-135m", "400MiB", 256, kv_dtype="fp32", block_size=32),
    Case("smollm2-135m", "318MiB", 512, kv_dtype="int8", block_size=128),
    Case("gemma3-270m", "815MiB", 512, kv_dtype="fp32", step_tokens=4096),
    Case("gemma3-270m", "741MiB", 512, block_size=64, step_tokens=4096),
)


@dataclass(frozen=True)
class Outcome:
    """What was planned and what happened."""

    case: Case
    planned_users: int
    users: int
    preemptions: int
    planned_kv_bytes: int
    kv_bytes: int
    planned_resident_bytes: int
    resident_bytes: int

    @property
    def error(self) -> float:
        """By how much the plan's resident memory is above what was measured."""
        return self.planned_resident_bytes / self.resident_bytes - 1


def make_plan(case: Case, num_users: int) -> dict:
    """Returns what `octavo plan --json` prints."""
    arguments = [case.model, "--memory", case.memory, "--context", str(case.context), "--users", str(num_users), "--json"]
    arguments += ["--kv-dtype", case.kv_dtype, "--block-size", str(case.block_size), "--step-tokens", str(case.step_tokens)]
    result = subprocess.run([sys.executable, "-m", "octavo", "plan", *arguments], capture_output=True, text=True)
    if not result.stdout:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def measure(case: Case, num_threads: int | None) -> Outcome:
    """Plans a case, runs it in a process of its own, and returns both."""
    planned = make_plan(case, 1)["asked"]["users_by_memory"]
    plan = make_plan(case, planned)
    request = json.dumps({"case": asdict(case), "num_offered": planned + NUM_EXTRA, "num_threads": num_threads})
    result = subprocess.run([sys.executable, __file__, "--run", request], check=True, capture_output=True, text=True)
    real = json.loads(result.stdout)
    return Outcome(
        case=case,
        planned_users=planned,
        users=real["users"],
        preemptions=real["preemptions"],
        planned_kv_bytes=plan["budget"]["kv_bytes"],
        kv_bytes=real["kv_bytes"],
        planned_resident_bytes=plan["resident_bytes"],
        resident_bytes=real["resident_bytes"],
    )


def run(case: Case, num_offered: int, num_threads: int | None) -> dict:
    """Runs an engine; this is the fresh process."""
    import octavo.server.app
    import octavo.server.http_server  # noqa: F401  # as large as a server's process
    from octavo import LLM, SamplingParams

    llm = LLM(
        case.model,
        memory=case.memory,
        memory_reserve="0",
        kv_dtype=case.kv_dtype,
        block_size=case.block_size,
        max_num_batched_tokens=case.step_tokens,
        enable_prefix_caching=False,
        num_threads=num_threads,
    )
    num_answer_tokens = case.block_size - 1
    params = SamplingParams(temperature=0.0, max_tokens=num_answer_tokens, ignore_eos=True, detokenize=False)
    for number in range(num_offered):
        llm.engine.add_request([FIRST_TOKEN_ID + number] * (case.context - num_answer_tokens), params)
    llm.engine.step()
    users = llm.engine.stats().num_running  # of one step that had tokens for all
    while llm.engine.has_unfinished_requests:
        llm.engine.step()
    stats = llm.stats()
    return {
        "users": users,
        "preemptions": stats.num_preemptions,
        "kv_bytes": stats.memory.num_blocks * stats.kv_block_bytes,
        "resident_bytes": peak_resident_bytes(),
    }


def peak_resident_bytes() -> int:
    """Returns the most memory that this process held."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def print_row(outcome: Outcome) -> None:
    """Prints one line of the table."""
    case, mib = outcome.case, 2**20
    sizes = f"{outcome.planned_resident_bytes / mib:9.0f}{outcome.resident_bytes / mib:10.0f}{outcome.error:9.1%}"
    setting = f"{case.memory:>8} {case.context:>5} {case.kv_dtype:>5} {case.block_size:>4}"
    print(f"{case.model:14}{setting}{outcome.planned_users:9}{outcome.users:7}{sizes}", flush=True)


def main() -> None:
    """Plans, runs, prints; the exit status is 1 if a plan was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-threads", type=int, default=None)
    add_output_argument(parser)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        request = json.loads(arguments.run)
        print(json.dumps(run(Case(**request.pop("case")), **request)))
        return
    print(f"{'':14}{'':25}{'users':>9}{'':7}{'resident MiB':>19}")
    print(f"{'':14}{'memory':>8} {'context':>5}{'kv':>5}{'block':>6}{'plan':>8}{'real':>7}{'plan':>9}{'real':>10}{'error':>9}")
    outcomes = []
    for case in CASES:
        outcomes.append(measure(case, arguments.num_threads))
        print_row(outcomes[-1])
    cases = [asdict(outcome) | {"error": round(outcome.error, 4)} for outcome in outcomes]
    save("plan_vs_reality", {"cases": cases}, arguments.output)
    wrong = [outcome for outcome in outcomes if outcome.users != outcome.planned_users or abs(outcome.error) > MAX_ERROR]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
