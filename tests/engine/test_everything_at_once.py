"""Everything that can happen to the memory, in random order in tiny pools: the books balance, every request ends, no bit changes.

Requests of every kind come, fork and leave; the pool shrinks, grows and gives pages back; memory runs short; prefixes are pinned;
conversations are saved and loaded, and blocks go to disk, while others run.
"""

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from engine.tiny_engine import GEMMA_SPEC, SPEC, bits, full_attention, run
from octavo import BeamSearchParams, SamplingParams
from octavo.engine.memory_guard import MemoryGuard
from octavo.engine.pool_control import PoolControl
from octavo.errors import CapacityError, RequestError, SnapshotError
from octavo.memory.governor import MemoryReading
from octavo.tiers.costs import TransferCosts

NUM_EVENTS, MAX_STEPS = 120, 20_000
SPECS = {"mixed": (SPEC, 3), "full": (full_attention(), 1), "gemma": (GEMMA_SPEC, 7)}  # with their layer groups
ENOUGH, SHORT = MemoryReading(2**50), MemoryReading(0)


class Driver:
    """One engine and all that happens to it."""

    def __init__(self, models, folder, seed):
        self.source = random.Random(seed)
        self.spec, num_groups = SPECS[self.source.choice(sorted(SPECS))]
        self.kv_dtype = self.source.choice(["fp32", "bf16", "int8"])
        self.num_blocks = num_groups * self.source.randint(3, 12)
        self.models, self.folder = models, folder
        self.alone = models.engine(spec=self.spec, kv_dtype=self.kv_dtype, enable_prefix_caching=False, kv_memory="400 blocks")
        self.engine = models.engine(
            spec=self.spec,
            kv_dtype=self.kv_dtype,
            kv_memory=f"{self.num_blocks} blocks",
            max_num_seqs=self.source.choice([1, 3, 6]),
            max_num_batched_tokens=self.source.choice([6, 17, 64]),
            kv_check=self.source.choice(["off", "all"]),
            pin_percent=100,
            salt_percent=self.source.choice([20, 100]),
            disk_cache=str(folder / "disk"),
        )
        self.engine.tier.costs = TransferCosts(0.0, 1.0, is_fixed=True)
        self.reading, self.now = ENOUGH, 0.0
        pool = PoolControl(self.engine._scheduler, self.engine._runner)
        self.engine.guard = MemoryGuard(pool, self.engine.guard.budget, read=lambda: self.reading, clock=lambda: self.now)
        self.heads = [[self.source.randrange(1, 256) for _ in range(70)] for _ in range(2)]
        self.live = {}  # id -> (prompt, params)
        self.known = []  # token ids that were computed
        self.held, self.loading = [], []

    def prompt(self):
        head = self.source.choice([*self.heads, *self.known])[: self.source.choice([0, 15, 16, 17, 40, 70])]
        return head + [self.source.randrange(1, 256) for _ in range(self.source.choice([1, 3, 20]))]

    # ---- events

    def add(self):
        params = SamplingParams(
            n=self.source.choice([1, 1, 2]), max_tokens=self.source.choice([1, 5, 30]), seed=3, logprobs=1, ignore_eos=True
        )
        if self.source.random() < 0.2:
            params = BeamSearchParams(num_beams=self.source.choice([2, 3]), max_tokens=8)
        self.submit(self.prompt(), params)

    def submit(self, prompt, params):
        options = {"cache_salt": self.source.choice([None, None, "a"]), "retain": self.source.choice([None, {"priority": 90}])}
        add = self.engine.add_beam_search if isinstance(params, BeamSearchParams) else self.engine.add_request
        with suppress(CapacityError, RequestError):  # it may never fit this pool
            self.live[add(prompt, params, **options)] = prompt, params

    def fork(self):
        if self.live:
            point = self.engine.branch_point(self.source.choice(list(self.live)))
            self.submit(point.token_ids, replace(point.params, seed=4, logprobs=1, max_tokens=9))

    def abort(self):
        if self.live:
            request_id = self.source.choice(list(self.live))
            self.engine.abort(request_id)
            self.known.append(self.live.pop(request_id)[0])

    def resize(self):
        self.engine.resize_kv_pool(self.source.choice([0, 1, self.num_blocks // 2, self.num_blocks]))

    def preempt(self):
        if self.engine._scheduler.running:
            self.engine._scheduler._preempt(self.source.choice(self.engine._scheduler.running))

    def change_memory(self):
        self.reading = self.source.choice([SHORT, ENOUGH, ENOUGH])

    def wait_long(self):
        self.now += 10

    def release(self):
        self.engine.guard.release_idle(0)

    def pin(self):
        with suppress(CapacityError):
            self.engine.prefixes.pin(self.prompt(), ())

    def save(self):
        with suppress(SnapshotError):  # it may not be in memory any more
            self.held.append(self.engine.sessions.hold(self.source.choice([*self.known, self.heads[0]]), ()))

    def end_save(self):
        if self.held:
            held = self.held.pop()
            self.engine.sessions.write(held, self.folder / "session")
            self.engine.sessions.let_go(held)

    def load(self):
        if (self.folder / "session").exists():
            self.loading.append(self.engine.sessions.begin(self.engine.sessions.open(self.folder / "session", ()), ()))

    def end_load(self):
        if self.loading:
            loading = self.loading.pop()
            self.engine.sessions.read(loading)
            self.engine.sessions.finish(loading)

    EVENTS = [add] * 6 + [fork, abort, resize, preempt, change_memory, wait_long, release, pin, save, end_save, load, end_load]

    # ---- what is checked

    def step(self):
        self.now += 0.3
        self.engine.step()
        self.engine.check_invariants()
        for request_id in [request_id for request_id in self.live if not self.engine.is_in_flight(request_id)]:
            prompt, params = self.live.pop(request_id)
            assert _told(self.engine.take(request_id)) == self.expected(prompt, params)
            self.known.append(prompt)

    def expected(self, prompt, params):
        add = self.alone.add_beam_search if isinstance(params, BeamSearchParams) else self.alone.add_request
        request_id = add(prompt, params)
        run(self.alone, check=False)
        return _told(self.alone.take(request_id))

    def run(self):
        for _ in range(NUM_EVENTS):
            self.source.choice(self.EVENTS)(self)
            self.engine.check_invariants()
            self.step()
        while self.held or self.loading:
            self.end_save()
            self.end_load()
        for _ in range(MAX_STEPS):
            if not self.live and not self.engine.tier.is_reading:
                break
            self.step()
            self.engine.tier.poll()
        assert not self.live, self.engine.dump().text
        assert self.engine.stats().memory.num_used_blocks == 0


def _told(output):
    if output.outputs[0].beam_score is not None:
        return [(choice.token_ids, choice.beam_score) for choice in output.outputs]
    return bits(output)


@pytest.mark.parametrize("round_number", range(4))
def test_whatever_happens_every_request_ends_with_the_bits_that_it_has_alone(models, tmp_path, round_number):
    seed = random.randrange(2**32)
    print("seed", seed)
    driver = Driver(models, tmp_path, seed)
    driver.run()
    driver.engine.close()
