"""Notices that work waits and nothing runs, which only a fault of the engine can cause, or blocks that move to or from a file.

Owns: when that is so, and what is told of it. Must not know: who waits for the answers.
"""

import logging
import time
from collections.abc import Callable

from octavo.engine.engine import Engine
from octavo.errors import StallError

DEFAULT_TIMEOUT_SECONDS = 60.0
logger = logging.getLogger("octavo.engine")


class StallWatch:
    """Watches one engine.

    Args:
        timeout_seconds: without a computed step for so long, although requests are in flight and no session that is saved or loaded
            holds blocks, the engine is stalled.
        clock: seconds that never fall.
    """

    def __init__(
        self,
        engine: Engine,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._num_steps = -1
        self._since = 0.0

    def check(self) -> StallError | None:
        """Returns what is to be told to the request in the way once the engine is stalled; call it after every step.

        Side effects: writes all that the engine holds to the log. Another request is named only after another timeout.
        """
        now = self._clock()
        sessions = self._engine.sessions
        is_held_up = sessions is not None and sessions.num_under_way > 0
        if self._engine.num_steps != self._num_steps or not self._engine.has_unfinished_requests or is_held_up:
            self._num_steps, self._since = self._engine.num_steps, now
            return None
        seconds = now - self._since
        if seconds < self._timeout_seconds:
            return None
        self._since = now
        dump = self._engine.dump()
        logger.critical("nothing has run for %.0f s although requests wait; failing %s\n%s", seconds, dump.offender, dump.text)
        return StallError(
            f"request {dump.offender} was failed: the engine could not run anything for {seconds:.0f} s",
            request_id=dump.offender,
            hint="this is a fault of the engine; the log says what it held",
        )
