"""octavo.simulator.simulation and replica: time's order, and memory that does not grow with the number of requests."""

import gc
import tracemalloc

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.scheduler.scheduler import SchedulerLimits
from octavo.simulator.lengths import Lengths, LogNormal
from octavo.simulator.replica import Replica
from octavo.simulator.routers import LeastLoaded, PrefixAffine, RoundRobin
from octavo.simulator.simulation import Simulation
from octavo.simulator.statistics import Statistics
from octavo.simulator.step_time import MachineRates, ModelCosts, Roofline
from octavo.simulator.workload import ClosedLoop, OpenLoop, Request, RequestSource

MODEL = ModelCosts(1, 0, 0, (None,), 0, 64, None)
ONE_SECOND_A_STEP = MachineRates(1e30, 1e30, step_overhead_s=1.0)


class Listed:
    """A workload of these requests and nothing that follows them."""

    def __init__(self, *requests: Request):
        self._requests = requests

    def arrivals(self):
        return iter(self._requests)

    def following(self, request: Request, now_s: float) -> None:
        return None


def request(arrival_s: float, num_prompt_tokens: int, num_output_tokens: int, affinity: int = 0) -> Request:
    """Returns a request of these lengths."""
    return Request(arrival_s, (range(num_prompt_tokens),), range(900, 900 + num_output_tokens), affinity)


def make_replica(statistics: Statistics) -> Replica:
    """Returns a machine whose every step takes a second."""
    kv = KVManager(num_blocks=64, block_size=4, groups=[LayerGroup((0,), None)], enable_prefix_caching=False)
    return Replica(kv, SchedulerLimits(8, 64), Roofline(MODEL, ONE_SECOND_A_STEP), statistics, 64)


def run(workload) -> tuple[Statistics, float]:
    """Returns the statistics and the virtual time of one machine."""
    statistics = Statistics()
    simulation = Simulation([make_replica(statistics)], RoundRobin(), workload, statistics)
    simulation.run()
    return statistics, simulation.now_s


def test_one_request_takes_a_step_for_each_token_of_its_answer() -> None:
    statistics, now_s = run(Listed(request(2.0, 5, 3)))
    assert now_s == 5.0
    assert statistics.ttft.mean_s() == 1.0
    assert statistics.tpot.mean_s() == 1.0
    assert statistics.latency_per_token.mean_s() == 1.0


def test_late_request_waits_for_the_step_in_progress() -> None:
    statistics, now_s = run(Listed(request(0.0, 5, 2), request(0.5, 5, 1)))
    assert now_s == 2.0
    assert statistics.ttft.mean_s() == (1.0 + 1.5) / 2


def test_requests_of_one_moment_share_the_first_step() -> None:
    statistics, now_s = run(Listed(request(0.0, 5, 1), request(0.0, 5, 1)))
    assert (now_s, statistics.num_steps, statistics.num_peak_running) == (1.0, 1, 2)


def test_what_never_fits_is_refused_and_the_rest_served() -> None:
    statistics, _ = run(Listed(request(0.0, 60, 5), request(0.0, 5, 1)))
    assert (statistics.num_refused, statistics.num_finished) == (1, 1)


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    def bytes_left(num_requests: int) -> int:
        """Returns what a simulation holds after its last request."""
        source = RequestSource(Lengths(LogNormal(4, 0), LogNormal(2, 0)), max_tokens=64, seed=0)
        workload = ClosedLoop(source, num_requests=num_requests, num_users=8)
        statistics = Statistics()
        simulation = Simulation([make_replica(statistics)], RoundRobin(), workload, statistics)
        tracemalloc.start()
        simulation.run()
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert statistics.num_finished == num_requests
        return left

    bytes_left(100)  # whatever is allocated once
    assert bytes_left(2000) < bytes_left(200) + 10_000, "more than five bytes for each request"


def test_least_loaded_is_the_one_with_fewest_open_requests() -> None:
    replicas = [make_replica(Statistics()) for _ in range(3)]
    for replica in (replicas[0], replicas[0], replicas[1]):
        replica.add(request(0.0, 5, 1))
    assert LeastLoaded().choose(request(0.0, 5, 1), replicas) is replicas[2]


def test_prefix_affine_leaves_an_overloaded_replica() -> None:
    replicas = [make_replica(Statistics()) for _ in range(4)]
    asked = request(0.0, 5, 1, affinity=7)
    home = PrefixAffine().choose(asked, replicas)
    assert PrefixAffine().choose(asked, replicas) is home
    for _ in range(20):
        home.add(asked)
    assert PrefixAffine().choose(asked, replicas) is not home


def test_open_loop_is_read_one_request_at_a_time() -> None:
    source = RequestSource(Lengths(LogNormal(4, 0), LogNormal(2, 0)), max_tokens=64, seed=0)
    handed_out = []

    class Watched(OpenLoop):
        def arrivals(self):
            for arriving in super().arrivals():
                handed_out.append(arriving)
                yield arriving

    statistics = Statistics()
    most_ahead = []

    def note(num_finished: int) -> None:
        most_ahead.append(len(handed_out) - num_finished)

    workload = Watched(source, num_requests=50, rate=0.1)
    Simulation([make_replica(statistics)], RoundRobin(), workload, statistics, note).run()
    assert len(handed_out) == 50
    assert max(most_ahead) < 10
