"""Records on disk: whatever happens to a file's bytes, a damaged block is not read, and the others are."""

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.tiers.block_file import BlockFile
from octavo.tiers.block_io import BlockIO, ReadJob, WriteJob
from octavo.tiers.opening import read_index
from octavo.tiers.record import PAGE_BYTES, RecordHeader, decode_header, encode_header, record_bytes

BLOCK_BYTES = 4096
FINGERPRINT = bytes(range(32))
TOKENS = tuple(range(7, 23))


def block_of(slot):
    return np.random.default_rng(slot).integers(0, 256, BLOCK_BYTES, np.uint8)


def header_of(slot, block):
    return RecordHeader(bytes([slot]) * 32, slot % 2, TOKENS, slot, len(block), sha256(block).digest())


def open_file(path, *, block_bytes=BLOCK_BYTES, num_slots=8, fingerprint=FINGERPRINT):
    return BlockFile(path, block_bytes=block_bytes, num_slots=num_slots, fingerprint=fingerprint)


def write_slots(path, slots, **options):
    file = open_file(path, **options)
    record = aligned(file.slot_bytes)
    for slot in slots:
        block = block_of(slot)[: file.block_bytes]
        record[PAGE_BYTES : PAGE_BYTES + file.block_bytes] = block.data
        file.write(slot, header_of(slot, block), record)
    file.close()


def aligned(num_bytes):
    return memoryview(mmap.mmap(-1, num_bytes))


def pool(num_blocks):
    return np.frombuffer(aligned(num_blocks * BLOCK_BYTES), np.uint8).reshape(num_blocks, BLOCK_BYTES)


def readable(path, **options):
    """Returns the slots that are found, and those of them whose block is good."""
    file = open_file(path, **options)
    found = [slot for slot, _ in file.scan()]
    target = aligned(PAGE_BYTES * 2)[: file.block_bytes]
    good = []
    for slot in found:
        if file.read(slot, target) is not None:
            assert bytes(target) == block_of(slot)[: file.block_bytes].tobytes()
            good.append(slot)
    file.close()
    return found, good


def test_what_was_written_is_read(tmp_path):
    write_slots(tmp_path / "f", range(5))
    assert readable(tmp_path / "f") == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_blocks_that_are_no_whole_pages(tmp_path):
    write_slots(tmp_path / "f", range(3), block_bytes=1088)
    assert readable(tmp_path / "f", block_bytes=1088) == ([0, 1, 2], [0, 1, 2])


