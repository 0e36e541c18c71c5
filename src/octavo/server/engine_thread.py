"""The engine's own thread, and the way to it from the HTTP loop.

Owns: the loop that steps the engine, the queue of commands to it, and the routing of its results. Must not know: HTTP, JSON.

Commands are functions, run on the engine's thread between two steps in the order in which they were sent. What a step produced
crosses back to the HTTP loop together, by one ``call_soon_threadsafe``.

Invariants:
1. Only the engine's thread touches the engine; the HTTP loop never waits for a step, only coroutines of it do.
2. A request that was given up is out of the engine before the next step begins, whatever state it was in.
3. Either all prompts of an HTTP request are in the engine or none.
4. If the thread dies, every answer fails at once, and so does everything that comes later.
5. An engine without work costs next to no processor time: its memory is looked after once a second.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from octavo.errors import CapacityError
from octavo.outputs import OutputDelta, RequestOutput
from octavo.server.answer import Answer, PromptDelta, complete_choices, last_deltas
from octavo.server.caretaker import LOOK_SECONDS, Caretaker
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, as_api_error
from octavo.server.keys import ApiKey
from octavo.server.submission import Submission

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.explanation import RequestExplanation
    from octavo.errors import StallError

IDLE_STEP_SECONDS = 0.01  # pause after a step that could compute nothing although requests wait
READY_SECONDS = 10.0  # a server that completes no step for so long, although there is work, gets no more of it
STOP_SECONDS = 10.0  # a thread that does not end by then is left to the end of the process
logger = logging.getLogger("octavo.server")
T = TypeVar("T")


class Observer(Protocol):
    """Who is told, on the HTTP loop, what the engine does."""

    def on_accepted(self, submissions: list[Submission]) -> None:
        """The prompts of an HTTP request are in the engine."""

    def on_token_intervals(self, seconds: list[float]) -> None:
        """A step gave these times between a choice's tokens."""

    def on_finished(self, submission: Submission, result: RequestOutput) -> None:
        """A request ended, by itself or by being aborted."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Something else happened in the engine."""


@dataclass
class _Owner:
    """Whose request it is and what of it went out.

    Attributes:
        num_sent_chars, last_token_times: by choice.
    """

    answer: Answer
    prompt_index: int
    submission: Submission
    num_unfinished: int
    num_sent_chars: list[int]
    last_token_times: list[float | None]


@dataclass
class _Crossing:
    """What goes over to the HTTP loop together."""

    items: list[tuple[_Owner, OutputDelta | RequestOutput]] = field(default_factory=list)
    token_intervals: list[float] = field(default_factory=list)


