"""The answer to one HTTP request while it is being made.

Owns: what arrived from the engine and was not yet taken by the connection. Lives on the HTTP loop. Must not know: the engine, HTTP.

Invariants:
1. `next_deltas` and `results` are awaited by one task.
2. After the end (all finished, or failed) nothing more is added.
3. No more than ``max_lag_tokens`` tokens wait for the connection: an answer whose reader lags further behind is failed, and its
   request aborted by whoever called `add`.
"""

import asyncio
from typing import NamedTuple

from octavo.outputs import CompletionOutput, OutputDelta, RequestOutput
from octavo.server.errors import ApiError


class PromptDelta(NamedTuple):
    """What one step added to one choice of one of the request's prompts."""

    prompt_index: int
    delta: OutputDelta


class Answer:
    """The results of one HTTP request's prompts.

    Args:
        request_ids: the engine's name of each prompt's request.
        streams: whether deltas are wanted, not only the results.
        max_lag_tokens: most tokens that may wait for the connection.

    Attributes:
        why_cut: why it ends before it is whole; None while nobody cut it short.
    """

    def __init__(self, request_ids: list[str], *, streams: bool, max_lag_tokens: int):
        self.request_ids = request_ids
        self.streams = streams
        self._max_lag_tokens = max_lag_tokens
        self._results: list[RequestOutput | None] = [None] * len(request_ids)
        self._num_left = len(request_ids)
        self._deltas: list[PromptDelta] = []
        self._num_waiting_tokens = 0
        self.why_cut: ApiError | None = None
        self._failure: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None  # of the task that waits for a change; an event would keep a list of them

    @property
    def has_ended(self) -> bool:
        """True when nothing more will arrive."""
        return self._num_left == 0 or self._failure is not None

    def add(self, item: PromptDelta) -> bool:
        """Takes a delta; False when the reader lags too far behind, which ends the answer."""
        if self.has_ended:
            return True
        self._deltas.append(item)
        self._num_waiting_tokens += len(item.delta.token_ids)
        if self._num_waiting_tokens > self._max_lag_tokens:
            self.fail(ApiError(503, f"more than {self._max_lag_tokens} tokens waited for a slow reader", code="slow_reader"))
            return False
        self._note_change()
        return True

    def finish(self, prompt_index: int, result: RequestOutput) -> None:
        """Takes a prompt's result; it comes after the prompt's last delta."""
        if self.has_ended:
            return
        self._results[prompt_index] = result
        self._num_left -= 1
        self._note_change()

    def note_cut(self, why: ApiError) -> None:
        """Keeps the reason why the answer ends before it is whole; the first one counts."""
        self.why_cut = self.why_cut or why

    def fail(self, failure: ApiError) -> None:
        """Ends the answer with an error; what waits is dropped."""
        if self.has_ended:
            return
        self._failure = failure
        self._deltas.clear()
        self._note_change()

    def _note_change(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def next_deltas(self) -> list[PromptDelta]:
        """Returns what arrived since the last call, waiting for something; empty at the end.

        Raises:
            ApiError: the answer failed.
        """
        while not self._deltas and not self.has_ended:
            await self._wait_for_change()
        if self._failure is not None:
            raise self._failure
        deltas, self._deltas = self._deltas, []
        self._num_waiting_tokens = 0
        return deltas

    async def results(self) -> list[RequestOutput]:
        """Waits for the end and returns the result of each prompt.

        Raises:
            ApiError: the answer failed.
        """
        while not self.has_ended:
            await self._wait_for_change()
        if self._failure is not None:
            raise self._failure
        return [result for result in self._results if result is not None]


def complete_choices(result: RequestOutput, num_choices: int) -> None:
    """Adds the choices that had not begun when the request was aborted."""
    result.outputs += [CompletionOutput(index, finish_reason="abort") for index in range(len(result.outputs), num_choices)]


def last_deltas(result: RequestOutput, num_sent_chars: list[int]) -> list[OutputDelta]:
    """Returns the last delta of each choice that an abort ended: the text that was held back, and the finish reason."""
    return [
        OutputDelta(result.request_id, output.index, output.text[num_sent_chars[output.index] :], [], finish_reason="abort")
        for output in result.outputs
        if output.finish_reason == "abort"
    ]
