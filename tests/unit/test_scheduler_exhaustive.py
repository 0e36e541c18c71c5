"""Scheduler and memory over every order of events up to a bound, and over random longer ones.

The events are what the world can do between two steps: requests come, a step runs, a request is aborted, the youngest is preempted,
the pool shrinks, grows, or gives its pages back. All orders of `MAX_EVENTS` of them are walked for several tiny pools; orders that
lead to the same state are walked on from once. In every state the books balance, and steps alone end every request from there.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.scheduler.sequence import Sequence, SequenceStatus

BLOCK_SIZE = 2
FULL = (LayerGroup((0,), None),)
MIXED = (LayerGroup((0,), None), LayerGroup((1,), 3))
# Prompts that share beginnings: whole blocks, a part of one, and nothing; with the number of tokens that each answers.
REQUESTS = [((1, 1, 2, 2, 3), 2), ((1, 1, 2, 2, 4), 3), ((1, 1, 2), 4), ((5,), 5)]
MAX_EVENTS = 8


class World:
    """A scheduler, its memory, and the requests that came."""

    def __init__(self, num_blocks, groups=FULL, *, budget=3, max_num_seqs=3):
        self.kv = KVManager(num_blocks=num_blocks, block_size=BLOCK_SIZE, groups=groups)
        self.scheduler = Scheduler(self.kv, SchedulerLimits(max_num_seqs, budget))
        self.full = num_blocks
        self.sequences = []

    # ---- events

    def add(self):
        prompt, num_new = REQUESTS[len(self.sequences)]
        sequence = Sequence(len(self.sequences) + 1, list(prompt), len(prompt) + num_new)
        self.scheduler.check_capacity(len(prompt), sequence.max_tokens)
        self.scheduler.add(sequence)
        self.sequences.append(sequence)

    def step(self):
        oldest = self.scheduler.running[0] if self.scheduler.running else None
        batch = self.scheduler.schedule()
        self.scheduler.update(batch)
        assert oldest is None or oldest.status is SequenceStatus.RUNNING, "the oldest running sequence was preempted"
        assert batch.entries or not self.scheduler.has_work, "work waits and nothing runs"
        assert oldest is None or oldest in [entry.sequence for entry in batch.entries], "the oldest did not get on"
        for entry in batch.entries:
            if entry.is_last_chunk:
                entry.sequence.token_ids.append(entry.sequence.num_tokens % 3 + 1)
                if entry.sequence.num_tokens >= entry.sequence.max_tokens:
                    self.scheduler.finish(entry.sequence)

    def abort_oldest(self):
        self.scheduler.finish(self.alive[0])

    def abort_youngest(self):
        self.scheduler.finish(self.alive[-1])

    def preempt(self):
        oldest = self.scheduler.running[0] if self.scheduler.running else None
        victim = self.scheduler.preempt_youngest()
        assert victim is None or victim is not oldest, "the oldest running sequence was preempted"

    def shrink(self):
        needed = self.scheduler.largest_need()
        self.kv.resize(needed)
        assert self.kv.capacity >= needed
        self.kv.drain_released()

    def grow(self):
        self.kv.resize(self.full)

    def release(self):
        self.kv.drop_cached(1)
        self.kv.decommit(1)

    def stop_admitting(self):
        self.scheduler.is_admitting = not self.scheduler.is_admitting

    # ---- what is known

    @property
    def alive(self):
        return [sequence for sequence in self.sequences if sequence.status is not SequenceStatus.FINISHED]

    def events(self):
        """Returns the events that can happen now."""
        events = ["step", "preempt", "shrink", "grow", "release", "stop_admitting"]
        if len(self.sequences) < len(REQUESTS):
            events.append("add")
        if self.alive:
            events += ["abort_oldest", "abort_youngest"]
        return events

    def check(self):
        self.kv.check_invariants()
        running = self.scheduler.running
        assert running == sorted(running, key=lambda sequence: sequence.arrival)
        rows = [*self.scheduler._running_set.free_rows, *(sequence.row for sequence in running)]
        assert sorted(rows) == list(range(self.scheduler.limits.max_num_seqs)), "a row is lost or given twice"
        assert len(running) + len(self.scheduler.waiting) == len(self.alive)

    def run_to_the_end(self):
        for _ in range(80):
            if not self.scheduler.has_work:
                break
            self.step()
            self.check()
        assert not self.alive, "steps alone do not end every request"
        assert self.kv.stats().num_used_blocks == 0, "blocks are held by nobody"

    def state(self):
        """Returns all on which the future depends."""
        pool = self.kv._pool
        return (
            tuple(self._sequence_state(sequence) for sequence in self.sequences),
            tuple(sequence.sequence_id for sequence in self.scheduler.waiting),
            tuple(self.scheduler._running_set.free_rows),
            self.scheduler.is_admitting,
            tuple(pool._free),
            tuple((block_id, _path(pool.contents[block_id])) for block_id in pool._cached),
            tuple(map(_path, pool.contents)),
            frozenset(pool._retired),
            frozenset(pool._committed),
        )

    def _sequence_state(self, sequence):
        cache = sequence.cache
        held = (
            None if cache is None else (tuple(map(tuple, (table.block_ids for table in cache.tables))), cache.num_computed_tokens)
        )
        return sequence.status, tuple(sequence.token_ids), held, sequence.num_preemptions, sequence.row


def _path(node):
    """Returns the token ids from the root to a node, block by block."""
    path = []
    while node is not None:
        path.append(node.token_ids)
        node = node.parent
    return tuple(path)


def replay(make_world, events):
    world = make_world()
    for name in events:
        getattr(world, name)()
    return world


def explore(make_world, max_events):
    """Walks every order of events; returns how many states there are."""
    seen = {make_world().state()}
    frontier = [()]
    for _ in range(max_events):
        reached = []
        for events in frontier:
            for name in replay(make_world, events).events():
                world = replay(make_world, [*events, name])
                state = world.state()
                if state in seen:
                    continue
                seen.add(state)
                try:
                    world.check()
                    world.run_to_the_end()
                except AssertionError as error:
                    raise AssertionError(f"after {' '.join([*events, name])}: {error}") from error
                reached.append((*events, name))
        frontier = reached
    return len(seen)


@pytest.mark.parametrize(("num_blocks", "groups"), [(4, FULL), (5, FULL), (9, MIXED)], ids=["tightest", "tight", "mixed"])
def test_every_order_of_events_keeps_the_books_and_ends_every_request(num_blocks, groups):
    num_states = explore(lambda: World(num_blocks, groups), MAX_EVENTS)
    assert num_states > 700


class WorldMachine(RuleBasedStateMachine):
    """Longer orders of events, drawn at random."""

    @initialize(num_blocks=st.integers(4, 8), budget=st.integers(3, 6), max_num_seqs=st.integers(1, 3))
    def start(self, num_blocks, budget, max_num_seqs):
        self.world = World(num_blocks, budget=budget, max_num_seqs=max_num_seqs)

    @precondition(lambda self: len(self.world.sequences) < len(REQUESTS))
    @rule()
    def add(self):
        self.world.add()

    @rule(name=st.sampled_from(["step", "step", "step", "preempt", "shrink", "grow", "release", "stop_admitting"]))
    def happen(self, name):
        getattr(self.world, name)()

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def abort(self, data):
        self.world.scheduler.finish(data.draw(st.sampled_from(self.world.alive)))

    @invariant()
    def holds_together(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.run_to_the_end()


TestWorldMachine = WorldMachine.TestCase
TestWorldMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
