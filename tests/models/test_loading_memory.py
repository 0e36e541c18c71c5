"""Loading takes little more memory than the loaded model: nothing of the file stays in the page cache or in the process."""

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.tiny_engine import SPEC, RandomSource
from octavo.kernels.cpu import CpuOperations
from octavo.models.checkpoint import READ_BYTES, SafetensorsSource
from octavo.models.weights import load_weights
from octavo.planner.load_sizes import load_sizes
from physical_memory import process_bytes, resident_file_bytes

MIB = 2**20
WIDE = replace(SPEC, hidden_size=512, intermediate_size=3072, num_layers=6, windows=(None,) * 6, layer_rotaries=(0,) * 6)
SLACK_BYTES = 12 * MIB  # of the interpreter and of what the system reads ahead


class PeakSampler:
    """Samples, on a thread, the process and the file's pages in memory; remembers the most of each and of both."""

    def __init__(self, path: Path):
        self._path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.before = process_bytes()
        self.cached, self.both, self.num_samples = 0, 0, 0

    def _sample(self) -> None:
        while not self._is_over.wait(0.0005):
            cached = resident_file_bytes(self._path)
            self.cached = max(self.cached, cached)
            self.both = max(self.both, cached + process_bytes() - self.before)
            self.num_samples += 1

    def __enter__(self) -> "PeakSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = RandomSource(WIDE, 1)
    path = tmp_path / "model.safetensors"
    save_file({name: source.read(name).data for name in source.names()}, path)
    with open(path, "rb") as file:  # a page that is not on disk yet cannot be dropped
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return tmp_path


def test_memory_while_loading_stays_below_what_the_budget_assumes(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert path.stat().st_size > 100 * MIB
    if resident_file_bytes(path):
        pytest.skip("this file system keeps pages that are to be dropped")
    operations, source = CpuOperations(1), SafetensorsSource(folder)
    sizes = load_sizes(WIDE, source, "fp32")
    with PeakSampler(path) as peak:
        weights = load_weights(WIDE, source, operations, "fp32")
    assert peak.num_samples > 20
    assert peak.cached <= READ_BYTES + SLACK_BYTES
    assert peak.both <= sizes.weight_bytes + sizes.unpacked_bytes + READ_BYTES + SLACK_BYTES
    assert peak.both >= weights.num_bytes, "the samples missed the load"
    assert resident_file_bytes(path) <= SLACK_BYTES
    assert np.isfinite(weights.final_norm).all()


def test_a_file_that_was_in_the_page_cache_stays_there(folder: Path) -> None:
    """A second file, read just before and left alone, tells whether the system itself took pages back meanwhile."""
    path, other = folder / "model.safetensors", folder / "other"
    shutil.copy(path, other)
    for _ in range(5):
        for file in (other, path):
            file.read_bytes()
        load_weights(WIDE, SafetensorsSource(folder), CpuOperations(1), "fp32")
        if resident_file_bytes(other) >= path.stat().st_size:
            assert resident_file_bytes(path) >= path.stat().st_size
            return
    pytest.skip("this system does not keep a file that was just read")
