"""What is asked of the simulated machines, and when.

Owns: requests and the order in which they come. Must not know: memory, steps, machines.

A prompt is a tuple of ranges of token ids: equal ranges are equal text, and ranges never used before are text that nobody shares.

Invariants:
1. Equal seeds give equal requests.
2. Requests are made one at a time, as they are needed, so that a workload's length costs no memory.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from octavo.simulator.lengths import Lengths

FIRST_FRESH_TOKEN = 2**40  # above it lies text that occurs once; traces name shared text by numbers below it


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        prompt: ranges of token ids, in order.
        reply: the token ids that the answer will have.
        affinity: equal for requests that share a beginning; what a router may go by.
        turn: how many turns of the same chat came before.
    """

    arrival_s: float
    prompt: tuple[range, ...]
    reply: range
    affinity: int
    turn: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(map(len, self.prompt))

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.num_prompt_tokens + len(self.reply)


class Workload(Protocol):
    """Where requests come from."""

    def arrivals(self) -> Iterator[Request]:
        """Yields the requests that come whatever the machines do, in order of arrival."""

    def following(self, request: Request, now_s: float) -> Request | None:
        """Returns the request that the end of ``request`` at ``now_s`` leads to, if any."""


class FreshTokens:
    """Hands out token ids that were never used before."""

    def __init__(self) -> None:
        self._next = FIRST_FRESH_TOKEN

    def take(self, num_tokens: int) -> range:
        """Returns the next ``num_tokens`` ids."""
        start, self._next = self._next, self._next + num_tokens
        return range(start, self._next)


class RequestSource:
    """Draws requests.

    Args:
        max_tokens: most tokens of a request, prompt and answer.
        num_system_tokens: length of the system prompt that all requests begin with.
    """

    def __init__(self, lengths: Lengths, *, max_tokens: int, seed: int, num_system_tokens: int = 0):
        self.random = random.Random(seed)
        self.fresh = FreshTokens()
        self._lengths = lengths
        self._max_tokens = max_tokens
        self._system = (range(num_system_tokens),) if num_system_tokens else ()

    def draw(self, arrival_s: float) -> Request:
        """Returns the next request."""
        num_system_tokens = sum(map(len, self._system))
        num_prompt_tokens, num_output_tokens = self._lengths.draw(self.random, self._max_tokens - num_system_tokens)
        question = self.fresh.take(num_prompt_tokens)
        affinity = self._system[0].start if self._system else question.start
        return Request(arrival_s, (*self._system, question), self.fresh.take(num_output_tokens), affinity)

    def draw_turn(self, before: Request, arrival_s: float) -> Request | None:
        """Returns the next turn of the chat that ``before`` belongs to; None when the history leaves no room for it."""
        history = (*before.prompt, before.reply)
        num_prompt_tokens, num_output_tokens = self._lengths.draw(self.random, self._max_tokens)
        if before.num_tokens + num_prompt_tokens + num_output_tokens > self._max_tokens:
            return None
        question, reply = self.fresh.take(num_prompt_tokens), self.fresh.take(num_output_tokens)
        return Request(arrival_s, (*history, question), reply, before.affinity, before.turn + 1)


class OpenLoop:
    """Requests that come at a mean rate, whether or not the machines keep up.

    Args:
        rate: requests per second.
        burst_size: requests that come at the same moment; 1 = a Poisson process.
    """

    def __init__(self, source: RequestSource, *, num_requests: int, rate: float, burst_size: int = 1):
        self._source = source
        self._num_requests = num_requests
        self._bursts_per_s = rate / burst_size
        self._burst_size = burst_size

    def arrivals(self) -> Iterator[Request]:
        """See `Workload`."""
        now_s = 0.0
        for index in range(self._num_requests):
            if index % self._burst_size == 0:
                now_s += self._source.random.expovariate(self._bursts_per_s)
            yield self._source.draw(now_s)

    def following(self, request: Request, now_s: float) -> Request | None:
        """See `Workload`."""
        return None


class ClosedLoop:
    """Users of whom each asks again as soon as the answer is there."""

    def __init__(self, source: RequestSource, *, num_requests: int, num_users: int):
        self._source = source
        self._num_left = num_requests - min(num_users, num_requests)
        self._num_first = min(num_users, num_requests)

    def arrivals(self) -> Iterator[Request]:
        """See `Workload`."""
        for _ in range(self._num_first):
            yield self._source.draw(0.0)

    def following(self, request: Request, now_s: float) -> Request | None:
        """See `Workload`."""
        if self._num_left == 0:
            return None
        self._num_left -= 1
        return self._source.draw(now_s)


class Chats:
    """Chats that begin at a mean rate, each of a number of turns with time to think between them.

    Args:
        rate: chats per second.
        think_s: mean of the exponentially distributed time between an answer and the next question.
    """

    def __init__(self, source: RequestSource, *, num_chats: int, rate: float, num_turns: int, think_s: float):
        self._source = source
        self._openings = OpenLoop(source, num_requests=num_chats, rate=rate)
        self._num_turns = num_turns
        self._think_s = think_s

    def arrivals(self) -> Iterator[Request]:
        """See `Workload`."""
        return self._openings.arrivals()

    def following(self, request: Request, now_s: float) -> Request | None:
        """See `Workload`."""
        if request.turn + 1 >= self._num_turns:
            return None
        pause_s = self._source.random.expovariate(1 / self._think_s) if self._think_s else 0.0
        return self._source.draw_turn(request, now_s + pause_s)
