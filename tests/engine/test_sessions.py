"""Saved conversations: whole, exact, and refused by name where they do not fit."""

import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import octavo
from engine.tiny_engine import GEMMA_SPEC, SPEC, answer, bits, full_attention, run
from octavo.engine.stall_watch import StallWatch
from octavo.errors import SnapshotError
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.tiers.fingerprint import Fingerprint
from octavo.tiers.session_file import SessionFile, read_description

PARAMS = SamplingParams(max_tokens=5, temperature=0.0, logprobs=2, ignore_eos=True)
TOKENS = [random.Random(3).randrange(1, 256) for _ in range(8 * 16 + 5)]


def llm_on(engine):
    """Returns an `LLM` over an engine that exists."""
    with patch("octavo.llm.load_engine", return_value=engine):
        return LLM("tiny")


@pytest.fixture
def saved(models, tmp_path):
    """A session's path."""
    llm_on(models.engine()).save_session(tmp_path / "s", TOKENS)
    return tmp_path / "s"


def test_a_loaded_session_serves_all_its_tokens(models, tmp_path):
    before = models.engine()
    info = llm_on(before).save_session(tmp_path / "s", TOKENS)
    assert (info.num_tokens, info.token_ids) == (len(TOKENS), TOKENS)
    assert info.num_bytes == (tmp_path / "s").stat().st_size
    before.check_invariants()
    assert before.stats().memory.num_used_blocks == 0
    after = models.engine()
    loaded = llm_on(after).load_session(tmp_path / "s")
    after.check_invariants()
    assert (loaded.num_tokens, loaded.token_ids, loaded.num_bytes) == (len(TOKENS), TOKENS, info.num_bytes)
    longer = [*TOKENS, 9, 8]
    output = answer(after, [longer], PARAMS)[0]
    assert output.num_prefix_hit_tokens == len(TOKENS)
    assert bits(output) == bits(answer(models.engine(enable_prefix_caching=False), [longer], PARAMS)[0])


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("spec", [SPEC, GEMMA_SPEC], ids=["window", "gemma"])
def test_every_kv_format_comes_back(models, tmp_path, spec, kv_dtype):
    settings = {"spec": spec, "kv_dtype": kv_dtype, "kv_memory": "150 blocks"}
    llm_on(models.engine(**settings)).save_session(tmp_path / "s", TOKENS)
    after = models.engine(**settings)
    llm_on(after).load_session(tmp_path / "s")
    expected = answer(models.engine(**settings, enable_prefix_caching=False), [TOKENS], PARAMS)[0]
    output = answer(after, [TOKENS], PARAMS)[0]
    assert output.num_prefix_hit_tokens == len(TOKENS) - 1
    assert bits(output) == bits(expected)


def test_loading_twice_changes_nothing(models, saved):
    engine = models.engine()
    for _ in range(2):
        assert llm_on(engine).load_session(saved).num_tokens == len(TOKENS)
        engine.check_invariants()
    assert engine.stats().memory.num_used_blocks == 0


def test_a_pool_too_small_takes_the_beginning(models, tmp_path):
    spec = full_attention()
    llm_on(models.engine(spec=spec)).save_session(tmp_path / "s", TOKENS)
    small = models.engine(spec=spec, kv_memory="5 blocks")
    assert llm_on(small).load_session(tmp_path / "s").num_tokens == 5 * 16
    small.check_invariants()


def test_a_conversation_that_is_not_kept_is_not_saved(models, tmp_path):
    with pytest.raises(SnapshotError, match="only 0 of the conversation's"):
        llm_on(models.engine(enable_prefix_caching=False)).save_session(tmp_path / "s", TOKENS)
    assert not list(tmp_path.iterdir())