class EngineThread:
    """Runs an engine on a thread of its own."""

    def __init__(self, engine: "Engine", observer: Observer, config: ServerConfig):
        self._engine = engine
        self._observer = observer
        self._caretaker = Caretaker(engine, config)
        self._stall_timeout = config.stall_timeout
        self._stalled_until = 0.0
        self._max_requests = config.max_requests
        self._max_lag_tokens = config.max_lag_tokens
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop  # set by start
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []  # guarded by _wake, as the next two
        self._is_stopping = False
        self._is_over = False
        self._busy_since: float | None = None
        self._owners: dict[str, _Owner] = {}  # touched by the engine's thread only
        self._answers: set[Answer] = set()  # touched by the HTTP loop only, as the next
        self._calls: set[asyncio.Future] = set()

    # ---- from the HTTP loop

    def start(self) -> None:
        """Starts the thread; results go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the current step; answers that are not finished fail."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(STOP_SECONDS)

    @property
    def is_alive(self) -> bool:
        """False once the thread has died or was stopped."""
        return not self._is_over and self._thread.is_alive()

    @property
    def is_stalled(self) -> bool:
        """Whether no step was completed for `READY_SECONDS` although there is work, or the engine stalled and has not run since."""
        now, busy_since = time.monotonic(), self._busy_since
        return now < self._stalled_until or (busy_since is not None and now - busy_since > READY_SECONDS)

    @property
    def num_answers(self) -> int:
        """HTTP requests that the engine works for."""
        return len(self._answers)

    @property
    def request_ids(self) -> list[str]:
        """The engine's names of the requests whose answers are not whole."""
        return [request_id for answer in self._answers for request_id in answer.request_ids]

    async def submit(self, submissions: list[Submission], *, streams: bool) -> Answer:
        """Hands an HTTP request's prompts to the engine.

        Args:
            streams: whether deltas are wanted, not only the results.

        Returns:
            The answer in the making, once the engine has accepted every prompt. Whoever gets it must `release` it.

        Raises:
            OctavoError: a prompt was refused, or the queue is full; none is in the engine.
            ApiError: the engine has stopped.
        """
        answer = Answer([submission.request_id for submission in submissions], streams=streams, max_lag_tokens=self._max_lag_tokens)
        self._answers.add(answer)
        try:
            await self.call(lambda engine: self._accept(answer, submissions, engine))
        except BaseException:
            self.release(answer)
            raise
        return answer

    def release(self, answer: Answer) -> None:
        """Lets go of an answer; one that has not ended is given up, and its requests leave the engine before the next step."""
        self._answers.discard(answer)
        if not answer.has_ended:
            answer.fail(ApiError(503, "the request was given up", code="aborted"))
            self._send(partial(self._abort, answer))

    def cut_short(self, answer: Answer, why: ApiError) -> None:
        """Ends an answer where it stands: it keeps what was generated, with the finish reason "abort".

        Args:
            why: what the client is told if nothing was.
        """
        self._send(partial(self._abort, answer, why))

    def cut_all_short(self, why: ApiError) -> None:
        """Ends every answer where it stands."""
        for answer in self._answers:
            self.cut_short(answer, why)

    async def cancel(self, request_id: str, key: ApiKey, why: ApiError) -> "RequestExplanation | None":
        """Ends the answer that a request of this key belongs to, where it stands; its blocks are free when this returns.

        Args:
            request_id: the engine's name for the request, or the name that all prompts of one HTTP request share.

        Returns:
            what became of the request; None when the key has none of that name in flight.
        """
        return await self.call(lambda engine: self._cancel(request_id, key, why, engine))

    async def call(self, function: Callable[["Engine"], T]) -> T:
        """Runs a function on the engine's thread between two steps and returns its result.

        Raises:
            ApiError: the engine has stopped.
            Exception: whatever the function raises.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if not self._send(partial(self._run_call, function, outcome)):
            raise _stopped()
        self._calls.add(outcome)
        try:
            return await outcome
        finally:
            self._calls.discard(outcome)

    def _send(self, command: Callable[[], None]) -> bool:
        """Queues a command; False when nobody is there to run it."""
        with self._wake:
            if self._is_over:
                return False
            self._commands.append(command)
            self._wake.notify()
        return True

    # ---- on the engine's thread

    def _run(self) -> None:
        try:
            while self._take_turn():
                pass
        except BaseException as error:  # whatever it is, nobody may go on waiting for this thread
            logger.critical("the engine died", exc_info=error)
        with self._wake:
            self._is_over = True
        self._post(self._fail_all)

    def _take_turn(self) -> bool:
        """Runs what was commanded, then one step; waits when there is neither. False when it is time to stop."""
        for command in self._next_commands():
            command()
        if self._is_stopping:
            return False
        for event in self._caretaker.tend():
            self._post(self._observer.on_event, event)
        if self._engine.has_unfinished_requests:
            num_steps = self._engine.num_steps
            deltas = self._engine.step()
            stall = self._caretaker.check_progress()
            if stall is not None:
                self._fail(stall)
            if self._engine.num_steps == num_steps:
                time.sleep(IDLE_STEP_SECONDS)
                return True
            self._cross(self._route(deltas))
            self._stalled_until = 0.0
        self._busy_since = time.monotonic() if self._engine.has_unfinished_requests else None
        return True

    def _next_commands(self) -> list[Callable[[], None]]:
        with self._wake:
            if not (self._commands or self._is_stopping or self._engine.has_unfinished_requests):
                self._wake.wait(LOOK_SECONDS)
            commands, self._commands = self._commands, []
            if self._busy_since is None and commands:
                self._busy_since = time.monotonic()
        return commands

    def _run_call(self, function: Callable[["Engine"], T], outcome: "asyncio.Future[T]") -> None:
        try:
            result = function(self._engine)
        except Exception as error:  # belongs to the caller, who gets it
            self._post(_reject, outcome, error)
        else:
            self._post(_resolve, outcome, result)

    def _accept(self, answer: Answer, submissions: list[Submission], engine: "Engine") -> None:
        self._check_room(len(submissions), engine.num_unfinished_requests)
        try:
            for index, submission in enumerate(submissions):
                self._add(answer, index, submission, engine)
        except BaseException:
            self._abort(answer)
            raise
        self._post(self._observer.on_accepted, submissions)  # from here, so that it comes before what the next steps post

    def _check_room(self, num_new: int, num_present: int) -> None:
        if num_present + num_new > self._max_requests:
            raise CapacityError(
                f"{num_present} requests are in the server and {num_new} more would be above max_requests={self._max_requests}",
                may_fit_later=num_new <= self._max_requests,
                hint="try again later" if num_new <= self._max_requests else "send fewer prompts in one request",
            )

    def _add(self, answer: Answer, index: int, submission: Submission, engine: "Engine") -> None:
        submission.add_to(engine)
        num_choices = submission.params.n
        self._owners[submission.request_id] = _Owner(
            answer, index, submission, num_choices, [0] * num_choices, [None] * num_choices
        )

    def _cancel(self, request_id: str, key: ApiKey, why: ApiError, engine: "Engine") -> "RequestExplanation | None":
        names = (request_id, *(name for name, owner in self._owners.items() if name == f"{request_id}-{owner.prompt_index}"))
        for name in names:
            owner = self._owners.get(name)
            if owner is not None and owner.submission.key is key:
                self._abort(owner.answer, why)
                return engine.explain(name)
        return None

    def _fail(self, stall: "StallError") -> None:
        """Gives up the request that a stalled engine cannot run, and shows for a while that it was stalled."""
        self._stalled_until = time.monotonic() + self._stall_timeout
        owner = None if stall.request_id is None else self._owners.get(stall.request_id)
        if owner is not None:
            self._post(owner.answer.fail, as_api_error(stall))
            self._abort(owner.answer)

    def _abort(self, answer: Answer, why: ApiError | None = None) -> None:
        if why is not None:
            self._post(answer.note_cut, why)
        crossing = _Crossing()
        for request_id in answer.request_ids:
            owner = self._owners.get(request_id)
            if owner is None or owner.answer is not answer:
                continue
            del self._owners[request_id]
            result = self._engine.abort(request_id)
            assert result is not None, f"request {request_id} has an owner but is not in the engine"
            complete_choices(result, len(owner.num_sent_chars))
            if answer.streams:
                crossing.items += [(owner, delta) for delta in last_deltas(result, owner.num_sent_chars)]
            crossing.items.append((owner, result))
        self._cross(crossing)

    def _route(self, deltas: list[OutputDelta]) -> _Crossing:
        """Sorts a step's deltas by whom they go to."""
        crossing = _Crossing()
        now = time.monotonic()
        for delta in deltas:
            owner = self._owners[delta.request_id]
            last_time = owner.last_token_times[delta.index]
            if last_time is not None:
                crossing.token_intervals.append(now - last_time)
            owner.last_token_times[delta.index] = now
            owner.num_sent_chars[delta.index] += len(delta.text)
            if owner.answer.streams:
                crossing.items.append((owner, delta))
            if delta.finish_reason is None:
                continue
            owner.num_unfinished -= 1
            if owner.num_unfinished == 0:
                del self._owners[delta.request_id]
                crossing.items.append((owner, self._engine.take(delta.request_id)))
        return crossing

    def _cross(self, crossing: _Crossing) -> None:
        if crossing.items or crossing.token_intervals:
            self._post(self._deliver, crossing)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # ---- back on the HTTP loop

    def _deliver(self, crossing: _Crossing) -> None:
        self._observer.on_token_intervals(crossing.token_intervals)
        for owner, item in crossing.items:
            if isinstance(item, RequestOutput):
                owner.answer.finish(owner.prompt_index, item)
                self._observer.on_finished(owner.submission, item)
            elif not owner.answer.add(PromptDelta(owner.prompt_index, item)):
                self._send(partial(self._abort, owner.answer))

    def _fail_all(self) -> None:
        for answer in self._answers:
            answer.fail(_stopped())
        for outcome in self._calls:
            _reject(outcome, _stopped())


def _stopped() -> ApiError:
    return ApiError(503, "the engine has stopped", code="engine_stopped")


def _resolve(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _reject(outcome: asyncio.Future, error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
