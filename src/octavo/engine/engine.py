"""The loop: schedule, run, update.

Owns: the door for requests, and the step that moves them. Must not know: HTTP, threads, files.

Invariants:
1. Between steps every running sequence belongs to a request in flight.
2. A request that `add_request` refuses leaves nothing behind.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from random import Random, SystemRandom

from octavo.engine.beam_group import BeamGroup
from octavo.engine.beam_search import greedy_params
from octavo.engine.block_map import BlockMap, describe_blocks
from octavo.engine.branching import BranchPoint, branch_point
from octavo.engine.explanation import RequestExplanation
from octavo.engine.grammar import CompiledGrammar, GrammarCompiler
from octavo.engine.in_flight import InFlight
from octavo.engine.memory_guard import MemoryGuard
from octavo.engine.model_text import ModelText
from octavo.engine.pool_control import PoolControl
from octavo.engine.request import Request, new_request
from octavo.engine.request_book import RequestBook
from octavo.engine.retain import Prefixes, Retain, read_retentions
from octavo.engine.sessions import Sessions
from octavo.engine.state_dump import StateDump, dump_state
from octavo.engine.stats import EngineStats, StatsCollector
from octavo.engine.validation import RequestChecker, check_order_and_salt
from octavo.errors import RequestError
from octavo.outputs import OutputDelta, RequestOutput
from octavo.runner.model_runner import ModelRunner
from octavo.runner.pooling import Pooling, PoolingKind, check_pooling
from octavo.runner.sampling_request import SamplingRequest
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.tiers.disk_tier import DiskTier

DISK_WAIT_SECONDS = 0.01  # for a step that can compute nothing before something was read

EMBEDDING_PARAMS = SamplingParams(temperature=0.0)  # of a request that samples nothing


class Engine:
    """Serves requests with one model. Not safe to call from two threads at once.

    Attributes:
        sessions: saves and loads conversations; None where KV is not real.
        tier: the disk cache; None = what is evicted is gone.
        on_step: called after each step with what it computed and the seconds that it took.
    """

    def __init__(
        self,
        *,
        text: ModelText,
        scheduler: Scheduler,
        runner: ModelRunner,
        checker: RequestChecker,
        seed: int | None = None,
        guard: MemoryGuard | None = None,
    ):
        self.model_name = text.name
        self.tokenizer = text.tokenizer
        self.chat_template = text.chat_template
        self.default_params = SamplingParams(**text.sampling)
        self._scheduler = scheduler
        self._runner = runner
        self._checker = checker
        self.sessions: Sessions | None = None
        self.tier: DiskTier | None = None
        self.on_step: Callable[[ScheduledBatch, float], None] | None = None
        self.guard = guard
        self._stats = StatsCollector()
        self._in_flight = InFlight(scheduler, text.tokenizer)
        self._book = RequestBook(self._in_flight, self._stats)
        self._seeds = Random(seed) if seed is not None else SystemRandom()
        self._num_requests = 0
        self.prefixes = Prefixes(scheduler.kv)

    # ---- requests

    def add_request(
        self,
        prompt: str | SequenceOf[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        is_rendered: bool = False,
        grammar: CompiledGrammar | None = None,
        retain: Retain | None = None,
    ) -> str:
        """Queues a request.

        Args:
            prompt: text, or token ids.
            request_id: the caller's name for it; must not be in flight already.
            priority: lower runs earlier.
            cache_salt: KV is shared only among requests of equal salt.
            is_rendered: the text comes from a chat template: its control tokens count as such and none are added.
            grammar: what every answer must follow.
            retain: how long its blocks are worth keeping in the cache; see `read_retentions`.

        Returns:
            the request's id.

        Raises:
            RequestError: a field cannot be honoured.
            CapacityError: it can never fit.
        """
        request = self._new_request(prompt, params, request_id, priority, cache_salt, is_rendered=is_rendered)
        max_tokens = self._checker.max_total_tokens(request.prompt, params, self._scheduler, num_choices=params.num_choices)
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        sampling = self._checker.sampling(request.prompt, params, seed, grammar)
        request.retentions = read_retentions(retain)
        if params.prompt_logprobs is not None:
            request.prompt_logprobs = [None]
        return self._queue(request, self._in_flight.make_sequence(request, max_tokens, num_choices=params.num_choices), sampling)

    def add_beam_search(
        self,
        prompt: str | SequenceOf[int],
        params: BeamSearchParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        is_rendered: bool = False,
        retain: Retain | None = None,
    ) -> str:
        """Queues a prompt whose most likely continuations are searched with beams; its result has the best ones, best first."""
        request = self._new_request(prompt, greedy_params(params), request_id, priority, cache_salt, is_rendered=is_rendered)
        search = self._checker.beam_search(request.prompt, params, self._scheduler)
        request.is_beam_search, request.retentions = True, read_retentions(retain)
        num_tokens = len(request.prompt.token_ids)
        sequence = self._in_flight.make_sequence(request, num_tokens + search.max_answer_tokens)
        sampling = SamplingRequest(request.params, 0, 0, num_tokens, num_logprobs=search.num_candidates)
        request_id = self._queue(request, sequence, sampling)
        self._book.beams[request_id] = BeamGroup(request, search, params, self._in_flight)
        return request_id

    def add_embedding_request(
        self,
        prompt: str | SequenceOf[int],
        *,
        pooling: PoolingKind = "mean",
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        retain: Retain | None = None,
    ) -> str:
        """Queues a prompt to be embedded: its result has no tokens, but an `embedding`.

        Args:
            pooling: of the hidden states after the final norm: their "mean", or the "last" token's.

        The other arguments, the result and the errors are those of `add_request`.
        """
        check_pooling(pooling)
        request = self._new_request(prompt, EMBEDDING_PARAMS, request_id, priority, cache_salt)
        self._checker.check_embeddable(request.prompt, self._scheduler)
        request.retentions = read_retentions(retain)
        num_tokens = len(request.prompt.token_ids)
        sequence = self._in_flight.make_sequence(request, num_tokens)
        sequence.reads_cached_prefix = pooling == "last"  # a mean needs the hidden state of every token
        sampling = SamplingRequest(EMBEDDING_PARAMS, 0, 0, num_tokens, pooling=Pooling(pooling, num_tokens))
        return self._queue(request, sequence, sampling)

    def has_request(self, request_id: str) -> bool:
        """Returns whether a request is in flight, or left so lately that `branch_point` knows it."""
        return self._book.remembers(request_id)

    def branch_point(self, request_id: str, *, choice: int = 0, at_token: int | None = None) -> BranchPoint:
        """Returns a place in an answer from which `add_request` can go on: of a request in flight, or one that left lately.

        Of a running sequence, the computed part of its last block is shared from now on.

        Raises:
            RequestError: there is no such request, choice or token.
        """
        past = self._book.snapshot(request_id)
        if past is None:
            raise RequestError(f"no request {request_id!r} is in flight or left lately", field="request_id")
        return branch_point(past, self._checker.end_token_ids, choice=choice, at_token=at_token)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request wherever it is and returns what it has; None if it is not in flight. Its blocks are free at once."""
        return self._book.abort(request_id)

    def peek(self, request_id: str) -> RequestOutput:
        """Returns a request's result as it stands, in flight or finished."""
        return self._book.peek(request_id)

    def discard(self, request_id: str) -> None:
        """Forgets a request, in flight or finished; nothing happens if there is none."""
        self._book.abort(request_id)
        self._book.finished.pop(request_id, None)

    def take(self, request_id: str) -> RequestOutput:
        """Returns and forgets a finished request's result."""
        return self._book.finished.pop(request_id)

    @property
    def vocab_size(self) -> int:
        """Token ids below it are accepted."""
        return self._checker.vocab_size

    @property
    def hidden_size(self) -> int:
        """Numbers of an embedding."""
        return self._runner.hidden_size

    def grammar_compiler(self) -> GrammarCompiler:
        """Returns what makes grammars for `add_request`; safe to use while the engine works."""
        return GrammarCompiler(self.tokenizer, self._checker.vocab_size, self._checker.end_token_ids)

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer."""
        return self._checker.max_model_len

    def is_in_flight(self, request_id: str) -> bool:
        """Returns whether a request is waiting, running or preempted."""
        return request_id in self._book.requests

    @property
    def num_unfinished_requests(self) -> int:
        """Requests in flight: waiting, running or preempted."""
        return len(self._book.requests)

    @property
    def has_unfinished_requests(self) -> bool:
        """True while any request is in flight."""
        return bool(self._book.requests)

    @property
    def num_steps(self) -> int:
        """Steps that computed something; one that could not leaves the number as it was."""
        return self._stats.num_steps

    # ---- one step

    def step(self) -> list[OutputDelta]:
        """Computes one step and returns what it added to the answers."""
        if self.guard is not None:
            self.guard.tend()
        started = time.perf_counter()
        self._scheduler.kv.retention.set_time(time.monotonic())
        batch = self._schedule()
        if not batch.sequences:
            return []
        self._book.note_admissions(batch)
        scheduled = time.perf_counter()
        result = self._runner.execute(batch, self._in_flight.samplings)
        executed = time.perf_counter()
        if self.tier is not None:
            self.tier.note_step(batch, executed - scheduled)
        self._scheduler.update(batch)
        deltas = self._book.update(result)
        ended = time.perf_counter()
        self._stats.count_step(batch, scheduled - started, executed - scheduled, ended - executed)
        if self.on_step is not None:
            self.on_step(batch, ended - started)
        return deltas

    def close(self) -> None:
        """Ends an engine that is not used any more: what is cached goes to the disk cache, if there is one."""
        if self.tier is not None:
            self.tier.close()
            self.tier = self._scheduler.prefix_reader = None

    def stats(self) -> EngineStats:
        """Returns the counters and gauges of this moment."""
        return self._stats.snapshot(self._scheduler, self._runner, self.tier, self.guard)

    def dump(self) -> StateDump:
        """Returns everything that is in the engine, for somebody who wants to know why nothing runs."""
        return dump_state(self._scheduler, self._in_flight.choices)

    def explain(self, request_id: str) -> RequestExplanation | None:
        """Returns what happened to a request that is in flight or left lately; None for any other."""
        return self._book.explain(request_id)

    def block_map(self) -> BlockMap:
        """Returns the state of every block that is not free, and who holds it."""
        return describe_blocks(self._scheduler.kv, self._in_flight.choices.values())

    def set_tenant_quota(self, tenant: str, percent: int) -> None:
        """Limits the share of the KV blocks that may be cached for a tenant's requests."""
        self._scheduler.kv.quotas.set((("tenant", tenant),), percent)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, in memory and on disk; False while running sequences still share some."""
        if self.tier is not None:
            self.tier.forget()
        return self._scheduler.kv.reset_prefix_cache()

    def resize_kv_pool(self, num_blocks: int) -> int:
        """Changes the number of KV blocks between steps; see `PoolControl.resize`."""
        return PoolControl(self._scheduler, self._runner).resize(num_blocks)

    def check_invariants(self) -> None:
        """Raises AssertionError if the books do not balance (for tests)."""
        self._scheduler.kv.check_invariants()
        self._in_flight.check_invariants()

    # ---- inside a step

    def _schedule(self) -> ScheduledBatch:
        if self.tier is None:
            return self._scheduler.schedule()
        self.tier.poll()
        batch = self._scheduler.schedule()
        self.tier.submit(block_id for pair in batch.block_copies for block_id in pair)
        if not batch.sequences and self.tier.is_reading:
            self.tier.wait(DISK_WAIT_SECONDS)
        return batch

    # ---- making things

    def _new_request(
        self,
        prompt: str | SequenceOf[int],
        params: SamplingParams,
        request_id: str | None,
        priority: int,
        cache_salt: str | None,
        *,
        is_rendered: bool = False,
    ) -> Request:
        """Checks what requests of every kind have, and returns one under the caller's name for it, or under a free one."""
        check_order_and_salt(priority, cache_salt)
        if self._is_in_use(request_id):
            raise RequestError(f"request_id={request_id!r} is in use", field="request_id")
        prompt_input = self._checker.prompt(prompt, is_rendered=is_rendered)
        return new_request(request_id or self._free_request_id(), prompt_input, params, priority, cache_salt)

    def _queue(self, request: Request, sequence: Sequence, sampling: SamplingRequest) -> str:
        """Hands a request's sequence to the scheduler; returns the request's id."""
        self._in_flight.track(request, sequence, sampling)
        self._book.requests[request.request_id] = request
        self._scheduler.add(sequence)
        return request.request_id

    def _free_request_id(self) -> str:
        """Returns a name that no request has, whatever names callers chose."""
        while True:
            request_id = f"request-{self._num_requests}"
            self._num_requests += 1
            if not self._is_in_use(request_id):
                return request_id

    def _is_in_use(self, request_id: str | None) -> bool:
        return request_id in self._book.requests or request_id in self._book.finished
