"""Blocks that went to disk and came back: the same bits, whatever happens to the disk."""

import errno
import random
import shutil
import threading
from functools import partial

import pytest

from engine.tiny_engine import GEMMA_SPEC, SPEC, answer, bits, run
from octavo.errors import ConfigError
from octavo.memory.tier_index import TierIndex
from octavo.sampling_params import SamplingParams
from octavo.tiers.block_file import BlockFile
from octavo.tiers.block_io import MIN_STAGED_BLOCKS, BlockIO
from octavo.tiers.costs import TransferCosts
from octavo.tiers.disk_tier import DiskTier

BLOCK = 16
SMALL_POOL = "30 blocks"  # a prompt of 130 tokens needs 25 of them
PARAMS = SamplingParams(max_tokens=5, temperature=0.0, logprobs=2, ignore_eos=True)
READING_IS_FREE = TransferCosts(0.0, 1.0, is_fixed=True)
COMPUTING_IS_FREE = TransferCosts(1.0, 0.0, is_fixed=True)


def prompts_of(length, count=5, seed=1):
    source = random.Random(seed)
    return [[source.randrange(1, 256) for _ in range(length)] for _ in range(count)]


def engine_with_disk(models, directory, *, costs=READING_IS_FREE, **settings):
    engine = models.engine(**{"kv_memory": SMALL_POOL, "disk_cache": str(directory)} | settings)
    engine.tier.costs = costs
    return engine


def uncached(models, prompts, params=PARAMS, **settings):
    engine = models.engine(enable_prefix_caching=False, **settings)
    return [bits(answer(engine, [prompt], params)[0]) for prompt in prompts]


def settle(engine):
    """Waits until everything that was evicted is on disk."""
    while engine.stats().disk.num_queued_writes or engine.tier._writing:
        engine.tier.wait(0.01)
        engine.tier.poll()


def one_by_one(engine, prompts):
    outputs = []
    for prompt in prompts:
        outputs.append(answer(engine, [prompt], PARAMS)[0])
        settle(engine)
    return outputs


def fill_disk(models, directory, prompt, **options):
    """Runs an engine, now gone, that computed a prompt."""
    engine = engine_with_disk(models, directory)
    answer(engine, [prompt], PARAMS, **options)
    engine.close()


def test_a_restart_serves_eight_blocks_from_disk(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt)
    after = engine_with_disk(models, tmp_path)
    output = answer(after, [prompt], PARAMS)[0]
    assert output.num_prefix_hit_tokens == 8 * BLOCK
    assert after.stats().disk.num_read_tokens == 8 * BLOCK
    assert after.explain(output.request_id).prefix.num_disk_tokens == 8 * BLOCK
    assert [bits(output)] == uncached(models, [prompt])


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(("spec", "num_blocks"), [(SPEC, 30), (GEMMA_SPEC, 70)], ids=["window", "gemma"])
def test_what_a_tiny_pool_evicts_comes_back(models, tmp_path, spec, num_blocks, kv_dtype):
    prompts = prompts_of(130)
    engine = engine_with_disk(models, tmp_path, spec=spec, kv_dtype=kv_dtype, kv_memory=f"{num_blocks} blocks")
    for _ in range(2):
        outputs = one_by_one(engine, prompts)
    assert [bits(output) for output in outputs] == uncached(models, prompts, spec=spec, kv_dtype=kv_dtype, kv_memory="80 blocks")
    assert [output.num_prefix_hit_tokens for output in outputs] == [128] * len(prompts)
    assert engine.stats().disk.num_read_tokens > 0


def test_the_integrity_check_leaves_alone_what_is_read(models, tmp_path):
    prompts = prompts_of(130)
    engine = engine_with_disk(models, tmp_path, kv_check="all")
    for _ in range(2):
        outputs = one_by_one(engine, prompts)
    assert [bits(output) for output in outputs] == uncached(models, prompts)
    assert engine.stats().disk.num_read_tokens > 0


def test_only_the_window_of_a_windowed_group_is_read(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt)
    after = engine_with_disk(models, tmp_path)
    answer(after, [prompt], PARAMS)
    block_bytes = after.stats().kv_block_bytes
    # Two groups of full attention; the window of 24 at position 128 begins in block 6.
    assert after.stats().disk.num_read_bytes == (8 + 8 + 2) * block_bytes