def test_a_file_system_without_direct_transfers(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT")
    write_slots(tmp_path / "f", range(3))
    assert readable(tmp_path / "f") == ([0, 1, 2], [0, 1, 2])


def test_another_fingerprint_or_block_size_finds_nothing(tmp_path):
    write_slots(tmp_path / "f", range(3))
    assert readable(tmp_path / "f", fingerprint=bytes(32)) == ([], [])
    assert readable(tmp_path / "f", block_bytes=BLOCK_BYTES - 64) == ([], [])


def test_a_smaller_size_cuts_the_file(tmp_path):
    write_slots(tmp_path / "f", range(8))
    assert readable(tmp_path / "f", num_slots=3)[1] == [0, 1, 2]
    assert (tmp_path / "f").stat().st_size == 3 * record_bytes(BLOCK_BYTES)


def test_one_user_at_a_time(tmp_path):
    file = open_file(tmp_path / "f")
    with pytest.raises(OSError):
        open_file(tmp_path / "f")
    file.close()
    open_file(tmp_path / "f").close()


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_costs_its_block_and_no_other(tmp_path, seed):
    path = tmp_path / "f"
    write_slots(path, range(3))
    source = random.Random(seed)
    slot_bytes = record_bytes(BLOCK_BYTES)
    whole = path.read_bytes()
    offsets = [slot_bytes + source.randrange(step, step + 64) for step in range(0, slot_bytes, 64)]
    for offset in offsets:  # one in every 64 bytes of the middle slot, header and block
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        assert readable(path)[1] == [0, 2], f"byte {offset - slot_bytes} of the slot"


def test_every_byte_of_a_header_matters():
    block = block_of(1)
    page = encode_header(header_of(1, block), FINGERPRINT)
    assert decode_header(page, FINGERPRINT) == header_of(1, block)
    for offset in range(PAGE_BYTES):
        assert decode_header(page[:offset] + bytes([page[offset] ^ 1]) + page[offset + 1 :], FINGERPRINT) is None


def test_a_file_cut_anywhere_serves_what_lies_before(tmp_path):
    path = tmp_path / "f"
    write_slots(path, range(3))
    whole = path.read_bytes()
    slot_bytes = record_bytes(BLOCK_BYTES)
    for length in range(0, len(whole) + 1, 256):
        path.write_bytes(whole[:length])
        assert readable(path)[1] == list(range(length // slot_bytes)), f"{length} bytes"


def test_a_torn_overwrite_costs_its_block_and_no_other(tmp_path):
    write_slots(tmp_path / "old", range(3))
    write_slots(tmp_path / "new", range(3))
    old = bytearray((tmp_path / "old").read_bytes())
    slot_bytes = record_bytes(BLOCK_BYTES)
    new_record = bytearray(old[:slot_bytes])
    new_record[PAGE_BYTES:] = block_of(77).tobytes()
    new_record[:PAGE_BYTES] = encode_header(header_of(77, block_of(77)), FINGERPRINT)
    for done in range(512, slot_bytes, 512):  # sectors of the new record that reached the disk, from either end
        for torn in (
            new_record[:done] + old[slot_bytes + done : 2 * slot_bytes],
            old[slot_bytes : slot_bytes + done] + new_record[done:],
        ):
            (tmp_path / "old").write_bytes(old[:slot_bytes] + torn + old[2 * slot_bytes :])
            assert readable(tmp_path / "old")[1] == [0, 2]


def test_the_index_begins_where_the_last_process_stopped(tmp_path):
    write_slots(tmp_path / "f", [4, 1, 2])
    file = open_file(tmp_path / "f")
    index, next_stamp = read_index(file)
    file.close()
    assert next_stamp == 5
    assert index.find((bytes([4]) * 32, 0), TOKENS) == 4
    assert [index.reserve() for _ in range(6)] == [0, 3, 5, 6, 7, 1]  # free ones, then the oldest stamp


def test_a_block_under_another_name_is_not_taken(tmp_path):
    write_slots(tmp_path / "f", range(2))
    blocks = pool(4)
    io = BlockIO(open_file(tmp_path / "f"), blocks, first_stamp=9)
    key = bytes([1]) * 32
    jobs = [
        ReadJob(1, key, 1, TOKENS, block_id=0),
        ReadJob(1, bytes(32), 1, TOKENS, block_id=1),  # another prefix
        ReadJob(1, key, 0, TOKENS, block_id=2),  # another layer group
        ReadJob(1, key, 1, TOKENS[::-1], block_id=3),  # the same hash for other tokens
    ]
    io.read(jobs)
    io.close(5.0)
    assert [job.is_good for job in jobs] == [True, False, False, False]
    assert blocks[0].tobytes() == block_of(1).tobytes()


def test_a_read_goes_before_the_write_that_would_overwrite_it(tmp_path):
    write_slots(tmp_path / "f", range(1))
    blocks = pool(2)
    io = BlockIO(open_file(tmp_path / "f"), blocks, first_stamp=9)
    with io._changed:  # both are queued before the thread can look
        read = ReadJob(0, bytes(32), 0, TOKENS, block_id=1)
        io.write(WriteJob(0, b"n" * 32, 0, TOKENS), 0)
        io.read([read])
    io.close(5.0)
    assert read.is_good


WRITER = """
import sys
from pathlib import Path
import numpy as np
from octavo.tiers.block_file import BlockFile
from octavo.tiers.block_io import BlockIO, WriteJob
blocks = np.zeros((1, {block_bytes}), np.uint8)
file = BlockFile(Path(sys.argv[1]), block_bytes={block_bytes}, num_slots=64, fingerprint=bytes(range(32)))
io = BlockIO(file, blocks, first_stamp=0)
number = 0
while True:
    blocks[0] = np.random.default_rng(number).integers(0, 256, {block_bytes}, np.uint8)
    while not io.has_room:
        io.wait(1.0)
    io.write(WriteJob(number % 64, number.to_bytes(32, "little"), 0, (number,) * 16), 0)
    for job in io.finished():
        print(int.from_bytes(job.key, "little"), flush=True)
    number += 1
"""


def test_killed_at_any_moment_loses_at_most_the_newest_blocks(tmp_path):
    source = random.Random(11)
    block_bytes = 65536
    for attempt in range(5):
        path = tmp_path / f"f{attempt}"
        script = WRITER.format(block_bytes=block_bytes)
        environment = os.environ | {"PYTHONPATH": str(Path(octavo.__file__).parents[1])}
        with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True, env=environment) as writer:
            written = [int(writer.stdout.readline()) for _ in range(source.randint(1, 120))]
            time.sleep(source.random() * 0.002)  # somewhere within the next write
            writer.send_signal(signal.SIGKILL)
        file = open_file(path, block_bytes=block_bytes, num_slots=64)
        target, good = aligned(block_bytes), set()
        for slot, header in file.scan():
            number = header.token_ids[0]
            if file.read(slot, target) is not None:
                assert bytes(target) == np.random.default_rng(number).integers(0, 256, block_bytes, np.uint8).tobytes()
                good.add(number)
        file.close()
        newest = max([*written, *good])
        kept = {number for number in written if number > newest - 63}  # one may be torn that was replacing an older one
        assert kept <= good and kept, f"lost {sorted(kept - good)}"
