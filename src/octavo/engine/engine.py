"""The loop: schedule, run, update.

Owns: the requests in flight and the step that moves them. Must not know: HTTP, threads, files.

Invariants:
1. Between steps every running sequence belongs to a request in `_requests`, and every request has at least one choice.
2. A request leaves `_requests` in the step in which its last choice ends, or when it is aborted; its blocks go back then.
3. A request that `add_request` refuses leaves nothing behind.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from random import Random, SystemRandom

import numpy as np

from octavo.engine.beam_group import BeamGroup
from octavo.engine.beam_search import greedy_params
from octavo.engine.block_map import BlockMap, describe_blocks
from octavo.engine.branching import BranchPoint, PastRequests, branch_point
from octavo.engine.explanation import ExplanationLog, RequestExplanation, explain
from octavo.engine.grammar import CompiledGrammar, GrammarCompiler
from octavo.engine.in_flight import InFlight
from octavo.engine.memory_guard import MemoryGuard
from octavo.engine.model_text import ModelText
from octavo.engine.pool_control import PoolControl
from octavo.engine.request import Choice, Request, describe_logprobs, new_request
from octavo.engine.retain import Prefixes, Retain, read_retentions
from octavo.engine.sessions import Sessions
from octavo.engine.state_dump import StateDump, dump_state
from octavo.engine.stats import EngineStats, StatsCollector
from octavo.engine.validation import RequestChecker, check_order_and_salt
from octavo.errors import RequestError
from octavo.outputs import OutputDelta, RequestOutput
from octavo.runner.model_runner import ModelRunner, StepResult
from octavo.runner.pooling import Pooling, PoolingKind, check_pooling
from octavo.runner.sampler import TokenLogprobs
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
        self._requests: dict[str, Request] = {}
        self._in_flight = InFlight(scheduler, text.tokenizer)
        self._beams: dict[str, BeamGroup] = {}  # of the requests in flight that are beam searches
        self._finished: dict[str, RequestOutput] = {}
        self._seeds = Random(seed) if seed is not None else SystemRandom()
        self._num_requests = 0
        self._stats = StatsCollector()
        self._explanations = ExplanationLog()
        self.prefixes = Prefixes(scheduler.kv)
        self._past = PastRequests()

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
        self._beams[request_id] = BeamGroup(request, search, params, self._in_flight)
        return request_id

    def add_embedding_request(
        self,
        prompt: str | SequenceOf[int],
        *,
        pooling: PoolingKind = "mean",
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Queues a prompt to be embedded: its result has no tokens, but an `embedding`.

        Args:
            pooling: of the hidden states after the final norm: their "mean", or the "last" token's.

        The other arguments, the result and the errors are those of `add_request`.
        """
        check_pooling(pooling)
        request = self._new_request(prompt, EMBEDDING_PARAMS, request_id, priority, cache_salt)
        self._checker.check_embeddable(request.prompt, self._scheduler)
        num_tokens = len(request.prompt.token_ids)
        sequence = self._in_flight.make_sequence(request, num_tokens)
        sequence.reads_cached_prefix = pooling == "last"  # a mean needs the hidden state of every token
        sampling = SamplingRequest(EMBEDDING_PARAMS, 0, 0, num_tokens, pooling=Pooling(pooling, num_tokens))
        return self._queue(request, sequence, sampling)

    def has_request(self, request_id: str) -> bool:
        """Returns whether a request is in flight, or left so lately that `branch_point` knows it."""
        return request_id in self._requests or self._past.find(request_id) is not None

    def branch_point(self, request_id: str, *, choice: int = 0, at_token: int | None = None) -> BranchPoint:
        """Returns a place in an answer from which `add_request` can go on: of a request in flight, or one that left lately.

        Of a running sequence, the computed part of its last block is shared from now on.

        Raises:
            RequestError: there is no such request, choice or token.
        """
        request = self._requests.get(request_id)
        past = self._past.find(request_id) if request is None else self._in_flight.snapshot(request)
        if past is None:
            raise RequestError(f"no request {request_id!r} is in flight or left lately", field="request_id")
        return branch_point(past, self._checker.end_token_ids, choice=choice, at_token=at_token)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request wherever it is and returns what it has; None if it is not in flight. Its blocks are free at once."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.is_beam_search:
            self._beams[request_id].abort()
        for choice in request.choices:
            if choice.output.finish_reason is None:
                choice.abort()
                self._in_flight.drop(choice)
        request.keep_best()
        self._leave(request)
        return request.output()

    def peek(self, request_id: str) -> RequestOutput:
        """Returns a request's result as it stands, in flight or finished."""
        request = self._requests.get(request_id)
        return self._finished[request_id] if request is None else request.output()

    def discard(self, request_id: str) -> None:
        """Forgets a request, in flight or finished; nothing happens if there is none."""
        self.abort(request_id)
        self._finished.pop(request_id, None)

    def take(self, request_id: str) -> RequestOutput:
        """Returns and forgets a finished request's result."""
        return self._finished.pop(request_id)

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
        return request_id in self._requests

    @property
    def num_unfinished_requests(self) -> int:
        """Requests in flight: waiting, running or preempted."""
        return len(self._requests)

    @property
    def has_unfinished_requests(self) -> bool:
        """True while any request is in flight."""
        return bool(self._requests)

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
        self._note_admissions(batch)
        scheduled = time.perf_counter()
        result = self._runner.execute(batch, self._in_flight.samplings)
        executed = time.perf_counter()
        if self.tier is not None:
            self.tier.note_step(batch, executed - scheduled)
        self._scheduler.update(batch)
        deltas = self._update(batch, result)
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
        request = self._requests.get(request_id)
        return self._explanations.find(request_id) if request is None else explain(request, self._scheduler.waiting)

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

    def _update(self, batch: ScheduledBatch, result: StepResult) -> list[OutputDelta]:
        now, choices = time.monotonic(), self._in_flight.choices
        for sequence_id, scored in result.prompt_logprobs.items():
            self._add_prompt_logprobs(choices[sequence_id].request, scored)
        deltas = [self._embed(choices[sequence.sequence_id], vector, now) for sequence, vector in result.embedded]
        sampled = zip(self._in_flight.choices_of(result.sampled_for), result.token_ids, result.logprobs, strict=True)
        for choice, token_id, logprobs in sampled:
            delta = choice.append_plain(token_id)
            if delta is not None:
                deltas.append(delta)
                continue
            if choice.request.is_beam_search:
                deltas += self._score(choice, logprobs, now)
                continue
            others = self._in_flight.fork(choice) if choice.sequence.num_choices > 1 else ()
            self._append(choice, token_id, logprobs, now, deltas)
            for other in others:
                _, token_id, logprobs = next(sampled)
                self._append(other, token_id, logprobs, now, deltas)
        return deltas

    def _note_admissions(self, batch: ScheduledBatch) -> None:
        now = time.monotonic()
        for sequence in batch.admitted:
            metrics = self._in_flight.choices[sequence.sequence_id].request.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now

    def _add_prompt_logprobs(self, request: Request, scored: list[TokenLogprobs]) -> None:
        assert request.prompt_logprobs is not None, "prompt logprobs arrived that nobody asked for"
        request.prompt_logprobs += [describe_logprobs(entry, self.tokenizer) for entry in scored]

    def _append(self, choice: Choice, token_id: int, logprobs: TokenLogprobs | None, now: float, deltas: list[OutputDelta]) -> None:
        """Gives a choice its next token, and adds to ``deltas`` what callers may see of it."""
        request, is_first = choice.request, choice.num_tokens == 0
        delta = choice.append(token_id, logprobs)
        if is_first:
            request.note_token(now)
            delta.prompt_logprobs = request.prompt_logprobs
        if delta.finish_reason is not None:
            self._finish(choice, now)
        if not request.is_held_back:
            deltas.append(delta)
        elif request.request_id not in self._requests:
            deltas += request.last_deltas()

    def _score(self, choice: Choice, logprobs: TokenLogprobs | None, now: float) -> list[OutputDelta]:
        """Takes the scores of one beam's next tokens; returns the answers when the search is over."""
        request = choice.request
        assert logprobs is not None, "a beam is scored by log-probabilities"
        request.note_token(now)
        if not self._beams[request.request_id].take_scores(choice.sequence, logprobs):
            return []
        self._settle(request, now)
        return request.last_deltas()

    def _embed(self, choice: Choice, vector: np.ndarray, now: float) -> OutputDelta:
        choice.request.embedding = vector
        delta = choice.end()
        self._finish(choice, now)
        return delta

    def _finish(self, choice: Choice, now: float) -> None:
        """Takes out a choice that ended by itself, and its request with the last of them."""
        self._in_flight.drop(choice)
        if choice.request.is_finished:
            self._settle(choice.request, now)

    def _settle(self, request: Request, now: float) -> None:
        """Takes out a request whose choices have all ended."""
        request.keep_best()
        request.metrics.finished_time = now
        del self._requests[request.request_id]
        self._finished[request.request_id] = request.output()
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self._beams.pop(request.request_id, None)
        self._stats.count_finished(request)
        self._explanations.add(explain(request, self._scheduler.waiting))
        self._past.add(request)

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
        if request_id in self._requests or request_id in self._finished:
            raise RequestError(f"request_id={request_id!r} is in use", field="request_id")
        prompt_input = self._checker.prompt(prompt, is_rendered=is_rendered)
        return new_request(request_id or self._free_request_id(), prompt_input, params, priority, cache_salt)

    def _queue(self, request: Request, sequence: Sequence, sampling: SamplingRequest) -> str:
        """Hands a request's sequence to the scheduler; returns the request's id."""
        self._in_flight.track(request, sequence, sampling)
        self._requests[request.request_id] = request
        self._scheduler.add(sequence)
        return request.request_id

    def _free_request_id(self) -> str:
        """Returns a name that no request has, whatever names callers chose."""
        while True:
            request_id = f"request-{self._num_requests}"
            self._num_requests += 1
            if request_id not in self._requests and request_id not in self._finished:
                return request_id