def test_a_read_window_mends_a_prefix_whose_window_was_evicted(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    engine = engine_with_disk(models, tmp_path)
    first = answer(engine, [prompt], PARAMS)[0]
    kv = engine._scheduler.kv
    match = kv.match(prompt)
    for index in (6, 7):
        kv._tree.evict(match.nodes[index].block_ids[1])
    settle(engine)
    assert kv.match(prompt).num_tokens < 8 * BLOCK
    again = answer(engine, [prompt], PARAMS)[0]
    assert again.num_prefix_hit_tokens == 8 * BLOCK
    assert engine.stats().disk.num_read_bytes == 2 * engine.stats().kv_block_bytes
    assert bits(again) == bits(first)


def test_requests_at_once_share_one_read(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt)
    after = engine_with_disk(models, tmp_path, kv_memory="100 blocks")
    outputs = answer(after, [prompt] * 3, PARAMS)
    assert after.stats().disk.num_read_tokens == 8 * BLOCK
    assert [output.num_prefix_hit_tokens for output in outputs] == [8 * BLOCK] * 3
    assert [bits(output) for output in outputs] == uncached(models, [prompt]) * 3


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_a_request_that_leaves_while_its_prefix_is_read_leaves_nothing_behind(models, tmp_path, num_steps):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt)
    engine = engine_with_disk(models, tmp_path)
    io, held = engine.tier._io, []
    read, io.read = io.read, held.append  # the disk does not answer yet
    request_id = engine.add_request(prompt, PARAMS)
    for _ in range(num_steps):
        engine.step()
    assert held and engine.stats().memory.num_used_blocks > 0
    engine.abort(request_id)
    engine.check_invariants()
    for jobs in held:
        read(jobs)
    io.read = read
    while engine.tier.is_reading:
        engine.tier.wait(0.1)
        engine.tier.poll()
    engine.check_invariants()
    assert engine.stats().memory.num_used_blocks == 0
    output = answer(engine, [prompt], PARAMS)[0]
    assert output.num_prefix_hit_tokens == 8 * BLOCK, "what was read for nobody is cached"
    assert [bits(output)] == uncached(models, [prompt])


def test_a_directory_that_is_deleted_costs_nothing_but_the_next_start(models, tmp_path):
    prompts = prompts_of(130)
    engine = engine_with_disk(models, tmp_path / "d")
    one_by_one(engine, prompts)
    shutil.rmtree(tmp_path / "d")
    assert [bits(output) for output in one_by_one(engine, prompts)] == uncached(models, prompts)
    assert engine.stats().disk.is_on and engine.stats().disk.num_read_tokens > 0
    engine.close()
    assert engine_with_disk(models, tmp_path / "d").stats().disk.num_stored_blocks == 0


def test_a_read_only_directory_leaves_no_disk_cache(models, tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("octavo.tiers.block_file.os.open", refuse)
    engine = models.engine(disk_cache=str(tmp_path))
    assert engine.stats().disk is None
    assert "there is no disk cache" in caplog.text and "Read-only file system" in caplog.text


def test_others_run_while_one_waits_for_its_read(models, tmp_path):
    slow, quick = prompts_of(8 * BLOCK + 1)[0], [7, 8, 9]
    fill_disk(models, tmp_path, slow)
    after = engine_with_disk(models, tmp_path, kv_memory="100 blocks")
    io, held = after.tier._io, []
    read, io.read = io.read, held.append  # the disk does not answer yet
    slow_id = after.add_request(slow, PARAMS)
    quick_id = after.add_request(quick, PARAMS)
    for _ in range(8):
        after.step()
        after.check_invariants()
    assert not after.is_in_flight(quick_id) and after.is_in_flight(slow_id)
    io.read = read
    for jobs in held:
        io.read(jobs)
    run(after)
    assert after.take(slow_id).num_prefix_hit_tokens == 8 * BLOCK
    assert after.explain(slow_id).waited_for["its prefix was being read from disk"] >= 8


def test_what_is_cheaper_to_compute_is_neither_read_nor_written(models, tmp_path):
    prompts = prompts_of(130)
    before = engine_with_disk(models, tmp_path)
    one_by_one(before, prompts)
    before.close()
    after = engine_with_disk(models, tmp_path, costs=COMPUTING_IS_FREE)
    outputs = one_by_one(after, prompts)
    disk = after.stats().disk
    assert (disk.num_read_bytes, disk.num_written_bytes, disk.num_unwanted_reads) == (0, 0, len(prompts))
    assert [bits(output) for output in outputs] == uncached(models, prompts)


def test_a_preempted_sequence_is_read_back(models, tmp_path):
    prompts = prompts_of(60, count=4)
    params = SamplingParams(max_tokens=60, temperature=0.0, logprobs=1, ignore_eos=True)
    engine = engine_with_disk(models, tmp_path, kv_memory="44 blocks")
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    run(engine)
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.disk.num_read_tokens > 0
    assert [bits(engine.take(request_id)) for request_id in ids] == uncached(models, prompts, params)


def test_salted_prompts_do_not_find_each_other_on_disk(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt, cache_salt="one")
    after = engine_with_disk(models, tmp_path)
    assert answer(after, [prompt], PARAMS, cache_salt="two")[0].num_prefix_hit_tokens == 0
    assert answer(after, [prompt], PARAMS)[0].num_prefix_hit_tokens == 0
    assert answer(after, [prompt], PARAMS, cache_salt="one")[0].num_prefix_hit_tokens == 8 * BLOCK


@pytest.mark.parametrize("change", [{"weights_seed": 4}, {"kv_dtype": "bf16"}, {"block_size": 32}])
def test_another_model_finds_nothing(models, tmp_path, change):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    fill_disk(models, tmp_path, prompt)
    after = engine_with_disk(models, tmp_path, kv_memory="64 blocks", **change)
    assert after.stats().disk.num_stored_blocks == 0
    assert answer(after, [prompt], PARAMS)[0].num_prefix_hit_tokens == 0


def test_the_file_stays_within_its_size(models, tmp_path):
    prompts = prompts_of(130, count=8)
    engine = engine_with_disk(models, tmp_path, disk_cache_size=60 * 8192)
    one_by_one(engine, prompts)
    outputs = one_by_one(engine, prompts)
    assert [bits(output) for output in outputs] == uncached(models, prompts)
    engine.tier._index.check_invariants()
    engine.close()
    (file,) = tmp_path.iterdir()
    assert 0 < file.stat().st_size <= 60 * 8192


def test_a_size_without_room_for_a_block_is_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="disk_cache_size"):
        models.engine(disk_cache=str(tmp_path), disk_cache_size=100)


