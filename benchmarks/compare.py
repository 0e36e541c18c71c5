"""Runs the same requests through Octavo and through other engines, in turns, and prints the ratios.

Usage: python benchmarks/compare.py [--checkpoint DIR] [--openvino VENV --openvino-model DIR] [--llama-cpp VENV] [--vllm VENV]
           [--transformers VENV] [--rounds N] [--preload LIBRARIES] [--output FILE]

Each peer lives in a virtual environment of its own, given by path; what is not given is named and left out. Within a round every
engine answers every workload once, each time in a new process; rounds repeat that, so that a disturbance hits all of
them. An engine's figure is the median over the rounds, a ratio the median of the rounds' own ratios, with the smallest and largest.

Speed alone says nothing: every answer's length is checked, and some requests of the batch are answered again alone, to count those
whose tokens stay the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.config import DEFAULT_MODEL
from octavo.kernels.cpu import probe_machine
from octavo.kernels.cpu_count import default_num_threads
from octavo.models.model_files import load_model_files
from octavo.models.sources import resolve_model
from peers.protocol import Result, Task, read_result
from reporting import add_output_argument, save
from workloads import Workload, many_requests, one_request

PEERS = Path(__file__).parent / "peers"
ALONE = (0, 21, 42, 63)
TIMEOUT_S = 1200


@dataclass(frozen=True)
class Contestant:
    """An engine with the weights that it serves.

    Attributes:
        weights: "bf16" or "Q4_1"; only contestants with the same weights are compared.
        python: the interpreter of its environment.
        environment: variables that it is run with.
    """

    engine: str
    weights: str
    script: str
    python: str
    model: str
    options: dict[str, str]
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """Engine and weights."""
        return f"{self.engine}, {self.weights}"

    def run(self, workload: Workload, *, alone: list[int], num_threads: int) -> Result:
        """Answers the workload in a new process; raises RuntimeError with the end of its output if that fails."""
        task = Task(self.model, workload.prompts, workload.output_tokens, alone, num_threads, self.options)
        finished = subprocess.run(
            [self.python, str(PEERS / self.script)],
            input=json.dumps(asdict(task)),
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if finished.returncode != 0:
            raise RuntimeError(f"{self.name} failed on {workload.name}:\n{finished.stderr[-2000:]}")
        return read_result(finished.stdout)


@dataclass(frozen=True)
class Run:
    """One contestant's figures for one workload in one round.

    Attributes:
        kept: how many of the requests answered again alone got the same tokens, of `ALONE`; None where none were asked for.
    """

    contestant: str
    workload: str
    round: int
    version: str
    output_tokens_per_s: float
    ready_s: float
    kept: int | None


def contestants(arguments: argparse.Namespace, *, has_bf16: bool) -> list[Contestant]:
    """Returns everyone whose environment and model are given, Octavo first; names the others.

    PyTorch's bf16 products crawl on a processor without bf16 instructions, so that there the engines on it get float32.
    """
    gguf = str(resolve_model(DEFAULT_MODEL).path)
    torch = {"dtype": "bfloat16" if has_bf16 else "float32"}
    everyone = [
        _octavo("Q4_1", gguf, "auto"),
        _octavo("bf16", arguments.checkpoint or gguf, "bf16"),
        _peer("OpenVINO GenAI", "Q4_1", "openvino_engine.py", arguments.openvino, gguf, {"precision": "f32"}),
        _peer("OpenVINO GenAI", "bf16", "openvino_engine.py", arguments.openvino, arguments.openvino_model, {"precision": "bf16"}),
        _peer("llama.cpp", "Q4_1", "llama_cpp_engine.py", arguments.llama_cpp, gguf, {}),
        _peer("vLLM", "bf16", "vllm_engine.py", arguments.vllm, arguments.checkpoint, torch, vllm_environment(arguments.preload)),
        _peer("transformers", "bf16", "transformers_engine.py", arguments.transformers, arguments.checkpoint, torch),
    ]
    for contestant in everyone:
        if not contestant.python or not contestant.model:
            print(f"{contestant.name}: left out, its {'environment' if not contestant.python else 'model'} is not given")
    return [contestant for contestant in everyone if contestant.python and contestant.model]


def _octavo(weights: str, model: str, weight_format: str) -> Contestant:
    return Contestant("Octavo", weights, "octavo_engine.py", sys.executable, model, {"weights": weight_format}, {})


def _peer(
    engine: str,
    weights: str,
    script: str,
    venv: str | None,
    model: str | None,
    options: dict[str, str],
    environment: dict[str, str] | None = None,
) -> Contestant:
    python = str(Path(venv) / "bin" / "python") if venv else ""
    return Contestant(engine, weights, script, python, model or "", options, environment or {})


def vllm_environment(preload: str) -> dict[str, str]:
    """Returns the settings that vLLM's documentation recommends for processors, as far as they depend on the machine."""
    cores = f"0-{default_num_threads() - 1}"
    return {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2", "LD_PRELOAD": preload}


def measure(everyone: list[Contestant], workloads: list[Workload], *, rounds: int, num_threads: int) -> list[Run]:
    """Runs everybody in turns; who fails once is named and left out from then on."""
    runs: list[Run] = []
    failed: set[str] = set()
    for number in range(rounds):
        for workload in workloads:
            alone = [index for index in ALONE if index < len(workload.prompts)] if len(workload.prompts) > 1 and number == 0 else []
            for contestant in everyone:
                if contestant.name in failed:
                    continue
                try:
                    result = contestant.run(workload, alone=alone, num_threads=num_threads)
                    check_lengths(contestant, workload, result)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(error, file=sys.stderr)
                    failed.add(contestant.name)
                    continue
                run = figures(contestant, workload, number, result, alone)
                print(f"round {number + 1}: {run.contestant}, {run.workload}: {run.output_tokens_per_s:.1f} tokens/s", flush=True)
                runs.append(run)
    return runs


def check_lengths(contestant: Contestant, workload: Workload, result: Result) -> None:
    """Raises RuntimeError unless every answer has the length that was asked for."""
    lengths = [len(answer) for answer in result.answers]
    if lengths != workload.output_tokens:
        wrong = sum(given != asked for given, asked in zip(lengths, workload.output_tokens, strict=True))
        raise RuntimeError(f"{contestant.name}: {wrong} answers of {workload.name} have the wrong length")


def figures(contestant: Contestant, workload: Workload, number: int, result: Result, alone: list[int]) -> Run:
    """Returns a result's rates, and how many of its answers stayed the same when they were computed alone."""
    same = sum(result.answers[index] == answer for index, answer in zip(alone, result.alone, strict=True))
    rate = workload.num_output_tokens / result.elapsed_s
    return Run(contestant.name, workload.name, number, result.version, rate, result.ready_s, same if alone else None)


def print_table(everyone: list[Contestant], runs: list[Run], workloads: list[Workload]) -> None:
    """Prints medians, and Octavo's speed as a multiple of each peer's with the same weights."""
    print(f"\n{'':26}{'workload':>10}{'tokens/s':>10}{'ready s':>9}{'same alone':>12}   Octavo is faster by")
    for contestant in everyone:
        for workload in workloads:
            mine = [run for run in runs if (run.contestant, run.workload) == (contestant.name, workload.name)]
            if not mine:
                continue
            rate = statistics.median(run.output_tokens_per_s for run in mine)
            ready = statistics.median(run.ready_s for run in mine)
            kept = next((f"{run.kept} of {len(ALONE)}" for run in mine if run.kept is not None), "–")
            print(f"{contestant.name:26}{workload.name:>10}{rate:10.1f}{ready:9.2f}{kept:>12}   {ratio(contestant, mine, runs)}")


def ratio(contestant: Contestant, mine: list[Run], runs: list[Run]) -> str:
    """Returns the median, smallest and largest of the rounds' ratios, or nothing for Octavo itself."""
    if contestant.engine == "Octavo":
        return ""
    ours = [run for run in runs if run.contestant == f"Octavo, {contestant.weights}"]
    reference = {(run.workload, run.round): run.output_tokens_per_s for run in ours}
    places = [(run, (run.workload, run.round)) for run in mine]
    ratios = [reference[place] / run.output_tokens_per_s for run, place in places if place in reference]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})" if ratios else ""


