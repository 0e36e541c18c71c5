"""256 streams at once on a real engine whose pool is too small for them, while three in ten clients leave.

`make soak` does it for ten minutes, the tests for some seconds (``OCTAVO_SOAK_SECONDS``).
"""

import asyncio
import gc
import json
import os
import random
import time
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest

from engine.tiny_engine import TinyModels, answer
from octavo.sampling_params import SamplingParams
from server.running import RunningServer, running_server

SOAK_SECONDS = float(os.environ.get("OCTAVO_SOAK_SECONDS", "20"))
NUM_STREAMS = 256
LEAVING_SHARE = 0.3
NUM_TOKENS = 24
PROMPTS = [[65 + (7 * number + place) % 60 for place in range(2 + 3 * number)] for number in range(32)]
MAX_GROWTH_BYTES = 16 * 2**20  # over the second half, whatever its length


@dataclass
class Soak:
    """What happened.

    Attributes:
        faults: prompt numbers and texts of answers that are wrong.
        resident_bytes: (seconds, size of the process) every half second.
    """

    expected: list[str]
    num_whole: int = 0
    num_left: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)
    resident_bytes: list[tuple[float, int]] = field(default_factory=list)


@pytest.mark.slow
def test_streams_and_leaving_clients() -> None:
    models = TinyModels()
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    alone = [answer(models.engine(), [prompt], params)[0].outputs[0].text for prompt in PROMPTS]
    engine = models.engine(kv_memory="60 blocks", max_num_seqs=32, max_num_batched_tokens=128)
    with running_server(engine) as server:
        server.complete(prompt="warm up", max_tokens=1)
        num_files = len(os.listdir("/proc/self/fd"))
        soak = Soak(alone)
        asyncio.run(run_soak(server, soak))
        server.wait_until_idle(10)
        wait_for_files(num_files)
    assert not soak.faults and soak.num_whole > NUM_STREAMS and soak.num_left > NUM_STREAMS // 10
    assert engine.stats().num_preemptions > 0, "the pool was meant to be too small"
    assert growth(soak.resident_bytes) < MAX_GROWTH_BYTES


async def run_soak(server: RunningServer, soak: Soak) -> None:
    deadline = time.monotonic() + SOAK_SECONDS
    host, port = server.url.removeprefix("http://").split(":")
    watcher = asyncio.create_task(watch_memory(soak))
    await asyncio.gather(*(work(host, int(port), soak, random.Random(number), deadline) for number in range(NUM_STREAMS)))
    watcher.cancel()


async def work(host: str, port: int, soak: Soak, source: random.Random, deadline: float) -> None:
    """Sends one request after the other until the time is over."""
    while time.monotonic() < deadline:
        number = source.randrange(len(PROMPTS))
        leaves_after = source.randrange(1, NUM_TOKENS) if source.random() < LEAVING_SHARE else None
        text = await read_stream(host, port, PROMPTS[number], leaves_after)
        if text is None:
            soak.num_left += 1
        elif text == soak.expected[number]:
            soak.num_whole += 1
        else:
            soak.faults.append((number, text))


async def read_stream(host: str, port: int, prompt: list[int], leaves_after: int | None) -> str | None:
    """Returns a stream's text; None when its reader left after so many events."""
    body = json.dumps({"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write((head + body).encode())
        text, num_events, finish_reason = "", 0, None
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if not line:
                return f"cut off after {text!r}"
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["text"]
                finish_reason = choice["finish_reason"]
                num_events += 1
                if num_events == leaves_after:
                    return None
        return text if finish_reason == "length" else f"ended by {finish_reason}"
    finally:
        writer.close()


async def watch_memory(soak: Soak) -> None:
    process = psutil.Process()
    while True:
        gc.collect()
        soak.resident_bytes.append((time.monotonic(), process.memory_info().rss))
        await asyncio.sleep(0.5)


def growth(samples: list[tuple[float, int]]) -> float:
    """Returns by how many bytes a line through the second half of the samples rises."""
    times, sizes = np.array(samples[len(samples) // 2 :], float).T
    slope = np.polyfit(times - times[0], sizes, 1)[0]
    return float(slope * (times[-1] - times[0]))


def wait_for_files(count: int) -> None:
    """Fails when more files than before stay open."""
    deadline = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > count:
        assert time.monotonic() < deadline, "files stay open"
        time.sleep(0.05)