def test_what_is_being_saved_is_not_written_to(models, tmp_path):
    """A request with the same prompt goes on in the block that is written to the file."""
    engine = models.engine(spec=full_attention())
    request_id = engine.add_request(TOKENS, PARAMS)
    while not engine.peek(request_id).outputs[0].token_ids:
        engine.step()
    held = engine.sessions.hold(TOKENS, ())
    blocks = list(held.blocks.values())
    before = engine._runner.kv_blocks[blocks].copy()
    run(engine)
    assert (engine._runner.kv_blocks[blocks] == before).all()
    engine.sessions.write(held, tmp_path / "s")
    engine.sessions.let_go(held)
    engine.check_invariants()
    alone = models.engine(spec=full_attention(), enable_prefix_caching=False)
    assert bits(engine.take(request_id)) == bits(answer(alone, [TOKENS], PARAMS)[0])


def check_waits(engine):
    """Asserts that nothing runs, and that nobody takes that for a stall."""
    watch = StallWatch(engine, clock=iter(range(0, 10_000, 100)).__next__)
    for _ in range(5):
        assert engine.step() == []
        assert watch.check() is None
        engine.check_invariants()


def test_a_request_that_needs_the_whole_pool_waits_for_a_save(models, tmp_path):
    spec, params = full_attention(), SamplingParams(max_tokens=27, temperature=0.0, logprobs=2, ignore_eos=True)
    engine = models.engine(spec=spec, kv_memory="10 blocks")
    request_id = engine.add_request(TOKENS, params)  # 160 tokens in the end
    while not engine.peek(request_id).outputs[0].token_ids:
        engine.step()
    held = engine.sessions.hold(TOKENS, ())
    while engine.step():
        pass
    assert len(TOKENS) + len(engine.peek(request_id).outputs[0].token_ids) == 9 * 16 + 1, "the copy of a block is one too many"
    check_waits(engine)
    engine.sessions.write(held, tmp_path / "s")
    engine.sessions.let_go(held)
    run(engine)
    assert bits(engine.take(request_id)) == bits(answer(models.engine(spec=spec, enable_prefix_caching=False), [TOKENS], params)[0])


def test_a_request_that_needs_the_whole_pool_waits_for_a_load(models, tmp_path):
    spec = full_attention()
    llm_on(models.engine(spec=spec)).save_session(tmp_path / "s", TOKENS)
    engine = models.engine(spec=spec, kv_memory="9 blocks")
    loading = engine.sessions.begin(engine.sessions.open(tmp_path / "s", ()), ())
    request_id = engine.add_request(TOKENS[::-1], PARAMS)
    check_waits(engine)
    engine.sessions.read(loading)
    assert engine.sessions.finish(loading).num_tokens == len(TOKENS)
    run(engine)
    expected = answer(models.engine(spec=spec, enable_prefix_caching=False), [TOKENS[::-1]], PARAMS)[0]
    assert bits(engine.take(request_id)) == bits(expected)


def test_when_no_session_is_under_way_a_stall_is_one(models, tmp_path):
    engine = models.engine()
    llm_on(engine).save_session(tmp_path / "s", TOKENS)
    llm_on(engine).load_session(tmp_path / "s")
    assert engine.reset_prefix_cache()
    llm_on(engine).load_session(tmp_path / "s")
    request_id = engine.add_request(TOKENS, PARAMS)
    watch = StallWatch(engine, clock=iter((0, 100)).__next__)
    assert watch.check() is None
    assert watch.check().request_id == request_id


def test_blocks_that_a_save_holds_are_in_the_map_and_in_the_dump(models):
    engine = models.engine(spec=full_attention())
    request_id = engine.add_request(TOKENS, PARAMS)
    while not engine.peek(request_id).outputs[0].token_ids:
        engine.step()
    held = engine.sessions.hold(TOKENS, ())
    shown = [(block.state, block.ref_count, len(block.holders)) for block in engine.block_map().blocks]
    assert shown == [("used", 2, 1)] * 9
    assert engine.dump().text.count(f"held by [{request_id}/1 group 0, a transfer]") == 9
    run(engine)
    shown = [(block.state, block.ref_count, len(block.holders)) for block in engine.block_map().blocks]
    assert shown == [("used", 1, 0)] * 9 + [("cached", 0, 0)]
    engine.sessions.let_go(held)
    assert {block.state for block in engine.block_map().blocks} == {"cached"}