def read_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", help="a folder with the default model in safetensors, for bf16")
    parser.add_argument("--openvino", help="environment with openvino-genai")
    parser.add_argument("--openvino-model", help="folder that optimum-intel exported")
    parser.add_argument("--llama-cpp", help="environment with llama-cpp-python")
    parser.add_argument("--vllm", help="environment with vLLM for processors")
    parser.add_argument("--transformers", help="environment with transformers and torch")
    parser.add_argument("--preload", default="", help="libraries that vLLM is to be run with, as LD_PRELOAD takes them")
    parser.add_argument("--rounds", type=int, default=3)
    add_output_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Measures, prints, saves."""
    arguments = read_arguments()
    num_threads = default_num_threads()
    vocab_size = load_model_files(DEFAULT_MODEL).tokenizer.vocab_size
    workloads = [one_request(vocab_size), many_requests(vocab_size)]
    probe = probe_machine(num_threads)
    everyone = contestants(arguments, has_bf16=probe.bf16_gflop_per_s > 0)
    runs = measure(everyone, workloads, rounds=arguments.rounds, num_threads=num_threads)
    print_table(everyone, runs, workloads)
    report = {
        "threads": num_threads,
        "machine": asdict(probe),
        "asked_again_alone": len(ALONE),
        "runs": [asdict(run) for run in runs],
    }
    save("compare", report, arguments.output)


if __name__ == "__main__":
    main()