def test_reset_forgets_what_is_on_disk(models, tmp_path):
    prompt = prompts_of(8 * BLOCK + 1)[0]
    engine = engine_with_disk(models, tmp_path)
    one_by_one(engine, prompts_of(130))
    answer(engine, [prompt], PARAMS)
    assert engine.reset_prefix_cache()
    assert engine.stats().disk.num_stored_blocks == 0
    assert answer(engine, prompts_of(130)[:1], PARAMS)[0].num_prefix_hit_tokens == 0
    engine.reset_prefix_cache()
    engine.close()
    assert engine_with_disk(models, tmp_path).stats().disk.num_stored_blocks == 0


# ---- a disk that fails


class FailingFile:
    """A file whose writes or reads fail from some call on."""

    def __init__(self, file, *, good_writes=10**9, good_reads=10**9, error=errno.ENOSPC):
        self._file = file
        self._good_writes, self._good_reads, self._error = good_writes, good_reads, error

    def write(self, slot, header, record):
        self._good_writes -= 1
        if self._good_writes < 0:
            raise OSError(self._error, "the disk says no")
        self._file.write(slot, header, record)

    def read(self, slot, into):
        self._good_reads -= 1
        if self._good_reads < 0:
            raise OSError(self._error, "the disk says no")
        return self._file.read(slot, into)

    def clear(self):
        self._file.clear()

    def close(self):
        self._file.close()


def engine_on_file(models, path, make_file):
    """Returns an engine whose blocks go through a file that ``make_file`` wraps, and that file."""
    engine = models.engine(kv_memory=SMALL_POOL)
    blocks = engine._runner.kv_blocks
    file = make_file(BlockFile(path, block_bytes=blocks.shape[1], num_slots=200, fingerprint=bytes(32)))
    io = BlockIO(file, blocks, first_stamp=0, staging_bytes=0)
    tier = DiskTier(engine._scheduler.kv, io, TierIndex(200), READING_IS_FREE, block_bytes=blocks.shape[1])
    engine.tier = engine._scheduler.prefix_reader = tier
    return engine, file


@pytest.mark.parametrize(
    "faults", [{"good_writes": 3}, {"good_writes": 0, "error": errno.EROFS}, {"good_reads": 5, "error": errno.EIO}], ids=str
)
def test_a_failing_disk_is_turned_off_and_requests_go_on(models, tmp_path, caplog, faults):
    prompts = prompts_of(130)
    engine, _ = engine_on_file(models, tmp_path / "file", partial(FailingFile, **faults))
    for _ in range(2):
        outputs = one_by_one(engine, prompts)
    assert [bits(output) for output in outputs] == uncached(models, prompts)
    assert not engine.stats().disk.is_on
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the disk cache is turned off" in caplog.text and "the disk says no" in caplog.text


def test_a_directory_that_cannot_be_made_leaves_no_disk_cache(models, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    engine = models.engine(disk_cache=str(tmp_path / "file" / "below"))
    assert engine.stats().disk is None
    assert "there is no disk cache" in caplog.text
    assert [bits(answer(engine, prompts_of(40)[:1], PARAMS)[0])] == uncached(models, prompts_of(40)[:1])


def test_two_engines_do_not_share_a_file(models, tmp_path, caplog):
    first = engine_with_disk(models, tmp_path)
    assert models.engine(disk_cache=str(tmp_path)).stats().disk is None
    assert "there is no disk cache" in caplog.text
    first.close()
    assert models.engine(disk_cache=str(tmp_path)).stats().disk is not None


class GatedFile(FailingFile):
    """A file that writes nothing before its gate is opened."""

    def __init__(self, file):
        super().__init__(file)
        self.gate = threading.Event()

    def write(self, slot, header, record):
        self.gate.wait()
        super().write(slot, header, record)


def test_a_full_queue_drops_blocks_and_says_so(models, tmp_path):
    prompts = prompts_of(130)
    engine, file = engine_on_file(models, tmp_path / "file", GatedFile)
    outputs = [answer(engine, [prompt], PARAMS)[0] for prompt in prompts]
    disk = engine.stats().disk
    assert disk.num_dropped_blocks > 0 and disk.num_written_bytes == 0 and disk.is_on
    assert [bits(output) for output in outputs] == uncached(models, prompts)
    file.gate.set()
    settle(engine)
    assert engine.stats().disk.num_stored_blocks == MIN_STAGED_BLOCKS
