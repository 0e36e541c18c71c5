"""`octavo.engine.memory_guard` on a whole engine: pages really go back, nothing is lost, and not a bit changes."""

import pytest

from engine.tiny_engine import answer, bits, full_attention, run
from octavo.engine.memory_guard import READ_SECONDS, MemoryGuard
from octavo.engine.pool_control import PoolControl
from octavo.memory.governor import CALM_SECONDS, MemoryReading
from octavo.sampling_params import SamplingParams
from physical_memory import resident_array_bytes

GIB = 2**30
ENOUGH, SHORT = MemoryReading(100 * GIB), MemoryReading(0)
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=2)
PROMPTS = [[1 + (7 * index + place) % 250 for place in range(20 + 9 * index)] for index in range(6)]


class Machine:
    """A machine whose memory the test sets, and a clock that it moves."""

    def __init__(self, engine):
        self.reading, self.now = ENOUGH, 0.0
        self.pool = PoolControl(engine._scheduler, engine._runner)
        engine.guard = MemoryGuard(self.pool, engine.guard.budget, read=lambda: self.reading, clock=lambda: self.now)
        self._engine = engine

    def step(self):
        self.now += READ_SECONDS
        self._engine.step()
        self._engine.check_invariants()


def resident_blocks(engine):
    return resident_array_bytes(engine._runner.kv_blocks) / engine._runner.kv_block_bytes


def make(models, **settings):
    engine = models.engine(spec=full_attention(), **{"kv_memory": "200 blocks", "max_num_batched_tokens": 48} | settings)
    return engine, Machine(engine)


def test_pool_takes_memory_only_as_it_is_used(models):
    engine, _ = make(models)
    assert resident_blocks(engine) == 0 == engine.stats().memory.num_committed_blocks
    answer(engine, PROMPTS, GREEDY)
    memory = engine.stats().memory
    assert 0 < memory.num_committed_blocks < 60
    assert memory.num_committed_blocks - 2 <= resident_blocks(engine) <= memory.num_committed_blocks


def test_shortage_takes_the_cache_from_memory_and_what_comes_back_is_equal(models):
    expected = [bits(output) for output in answer(make(models)[0], PROMPTS, GREEDY)]
    engine, machine = make(models)
    assert [bits(output) for output in answer(engine, PROMPTS, GREEDY)] == expected
    assert resident_blocks(engine) > 20
    machine.reading, machine.now = SHORT, 1.0
    engine.guard.tend()
    assert resident_blocks(engine) == 0 == engine.stats().memory.num_committed_blocks
    assert engine.stats().memory.num_blocks == 0
    assert [bits(output) for output in answer(engine, PROMPTS, GREEDY)] == expected


def test_requests_in_a_shortage_end_one_after_the_other_with_the_same_bits(models):
    expected = [bits(output) for output in answer(make(models)[0], PROMPTS, GREEDY)]
    engine, machine = make(models)
    ids = [engine.add_request(prompt, GREEDY) for prompt in PROMPTS]
    for _ in range(12):
        machine.step()
    assert len(engine._scheduler.running) == len(PROMPTS)
    before = resident_blocks(engine)
    machine.reading = SHORT
    for _ in range(8):
        machine.step()
    assert len(engine._scheduler.running) == 1
    assert resident_blocks(engine) < before / 2
    assert engine.stats().memory.num_blocks < 10
    late = engine.add_request(PROMPTS[0], GREEDY)
    for _ in range(1000):
        machine.step()
        if not engine.has_unfinished_requests:
            break
    assert [bits(engine.take(request_id)) for request_id in [*ids, late]] == [*expected, expected[0]]
    actions = engine.stats().guard.actions
    assert set(actions) == {"stop_admitting", "drop_blocks", "shrink_pool", "preempt_youngest"}
    assert engine.stats().num_preemptions >= actions["preempt_youngest"] >= len(PROMPTS) - 1


def test_pool_and_admission_come_back(models, caplog):
    engine, machine = make(models)
    machine.reading = SHORT
    machine.step()
    assert engine.stats().memory.num_blocks == 0 and not engine.stats().guard.is_admitting
    machine.reading = ENOUGH
    machine.step()
    machine.now += CALM_SECONDS
    sizes = []
    for _ in range(12):
        machine.step()
        sizes.append(engine.stats().memory.num_blocks)
    assert sizes[0] == 25 and sizes[-1] == 200 and sizes == sorted(sizes)
    assert engine.stats().guard.is_admitting
    told = [event.action for event in engine.guard.take_events()]
    assert told[:3] == ["stop_admitting", "shrink_pool", "admit_again"] and set(told[3:]) == {"grow_pool"}
    assert engine.guard.take_events() == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["memory"] * len(told)
    assert "stop admitting; 0 MiB available, reserve" in caplog.text


@pytest.mark.parametrize("num_blocks", [0, 1, 5])
def test_pool_never_shrinks_below_what_an_accepted_request_needs(models, num_blocks):
    engine, _ = make(models)
    running = engine.add_request(PROMPTS[0], GREEDY)
    engine.step()
    waiting = engine.add_request([3] * 100, SamplingParams(max_tokens=92, temperature=0.0, ignore_eos=True))
    assert engine.resize_kv_pool(num_blocks) == 12  # 192 tokens
    run(engine)
    assert len(engine.take(waiting).outputs[0].token_ids) == 92
    assert len(engine.take(running).outputs[0].token_ids) == 40
    assert engine.resize_kv_pool(num_blocks) == num_blocks


def test_request_that_the_shrunk_pool_cannot_hold_is_accepted_and_makes_it_grow(models):
    engine, _ = make(models)
    expected = bits(answer(engine, [PROMPTS[3]], GREEDY)[0])
    engine.resize_kv_pool(1)
    assert bits(answer(engine, [PROMPTS[3]], GREEDY)[0]) == expected
    assert engine.stats().memory.num_blocks == -(-(len(PROMPTS[3]) + 40) // 16)


def test_idle_blocks_go_back_beyond_a_floor(models):
    engine, machine = make(models)
    answer(engine, PROMPTS, GREEDY)
    engine.guard.release_idle(10 * engine._runner.kv_block_bytes)
    memory = engine.stats().memory
    assert memory.num_committed_blocks == 10 and memory.num_blocks == 200
    assert resident_blocks(engine) <= 10
    assert engine.stats().guard.actions == {"release_idle": 1}
    engine.guard.release_idle(10 * engine._runner.kv_block_bytes)
    assert engine.stats().guard.actions == {"release_idle": 1}, "there was nothing more to give back"
    latest = engine.add_request(PROMPTS[-1], GREEDY)
    run(engine)
    assert engine.take(latest).num_prefix_hit_tokens > 0, "the latest blocks should have stayed"
    machine.step()


def test_memory_is_read_at_most_so_often(models):
    engine, machine = make(models)
    readings = []
    engine.guard = MemoryGuard(
        machine.pool, engine.guard.budget, read=lambda: readings.append(1) or ENOUGH, clock=lambda: machine.now
    )
    for _ in range(10):
        engine.guard.tend()
    assert len(readings) == 1