# ---- what does not fit


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("kv_dtype", {"kv_dtype": "bf16"}),
        ("layout", {"block_size": 32}),
        ("weights", {"weights_seed": 4}),
        ("weight_format", {"weights": "bf16"}),
        ("config", {"spec": full_attention()}),
    ],
)
def test_what_differs_is_named(models, saved, field, change):
    with pytest.raises(SnapshotError, match=f" {field}="):
        llm_on(models.engine(**change)).load_session(saved)


def test_another_salt_is_refused(models, tmp_path):
    llm_on(models.engine()).save_session(tmp_path / "s", {"prompt_token_ids": TOKENS, "cache_salt": "one"})
    for salt in (None, "two"):
        with pytest.raises(SnapshotError, match="namespace"):
            llm_on(models.engine()).load_session(tmp_path / "s", cache_salt=salt)
    engine = models.engine()
    llm_on(engine).load_session(tmp_path / "s", cache_salt="one")
    assert answer(engine, [TOKENS], PARAMS)[0].num_prefix_hit_tokens == 0
    assert answer(engine, [TOKENS], PARAMS, cache_salt="one")[0].num_prefix_hit_tokens == len(TOKENS) - 1


def test_another_format_version_is_named(models, saved):
    data = bytearray(saved.read_bytes())
    data[8] = 2
    saved.write_bytes(data)
    with pytest.raises(SnapshotError, match="format_version 2; this engine reads 1"):
        llm_on(models.engine()).load_session(saved)


@pytest.mark.parametrize("name", ["missing", "link"])
def test_what_is_no_file_is_refused(models, saved, name):
    (saved.parent / "link").symlink_to(saved)
    with pytest.raises(SnapshotError, match="cannot be opened"):
        llm_on(models.engine()).load_session(saved.parent / name)


# ---- damage

RECORD_BYTES = 4096 + 12288  # of 16 tokens in three layers


def served_tokens(models, path, spec):
    engine = models.engine(spec=spec)
    try:
        num_tokens = llm_on(engine).load_session(path).num_tokens
    except SnapshotError:
        num_tokens = 0
    engine.check_invariants()
    assert engine.stats().memory.num_used_blocks == 0
    output = answer(engine, [TOKENS], PARAMS)[0]
    assert output.num_prefix_hit_tokens == min(num_tokens, len(TOKENS) - 1)
    return num_tokens, bits(output)


@pytest.fixture
def damageable(models, tmp_path):
    """A session of nine blocks: its model, its path, its bytes, and where the first of nine records begins."""
    spec = full_attention()
    path = tmp_path / "s"
    llm_on(models.engine(spec=spec)).save_session(path, TOKENS)
    whole = path.read_bytes()
    return spec, path, whole, len(whole) - 9 * RECORD_BYTES


def test_a_flipped_bit_costs_what_depends_on_its_block(models, damageable):
    spec, path, whole, data_offset = damageable
    expected = bits(answer(models.engine(spec=spec, enable_prefix_caching=False), [TOKENS], PARAMS)[0])
    source = random.Random(2)
    in_records = [data_offset + index * RECORD_BYTES + source.randrange(RECORD_BYTES) for index in range(9)]
    for place in [source.randrange(data_offset), *in_records]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << source.randrange(8)]) + whole[place + 1 :])
        num_tokens, output = served_tokens(models, path, spec)
        is_padding = place < data_offset and whole[place] == 0
        assert num_tokens == max(0, (place - data_offset) // RECORD_BYTES) * 16 or is_padding
        assert output == expected


def test_every_byte_of_a_description_matters(damageable):
    _, path, whole, data_offset = damageable
    length_end = 20  # after the magic, the version and the description's length come the description and its digest
    (length,) = struct.unpack_from("<Q", whole, length_end - 8)
    end = length_end + length + 32
    assert whole[length_end : length_end + length].endswith(b"}") and not any(whole[end:data_offset])
    for place in range(end):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SnapshotError):
            read_description(path)


