"""Which replica gets a request.

Owns: the choice. Must not know: memory or time.
"""

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from octavo.simulator.replica import Replica
from octavo.simulator.workload import Request

# A replica with this many times the mean number of open requests, and a few more, gives its prefixes' requests away.
OVERLOAD_RATIO, OVERLOAD_REQUESTS = 1.5, 4


class Router(Protocol):
    """Chooses replicas."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """Returns the replica for ``request``."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._turns = count()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """See `Router`."""
        return replicas[next(self._turns) % len(replicas)]


class LeastLoaded:
    """The fewest open requests; the first of them."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """See `Router`."""
        return min(replicas, key=lambda replica: replica.num_open_requests)


class PrefixAffine:
    """Where requests with the same beginning went before, unless that one is overloaded."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """See `Router`."""
        home = replicas[hash((request.affinity,)) % len(replicas)]
        mean = sum(replica.num_open_requests for replica in replicas) / len(replicas)
        if home.num_open_requests > OVERLOAD_RATIO * mean + OVERLOAD_REQUESTS:
            return LeastLoaded().choose(request, replicas)
        return home


ROUTERS = {"round-robin": RoundRobin, "least-loaded": LeastLoaded, "prefix-affine": PrefixAffine}
