"""The settings of a simulation, and the simulation that they describe.

Owns: every setting's name, unit, default and description; how the parts are put together. Must not know: how a report is shown.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from octavo.config import KV_DTYPES, MAX_STEP_TOKENS, check_fields, parse_bytes, setting
from octavo.errors import ConfigError
from octavo.scheduler.scheduler import SchedulerLimits
from octavo.simulator.lengths import DATASETS
from octavo.simulator.memories import ALLOCATORS, PAGED, make_memory
from octavo.simulator.replica import Replica
from octavo.simulator.report import Report, make_report
from octavo.simulator.routers import ROUTERS
from octavo.simulator.simulation import Simulation
from octavo.simulator.statistics import Goals, Statistics
from octavo.simulator.step_time import ModelCosts, StepTime
from octavo.simulator.traces import Trace
from octavo.simulator.workload import Chats, ClosedLoop, OpenLoop, RequestSource, Workload

WORKLOADS = ("poisson", "closed", "chats")
MAX_REPLICAS = 1024


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """All settings but the model and the machine. Each field's metadata holds its description, unit and allowed values."""

    allocator: str = setting(PAGED, "How KV memory is given to sequences.", choices=ALLOCATORS)
    kv_memory: str = setting("12GiB", "KV memory of one replica.", unit="bytes")
    kv_dtype: str = setting("bf16", "Format in which K and V are held.", choices=KV_DTYPES)
    block_size: int = setting(16, "Tokens per KV block of the paged memory.", unit="tokens", minimum=1)
    max_model_len: int | None = setting(
        None, "Most tokens of a sequence; the model's limit if not given.", unit="tokens", minimum=2
    )
    max_num_seqs: int = setting(256, "Most sequences that run at once.", unit="sequences", minimum=1, maximum=MAX_STEP_TOKENS)
    max_num_batched_tokens: int = setting(2560, "Token budget of one step.", unit="tokens", minimum=1)
    prefix_caching: bool = setting(True, "Whether the paged memory keeps blocks for equal prefixes.")
    workload: str = setting("poisson", "When requests come; a trace replaces it.", choices=WORKLOADS)
    lengths: str = setting("sharegpt", "Lengths of prompts and answers.", choices=tuple(DATASETS))
    requests: int = setting(1000, "Requests of the workload; first turns, for chats.", unit="requests", minimum=1)
    rate: float = setting(1.0, "Requests per second; new chats per second, for chats.")
    burst_size: int = setting(1, "Requests that come at the same moment.", unit="requests", minimum=1)
    users: int = setting(32, "Users of the closed loop, each with one request at a time.", unit="users", minimum=1)
    turns: int = setting(4, "Turns of a chat.", unit="turns", minimum=1)
    think_s: float = setting(10.0, "Mean time between an answer and the chat's next question.", unit="seconds")
    system_tokens: int = setting(0, "Length of a system prompt that all requests share.", unit="tokens", minimum=0)
    trace: str | None = setting(None, "File of requests, one JSON object a line, to take instead of a workload.", unit="file")
    replicas: int = setting(1, "Machines that serve the workload.", unit="machines", minimum=1, maximum=MAX_REPLICAS)
    router: str = setting("round-robin", "Which replica gets a request.", choices=tuple(ROUTERS))
    ttft_goal_ms: float | None = setting(None, "Longest time to the first token of a well served request.", unit="ms")
    tpot_goal_ms: float | None = setting(None, "Longest time per later token of a well served request.", unit="ms")
    price_per_hour: float | None = setting(None, "What one replica costs per hour.")
    seed: int = setting(0, "Seed of lengths, arrivals and pauses.", minimum=0)

    def __post_init__(self) -> None:
        check_fields(self)
        for item in fields(self):
            value = getattr(self, item.name)
            if "float" in str(item.type) and value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{item.name}={value!r} is not a number of at least 0")
        if self.rate == 0:
            raise ConfigError("rate=0.0 lets no request come", hint="give a number above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}",
                hint="a step must have room for one token of each running sequence: lower max_num_seqs",
            )


def simulate(
    settings: SimulationSettings, model: ModelCosts, step_time: StepTime, on_finished: Callable[[int], None] | None = None
) -> Report:
    """Runs the simulation that the settings describe.

    Args:
        on_finished: called with the number of requests that came to an end, whenever it grew.

    Raises:
        ConfigError: the settings do not go together, or the trace cannot be read.
    """
    statistics = Statistics(_goals(settings))
    max_model_len = settings.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise ConfigError(f"max_model_len={max_model_len} is more than the model's {model.max_model_len} positions")
    replicas = [_make_replica(settings, model, max_model_len, step_time, statistics) for _ in range(settings.replicas)]
    workload = _make_workload(settings, max_model_len)
    simulation = Simulation(replicas, ROUTERS[settings.router](), workload, statistics, on_finished)
    simulation.run()
    return make_report(statistics, simulation.now_s, num_replicas=settings.replicas, price_per_hour=settings.price_per_hour)


def _goals(settings: SimulationSettings) -> Goals:
    ttft_ms, tpot_ms = settings.ttft_goal_ms, settings.tpot_goal_ms
    return Goals(None if ttft_ms is None else ttft_ms / 1e3, None if tpot_ms is None else tpot_ms / 1e3)


def _make_replica(
    settings: SimulationSettings, model: ModelCosts, max_model_len: int, step_time: StepTime, statistics: Statistics
) -> Replica:
    memory = make_memory(
        settings.allocator,
        model,
        kv_bytes=parse_bytes(settings.kv_memory, name="kv_memory"),
        block_size=settings.block_size,
        max_model_len=max_model_len,
        prefix_caching=settings.prefix_caching,
    )
    watermark_blocks = int(memory.watermark_ratio * memory.capacity)
    limits = SchedulerLimits(
        settings.max_num_seqs, settings.max_num_batched_tokens, watermark_blocks, model.attention_parity_tokens
    )
    return Replica(memory, limits, step_time, statistics, max_model_len)


def _make_workload(settings: SimulationSettings, max_model_len: int) -> Workload:
    if settings.trace is not None:
        return Trace(settings.trace)
    if settings.system_tokens > max_model_len - 2:
        raise ConfigError(f"a system prompt of {settings.system_tokens} tokens leaves no room in {max_model_len}")
    source = RequestSource(
        DATASETS[settings.lengths], max_tokens=max_model_len, seed=settings.seed, num_system_tokens=settings.system_tokens
    )
    if settings.workload == "closed":
        return ClosedLoop(source, num_requests=settings.requests, num_users=settings.users)
    if settings.workload == "chats":
        return Chats(source, num_chats=settings.requests, rate=settings.rate, num_turns=settings.turns, think_s=settings.think_s)
    return OpenLoop(source, num_requests=settings.requests, rate=settings.rate, burst_size=settings.burst_size)