def test_a_file_cut_anywhere_serves_what_is_left(models, damageable):
    spec, path, whole, data_offset = damageable
    for length in range(0, len(whole), RECORD_BYTES // 2):
        path.write_bytes(whole[:length])
        num_tokens, _ = served_tokens(models, path, spec)
        assert num_tokens == max(0, (length - data_offset) // RECORD_BYTES) * 16, f"{length} bytes"


def test_a_failed_save_leaves_the_old_file(models, saved, monkeypatch):
    old = saved.read_bytes()

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(SnapshotError, match="No space left on device"):
        llm_on(models.engine()).save_session(saved, TOKENS)
    assert saved.read_bytes() == old and list(saved.parent.iterdir()) == [saved]


SAVER = """
import itertools, os, sys
from pathlib import Path
from octavo.models import cache_directory
from octavo.tiers import session_file
from octavo.tiers.fingerprint import Fingerprint

class Killed:
    \"\"\"Ends the process without a word before or after the call of that number, wherever it comes in the code.\"\"\"
    def __init__(self, number):
        self.number = number
    def watch(self, function):
        def call(*arguments, **options):
            for is_after in (False, True):
                self.number -= 1
                if self.number < 0:
                    os._exit(9)
                if not is_after:
                    result = function(*arguments, **options)
            return result
        return call

class Watched:
    def __init__(self, file, killed):
        self.fileno, self.tell = file.fileno, file.tell
        self.write, self.flush = killed.watch(file.write), killed.watch(file.flush)

def save(number, killed=None):
    blocks = {(index, 0): memoryview(bytes([number % 256]) * 4096) for index in range(20)}
    path, fingerprint = Path(sys.argv[1]), Fingerprint({"a": "b"})
    session_file.write_session(path, fingerprint, namespace="()", token_ids=[number] * 320, block_size=16, blocks=blocks)

def save_and_be_killed(number):
    killed = Killed(number)
    for module, name in ((os, "fsync"), (os, "replace")):
        setattr(module, name, killed.watch(getattr(module, name)))
    replacement = session_file.replacement
    from contextlib import contextmanager
    @contextmanager
    def watched(path):
        with replacement(path) as file:
            yield Watched(file, killed)
    session_file.replacement = watched
    save(number + 1)

save(0)
for number in itertools.count():
    child = os.fork()
    if child == 0:
        save_and_be_killed(number)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(number + 1, status, flush=True)
    input()
    if status == 0:
        break
"""


def test_killed_at_every_step_of_saving_leaves_a_whole_session(tmp_path):
    """Before and after every write, flush and rename: the old session or the new one is there, and every block of it is good."""
    path, numbers = tmp_path / "s", []
    environment = os.environ | {"PYTHONPATH": str(Path(octavo.__file__).parents[1])}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SAVER, path], stdin=pipe, stdout=pipe, text=True, env=environment) as saver:
        for line in saver.stdout:
            numbers.append((whole_session(path), *map(int, line.split())))
            saver.stdin.write("\n")
            saver.stdin.flush()
    found, saved, statuses = zip(*numbers, strict=True)
    assert len(numbers) > 60 and statuses == (9,) * (len(numbers) - 1) + (0,)
    num_old = found.count(0)
    assert found == (0,) * num_old + saved[num_old:], "the rename decides, and nothing else"
    assert 0 < len(numbers) - num_old <= 5  # after the rename: its own end, the directory's flush, and the end


def whole_session(path):
    """Returns the number that a session was saved with; all its blocks have to be there."""
    file = SessionFile(path, Fingerprint({"a": "b"}))
    number = file.description.token_ids[0]
    into = bytearray(4096)
    for index in range(20):
        assert file.read((index, 0), memoryview(into)) and into[0] == number % 256
    file.close()
    return number
