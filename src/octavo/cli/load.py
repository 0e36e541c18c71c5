"""A load for a server: conversations, sent so many at a time, and when each part of every answer came.

Owns: the workloads, the HTTP side of a measurement, and what its figures mean. Must not know: terminals, Octavo's own server.

Invariants:
1. Times are the client's: from before the request is sent to when a chunk with text has arrived.
2. An answer counts as an error unless its stream ended with a finish reason and with ``[DONE]``; one that ended for its length
   before it was as long as asked for is truncated, which is an error too.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from octavo.errors import ConfigError, OctavoError

WORKLOADS = ("chat", "shared-prefix", "long")
WORDS = ["time", "river", "stone", "light", "garden", "answer", "number", "window", "winter", "letter", "music", "street", "silver"]
PROMPT_WORDS = {"chat": (10, 60), "shared-prefix": (10, 30), "long": (400, 800)}
MIN_DUPLICATE_CHARS = 32  # shorter answers may well be the same
SHARED_WORDS = 400  # of the beginning that all conversations of "shared-prefix" have


@dataclass
class Answer:
    """What one request got.

    Attributes:
        number: of the request, in the load's order.
        sent: when it was sent, in seconds; the others are relative to it.
        text: all of it.
        chunk_seconds: when each chunk with text came.
        num_tokens: completion tokens, as the server counts them.
        prompt: what was asked.
        error: what went wrong; empty: nothing.
    """

    number: int
    sent: float
    text: str = ""
    chunk_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0
    error: str = ""
    prompt: str = ""


@dataclass(frozen=True)
class Load:
    """What is to be sent.

    Attributes:
        model: the model's name for the server.
        requests: bodies of ``/v1/chat/completions``, without the fields that every request gets.
    """

    url: str
    model: str
    requests: list[dict[str, Any]]
    api_key: str = "none"
    timeout_seconds: float = 600.0


def make_requests(workload: str, num_requests: int, max_tokens: int, seed: int) -> list[dict[str, Any]]:
    """Returns the requests of a workload: one of `WORKLOADS`, or a file with one JSON body a line.

    Raises:
        ConfigError: there is no such workload, or the file is wrong.
    """
    if workload not in WORKLOADS:
        return _read_requests(Path(workload), num_requests, max_tokens)
    random = Random(seed)
    shared = " ".join(random.choices(WORDS, k=SHARED_WORDS)) + " " if workload == "shared-prefix" else ""
    requests = []
    for number in range(num_requests):
        text = " ".join(random.choices(WORDS, k=random.randint(*PROMPT_WORDS[workload])))
        content = f"{shared}Story {number}: {text}"
        requests.append({"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens})
    return requests


def _read_requests(path: Path, num_requests: int, max_tokens: int) -> list[dict[str, Any]]:
    hint = f"give one of {', '.join(WORKLOADS)}, or a file with a body of /v1/chat/completions on each line"
    try:
        bodies = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as cause:
        raise ConfigError(f"workload {str(path)!r} cannot be read: {cause}", hint=hint) from cause
    if not bodies or not all(isinstance(body, dict) and "messages" in body for body in bodies):
        raise ConfigError(f"workload {str(path)!r} has lines without messages, or none", hint=hint)
    return [{"max_tokens": max_tokens, **bodies[index % len(bodies)]} for index in range(num_requests)]


async def run_load(load: Load, concurrency: int, on_answer: Callable[[], None]) -> list[Answer]:
    """Sends all requests, ``concurrency`` at a time, and returns their answers.

    Args:
        on_answer: called after each.
    """
    import httpx

    waiting = enumerate(load.requests)
    answers: list[Answer] = []

    async def work(client: httpx.AsyncClient) -> None:
        for number, body in waiting:
            answers.append(await _ask(client, load, number, body))
            on_answer()

    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {load.api_key}"}
    async with httpx.AsyncClient(base_url=load.url, headers=headers, limits=limits, timeout=load.timeout_seconds) as client:
        await asyncio.gather(*(work(client) for _ in range(concurrency)))
    return answers


async def _ask(client: Any, load: Load, number: int, body: dict[str, Any]) -> Answer:
    import httpx

    options = {"model": load.model, "stream": True, "stream_options": {"include_usage": True}}
    answer = Answer(number, time.perf_counter(), prompt=json.dumps(body["messages"]))
    try:
        async with client.stream("POST", "/v1/chat/completions", json={**body, **options}) as response:
            if response.status_code != 200:
                answer.error = f"HTTP {response.status_code}"
                await response.aread()
            else:
                finish_reason = await _read_stream(response, answer)
                if finish_reason == "length" and 0 < answer.num_tokens < body["max_tokens"]:
                    answer.error = answer.error or "truncated"
    except httpx.HTTPError as error:
        answer.error = type(error).__name__
    answer.seconds = time.perf_counter() - answer.sent
    return answer


async def _read_stream(response: Any, answer: Answer) -> str | None:
    """Fills an answer from its stream and returns the finish reason."""
    finish_reason, is_done = None, False
    async for line in response.aiter_lines():
        is_done = is_done or line == "data: [DONE]"
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            answer.error = str(chunk["error"].get("code"))
            return None
        for choice in chunk["choices"]:
            finish_reason = choice.get("finish_reason") or finish_reason
            text = choice["delta"].get("content")
            if text:
                answer.text += text
                answer.chunk_seconds.append(time.perf_counter() - answer.sent)
        if chunk.get("usage"):
            answer.num_tokens = chunk["usage"]["completion_tokens"]
    if finish_reason is None or not is_done:
        answer.error = "cut off"
    return finish_reason


def find_model(load_url: str, api_key: str) -> str:
    """Returns the name of the first model that a server has.

    Raises:
        OctavoError: nothing answers there as it should.
    """
    import httpx

    try:
        response = httpx.get(f"{load_url}/v1/models", headers={"Authorization": f"Bearer {api_key}"})
        response.raise_for_status()
        return response.json()["data"][0]["id"]
    except (httpx.HTTPError, LookupError, ValueError) as cause:
        raise OctavoError(f"{load_url} does not answer as a server: {cause}", hint="start one: octavo serve") from cause


def summarise(answers: Sequence[Answer], seconds: float, *, goodput_ttft_ms: float) -> dict[str, Any]:
    """Returns the figures of one measurement.

    Args:
        seconds: how long it took.
        goodput_ttft_ms: requests whose first text came within this time count for goodput.
    """
    good = [answer for answer in answers if not answer.error]
    intervals = [later - earlier for a in good for earlier, later in zip(a.chunk_seconds, a.chunk_seconds[1:], strict=False)]
    first = [answer.chunk_seconds[0] for answer in good if answer.chunk_seconds]
    errors: dict[str, int] = {}
    for answer in answers:
        if answer.error:
            errors[answer.error] = errors.get(answer.error, 0) + 1
    return {
        "requests": len(answers),
        "errors": errors,
        "duplicates": count_duplicates(good),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(answer.num_tokens for answer in good) / seconds, 2),
        "requests_per_s": round(len(good) / seconds, 3),
        "goodput_requests_per_s": round(sum(1000 * value <= goodput_ttft_ms for value in first) / seconds, 3),
        "ttft_ms": percentiles(first),
        "inter_token_ms": percentiles(intervals),
        "e2e_ms": percentiles([answer.seconds for answer in good]),
    }


def count_duplicates(answers: Sequence[Answer]) -> int:
    """Returns how many answers have the same text as one to another question: a sign that a server mixes them up."""
    prompts: dict[str, set[str]] = {}
    for answer in answers:
        if len(answer.text) >= MIN_DUPLICATE_CHARS:
            prompts.setdefault(answer.text, set()).add(answer.prompt)
    return sum(len(asked) - 1 for asked in prompts.values())


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Returns percentiles in milliseconds, each a value that occurred; None where there is none."""
    ordered = sorted(seconds)
    return {
        f"p{share}": round(1000 * ordered[max(0, -(-share * len(ordered) // 100) - 1)], 2) if ordered else None
        for share in (50, 90, 99)
    }
