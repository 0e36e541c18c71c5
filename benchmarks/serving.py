"""Times what serving costs: streams against the same work offline, the first token, and a restart after kill -9.

Usage: python benchmarks/serving.py [--model NAME] [--weights FORMAT] [--num-threads N] [--repeats N] [--requests N] [--output FILE]

W64 goes as 64 streams and through `LLM.generate` in turns; the first token over HTTP is compared with the engine's own time.
Server, engine and load generator share the machine, as they do for whoever tries it; the load generator keeps what it receives
and understands it afterwards, to take little of the machine. The tokens of every stream are compared with the offline answers.
Prints a table, and one line of JSON last.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass

from octavo import LLM, SamplingParams
from octavo.config import DEFAULT_MODEL
from reporting import add_output_argument, save
from workloads import Workload, many_requests, one_request

KV_MEMORY = "1GiB"
HOST, PORT = "127.0.0.1", 8765
TTFT_REQUESTS = 20


@dataclass(frozen=True)
class StreamResult:
    """One stream as its reader saw it."""

    token_ids: list[int]
    first_token_s: float


def first_requests(workload: Workload, count: int) -> Workload:
    """Returns the first requests of a workload."""
    return Workload(workload.name, workload.prompts[:count], workload.output_tokens[:count])


def run_offline(llm: LLM, workload: Workload) -> tuple[list[list[int]], float]:
    """Returns every request's tokens and the seconds that all took."""
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in workload.output_tokens]
    llm.engine.reset_prefix_cache()
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in workload.prompts], params)
    elapsed = time.perf_counter() - started
    return [output.outputs[0].token_ids for output in outputs], elapsed


class Stream(asyncio.Protocol):
    """One request and what comes back, kept unread until the clock has stopped."""

    def __init__(self, request: bytes):
        self._request = request
        self._started = 0.0
        self._pieces: list[bytes] = []
        self._first_token_s = 0.0
        self._ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._started = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._first_token_s and b"data: " in data:
            self._first_token_s = time.perf_counter() - self._started
        self._pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(error)

    async def wait(self) -> None:
        """Waits until the server has closed the connection."""
        await self._ended

    def result(self) -> StreamResult:
        """Returns what was received."""
        lines = b"".join(self._pieces).splitlines()
        if b"data: [DONE]" not in lines:
            sys.exit("a stream was cut")
        choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith(b"data: {")]
        return StreamResult([token for choice in choices for token in choice["token_ids"]], self._first_token_s)


async def open_stream(prompt: list[int], max_tokens: int, *, salt: str, request_id: str) -> Stream:
    """Sends one streaming request."""
    fields = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps({**fields, "return_token_ids": True, "cache_salt": salt, "request_id": request_id}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(request), HOST, PORT)
    return stream


async def run_streams(workload: Workload, *, salt: str) -> tuple[list[StreamResult], float]:
    """Sends all requests at once; returns the streams and the seconds that all took."""
    started = time.perf_counter()
    pairs = enumerate(zip(workload.prompts, workload.output_tokens, strict=True))
    opening = (open_stream(prompt, length, salt=salt, request_id=f"{salt}-{index}") for index, (prompt, length) in pairs)
    streams = await asyncio.gather(*opening)
    await asyncio.gather(*(stream.wait() for stream in streams))
    elapsed = time.perf_counter() - started
    return [stream.result() for stream in streams], elapsed


def get_json(path: str) -> dict:
    """Returns what the server says at a path."""
    with urllib.request.urlopen(f"http://{HOST}:{PORT}{path}", timeout=10) as response:
        return json.load(response)


def first_token_overhead_ms(workload: Workload) -> float:
    """Returns the median of (first token at the client − first token in the engine), one request at a time."""
    overheads = []
    for number in range(TTFT_REQUESTS):
        request_id = f"first-{number}"  # the salt too: none finds another's KV
        (result,), _ = asyncio.run(run_streams(Workload(workload.name, workload.prompts, [2]), salt=request_id))
        told = get_json(f"/octavo/requests/{request_id}-0")
        overheads.append(1e3 * result.first_token_s - told["queue_ms"] - told["prefill_ms"])
    return statistics.median(overheads)


def start_server(arguments: argparse.Namespace) -> subprocess.Popen:
    """Starts a server and waits until it is ready."""
    command = [sys.executable, "-m", "octavo", "serve", arguments.model, "--port", str(PORT), "--kv-memory", KV_MEMORY]
    command += ["--weights", arguments.weights]
    if arguments.num_threads is not None:
        command += ["--num-threads", str(arguments.num_threads)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            get_json("/ready")
            return process
        except OSError:
            time.sleep(0.05)
    sys.exit("the server did not start")


def restart(server: subprocess.Popen, arguments: argparse.Namespace) -> tuple[subprocess.Popen, float]:
    """Kills a server and starts another at its port; returns that one and the seconds until it was ready."""
    server.kill()
    server.wait()
    started = time.perf_counter()
    return start_server(arguments), time.perf_counter() - started


def read_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    add_output_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Checks, measures, prints. Offline and served runs alternate, so that both see the same machine."""
    arguments = read_arguments()
    llm = LLM(arguments.model, weights=arguments.weights, num_threads=arguments.num_threads, kv_memory=KV_MEMORY)
    vocab_size = llm.tokenizer.vocab_size
    workload = first_requests(many_requests(vocab_size), arguments.requests)
    server = start_server(arguments)
    offline_s, served_s = [], []
    try:
        for repeat in range(arguments.repeats):
            expected, elapsed = run_offline(llm, workload)
            offline_s.append(elapsed)
            results, elapsed = asyncio.run(run_streams(workload, salt=f"run-{repeat}"))
            served_s.append(elapsed)
            if [result.token_ids for result in results] != expected:
                sys.exit("a stream has other tokens than the offline answer")
        overhead_ms = first_token_overhead_ms(one_request(vocab_size))
        server, restart_s = restart(server, arguments)
    finally:
        server.terminate()
        server.wait()
    rates = [workload.num_output_tokens / statistics.median(seconds) for seconds in (offline_s, served_s)]
    ratio = statistics.median(offline / served for offline, served in zip(offline_s, served_s, strict=True))
    print(f"offline {rates[0]:8.1f} output tokens/s\nserved  {rates[1]:8.1f} output tokens/s, {ratio:.1%} of offline")
    print(f"first token over HTTP {overhead_ms:.2f} ms after the engine's own\nready {restart_s:.2f} s after kill -9")
    report = {
        "parameters": {name: value for name, value in vars(arguments).items() if name != "output"},
        "offline_tokens_per_s": rates[0],
        "served_tokens_per_s": rates[1],
        "served_ratio": ratio,
        "first_token_overhead_ms": overhead_ms,
        "restart_s": restart_s,
    }
    save("serving", report, arguments.output)


if __name__ == "__main__":
    main()
