"""The virtual clock.

Owns: the order of arrivals and ends of steps. Must not know: what a step computes.

Invariants:
1. Time never runs backwards; what happens at one moment happens in the order in which it was planned.
2. Of a workload's arrivals only the next one is held.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from octavo.simulator.replica import Replica
from octavo.simulator.routers import Router
from octavo.simulator.statistics import Statistics
from octavo.simulator.workload import Request, Workload


class Simulation:
    """Replicas that serve one workload.

    Args:
        on_finished: called with the number of requests finished or refused so far, whenever it grew.

    Attributes:
        now_s: the virtual time.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        workload: Workload,
        statistics: Statistics,
        on_finished: Callable[[int], None] | None = None,
    ):
        self.now_s = 0.0
        self._replicas = replicas
        self._router = router
        self._workload = workload
        self._statistics = statistics
        self._on_finished = on_finished
        self._order = count()
        self._events: list[tuple[float, int, Request | Replica]] = []  # (when, order, who arrives or whose step ends)
        self._arrivals: Iterator[Request] = iter(())
        self._awaited: Request | None = None  # the arrival that is planned

    def run(self) -> None:
        """Serves the whole workload."""
        self._arrivals = self._workload.arrivals()
        self._plan_next_arrival()
        while self._events:
            self.now_s = self._events[0][0]
            touched: dict[Replica, None] = {}
            while self._events and self._events[0][0] == self.now_s:
                _, _, event = heappop(self._events)
                touched[self._end_step(event) if isinstance(event, Replica) else self._arrive(event)] = None
            for replica in touched:
                if replica.can_start:
                    self._plan(self.now_s + replica.start_step(), replica)

    def _plan(self, when_s: float, event: Request | Replica) -> None:
        heappush(self._events, (when_s, next(self._order), event))

    def _plan_next_arrival(self) -> None:
        self._awaited = next(self._arrivals, None)
        if self._awaited is not None:
            self._plan(self._awaited.arrival_s, self._awaited)

    def _arrive(self, request: Request) -> Replica:
        if request is self._awaited:
            self._plan_next_arrival()
        replica = self._router.choose(request, self._replicas)
        if not replica.add(request):
            self._statistics.num_refused += 1
            self._end(request)
        return replica

    def _end_step(self, replica: Replica) -> Replica:
        for request in replica.end_step(self.now_s):
            self._end(request)
        return replica

    def _end(self, request: Request) -> None:
        following = self._workload.following(request, self.now_s)
        if following is not None:
            self._plan(following.arrival_s, following)
        if self._on_finished is not None:
            self._on_finished(self._statistics.num_finished + self._statistics.num_refused)
