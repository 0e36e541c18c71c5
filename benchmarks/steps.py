"""Says where the time of the steps of W1 and W64 (see `workloads.py`) goes, operation by operation.

Usage: python benchmarks/steps.py [--model NAME] [--weights FORMAT] [--num-threads N] [--workloads W1,W64]

Prints for each operation its share of the run and the time of a call, and what the machine read and multiplied at best just before
the run: a product's weights have to be read once, and its arithmetic has to be done. The last line is JSON.
"""

import argparse
import time
from dataclasses import asdict

from octavo import SamplingParams
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.loading import build_engine, read_spec
from octavo.kernels.cpu import CpuOperations, OperationTime, probe_machine
from octavo.kernels.cpu_count import default_num_threads
from octavo.models.model_files import load_model_files
from octavo.models.weights import load_weights
from reporting import add_output_argument, parameters, save
from workloads import Workload, many_requests, one_request

KV_MEMORY = "1GiB"


def build(arguments: argparse.Namespace, operations: CpuOperations) -> Engine:
    """Returns an engine whose operations can be timed."""
    config = EngineConfig(model=arguments.model, weights=arguments.weights, kv_memory=KV_MEMORY)
    files = load_model_files(config.model)
    spec = read_spec(files)
    return build_engine(config, files, spec, load_weights(spec, files.source, operations, config.weights), operations)


def run(engine: Engine, workload: Workload) -> tuple[int, float]:
    """Runs all requests of the workload at once; returns the number of steps and the seconds."""
    engine.reset_prefix_cache()
    for prompt, length in zip(workload.prompts, workload.output_tokens, strict=True):
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        engine.add_request(prompt, params)
    num_steps, started = engine.num_steps, time.perf_counter()
    while engine.has_unfinished_requests:
        engine.step()
    return engine.num_steps - num_steps, time.perf_counter() - started


def print_table(name: str, times: dict[str, OperationTime], num_steps: int, seconds: float) -> None:
    """Prints the operations, the longest first, and what lies between them."""
    print(f"\n{name}: {num_steps} steps, {1e3 * seconds / num_steps:.2f} ms each")
    print(f"{'operation':28}{'share':>8}{'ms a step':>11}{'us a call':>11}")
    for operation, total in sorted(times.items(), key=lambda item: -item[1].seconds):
        print(
            f"{operation:28}{total.seconds / seconds:8.1%}{1e3 * total.seconds / num_steps:11.3f}"
            f"{1e6 * total.seconds / total.num_calls:11.1f}"
        )
    rest = seconds - sum(total.seconds for total in times.values())
    print(f"{'between operations':28}{rest / seconds:8.1%}{1e3 * rest / num_steps:11.3f}")


def main() -> None:
    """Profiles, prints the tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    parser.add_argument("--workloads", default="W1,W64")
    add_output_argument(parser)
    arguments = parser.parse_args()
    operations = CpuOperations(arguments.num_threads)
    engine = build(arguments, operations)
    figures = []
    for workload in (one_request(engine.vocab_size), many_requests(engine.vocab_size)):
        if workload.name not in arguments.workloads.split(","):
            continue
        run(engine, one_request(engine.vocab_size))
        probe = probe_machine(arguments.num_threads)
        operations.start_profile()
        num_steps, seconds = run(engine, workload)
        times = operations.profile()
        print_table(workload.name, times, num_steps, seconds)
        print(f"read {probe.read_gb_per_s:.1f} GB/s, fp32 {probe.fp32_gflop_per_s:.0f} GFLOP/s")
        record = {"workload": workload.name, "num_steps": num_steps, "seconds": seconds, "machine": asdict(probe)}
        figures.append(record | {"operations": {operation: asdict(total) for operation, total in times.items()}})
    save("steps", {**parameters(arguments), "instruction_set": operations.instruction_set, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
