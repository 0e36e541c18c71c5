"""Requests from a file: one JSON object a line, in order of arrival.

Owns: the two forms of a line. Must not know: when the file's requests are served.

Ours:      {"arrival_s": 1.5, "prompt_tokens": 900, "output_tokens": 120, "prefix": 3, "prefix_tokens": 512}
           ``prefix`` names a beginning of ``prefix_tokens`` tokens; requests with the same number share it. Both may be left out.
Mooncake:  {"timestamp": 1500, "input_length": 900, "output_length": 120, "hash_ids": [0, 7]}
           milliseconds; each hash id names 512 tokens in order, the last one what is left of the prompt.
"""

import json
from collections.abc import Iterator
from typing import Any

from octavo.errors import ConfigError
from octavo.simulator.workload import FreshTokens, Request

MOONCAKE_BLOCK_TOKENS = 512
PREFIX_STRIDE_TOKENS = 2**20  # between the token ids of two named beginnings; none may be longer


class Trace:
    """The requests of a file, read while they come. It is a `Workload`.

    Raises:
        ConfigError: when it is read: a line is not of one of the two forms, or comes before the line above it.
    """

    def __init__(self, path: str):
        self._path = path
        self._fresh = FreshTokens()

    def arrivals(self) -> Iterator[Request]:
        """See `Workload`."""
        last_s = 0.0
        with open(self._path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    request = self._read(number, line)
                    if request.arrival_s < last_s:
                        raise self._error(number, f"it arrives at {request.arrival_s} s, before the line above it ({last_s} s)")
                    last_s = request.arrival_s
                    yield request

    def following(self, request: Request, now_s: float) -> Request | None:
        """See `Workload`."""
        return None

    def _error(self, number: int, problem: str) -> ConfigError:
        return ConfigError(f"{self._path}, line {number}: {problem}")

    def _read(self, number: int, line: str) -> Request:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise self._error(number, f"not JSON: {error}") from error
        if not isinstance(record, dict):
            raise self._error(number, "not a JSON object")
        try:
            return self._from_mooncake(record) if "hash_ids" in record else self._from_ours(record)
        except KeyError as error:
            raise self._error(number, f"there is no field {error}") from error
        except (TypeError, ValueError) as error:
            raise self._error(number, str(error)) from error

    def _from_ours(self, record: dict[str, Any]) -> Request:
        num_prompt_tokens, num_output_tokens = _count(record, "prompt_tokens"), _count(record, "output_tokens")
        if "prefix" not in record:
            prompt = self._fresh.take(num_prompt_tokens)
            return Request(_seconds(record, "arrival_s"), (prompt,), self._fresh.take(num_output_tokens), prompt.start)
        num_shared_tokens = _count(record, "prefix_tokens")
        if num_shared_tokens > min(num_prompt_tokens, PREFIX_STRIDE_TOKENS):
            raise ValueError(f"prefix_tokens={num_shared_tokens} is more than the prompt, or than {PREFIX_STRIDE_TOKENS}")
        start = _identity(record["prefix"]) * PREFIX_STRIDE_TOKENS
        prompt = (range(start, start + num_shared_tokens), self._fresh.take(num_prompt_tokens - num_shared_tokens))
        return Request(_seconds(record, "arrival_s"), prompt, self._fresh.take(num_output_tokens), start)

    def _from_mooncake(self, record: dict[str, Any]) -> Request:
        num_prompt_tokens = _count(record, "input_length")
        hash_ids = record["hash_ids"]
        if not isinstance(hash_ids, list) or len(hash_ids) != -(-num_prompt_tokens // MOONCAKE_BLOCK_TOKENS):
            raise ValueError(f"hash_ids does not have one id for each {MOONCAKE_BLOCK_TOKENS} tokens of input_length")
        starts = [_identity(hash_id) * MOONCAKE_BLOCK_TOKENS for hash_id in hash_ids]
        prompt = [range(start, start + MOONCAKE_BLOCK_TOKENS) for start in starts[:-1]]
        prompt.append(range(starts[-1], starts[-1] + num_prompt_tokens - len(prompt) * MOONCAKE_BLOCK_TOKENS))
        reply = self._fresh.take(_count(record, "output_length"))
        return Request(_seconds(record, "timestamp") / 1e3, tuple(prompt), reply, starts[0])


def _count(record: dict[str, Any], name: str) -> int:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} is not a whole number of at least 1")
    return value


def _seconds(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name}={value!r} is not a time of at least 0")
    return float(value)


def _identity(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**20:
        raise ValueError(f"{value!r} does not name a shared text: that is a whole number from 0 to {2**20 - 1}")
    return value
