"""CpuOperations and CpuProgram: recording, lifetimes, threads, forks."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kernels.cpu import CpuOperations, instruction_sets

EPS = 1e-5


def record_norms(operations, x, out, num_operations):
    """Returns a program that adds the normalised ``x`` to ``out`` that many times."""
    program = operations.record()
    weight = np.ones(x.shape[1], np.float32)
    for _ in range(num_operations):
        program.rms_norm(x, weight, out, eps=EPS, accumulate=True)
    return program


def test_a_program_computes_what_the_single_operations_compute(cpu, rng):
    x = rng.standard_normal((9, 40)).astype(np.float32)
    weight, recorded, eager = np.ones(40, np.float32), np.zeros_like(x), np.zeros_like(x)
    program = record_norms(cpu, x, recorded, 3)
    for num_rows in (9, 1, 0, 5):
        program.run(num_rows, 1)
        for _ in range(3):
            cpu.rms_norm(x[:num_rows], weight, eager[:num_rows], eps=EPS, accumulate=True)
        np.testing.assert_array_equal(recorded, eager)


def test_a_program_sees_what_was_written_after_recording(cpu, rng):
    x, out = np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32)
    program = record_norms(cpu, x, out, 1)
    x[:] = 1
    program.run(2, 1)
    np.testing.assert_allclose(out, 1, rtol=1e-4)


def test_a_profile_counts_and_times_what_runs(rng):
    operations = CpuOperations(2)
    x = rng.standard_normal((9, 40)).astype(np.float32)
    program = record_norms(operations, x, np.zeros_like(x), 3)
    program.run(9, 1)
    assert operations.profile() == {}
    for _ in range(2):  # a second start forgets the first
        operations.start_profile()
        program.run(9, 1)
        operations.rms_norm(x, np.ones(40, np.float32), np.zeros_like(x), eps=EPS)
        (time_of_norms,) = operations.profile().values()
        assert time_of_norms.num_calls == 4
        assert 0 < time_of_norms.seconds < 1


def test_recording_runs_nothing(cpu):
    out = np.zeros((1, 8), np.float32)
    record_norms(cpu, np.ones((1, 8), np.float32), out, 2)
    assert not out.any()


def test_a_program_keeps_its_arrays_alive_and_lets_them_go():
    class Tracked(np.ndarray):
        """An array that a weak reference can follow."""

    x = np.ones((4, 8), np.float32).view(Tracked)
    x_reference = weakref.ref(x)
    program = record_norms(CpuOperations(1), x, np.zeros((4, 8), np.float32), 1)
    del x
    gc.collect()
    assert x_reference() is not None
    program.run(4, 1)
    del program
    gc.collect()
    assert x_reference() is None


@pytest.mark.parametrize(("num_tokens", "num_seqs"), [(5, 0), (-1, 0), (0, -1)])
def test_run_refuses_more_rows_than_the_arrays_hold(cpu, num_tokens, num_seqs):
    program = record_norms(cpu, np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32), 1)
    with pytest.raises(ValueError, match="expected 0 to"):
        program.run(num_tokens, num_seqs)


def test_several_python_threads_may_share_the_threads(cpu, rng):
    x = rng.standard_normal((16, 64)).astype(np.float32)
    outs = [np.zeros_like(x) for _ in range(4)]
    programs = [record_norms(cpu, x, out, 50) for out in outs]
    callers = [threading.Thread(target=lambda p=program: [p.run(16, 1) for _ in range(20)]) for program in programs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


def test_more_threads_than_processors_still_agree(rng):
    x = rng.standard_normal((33, 64)).astype(np.float32)
    results = []
    for num_threads in (1, 7):
        out = np.zeros_like(x)
        record_norms(CpuOperations(num_threads), x, out, 20).run(33, 1)
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])


def test_an_idle_backend_uses_no_processor_time():
    operations = CpuOperations(4)
    record_norms(operations, np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32), 10).run(4, 1)
    time.sleep(0.05)  # past the spinning
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


FORK_SCRIPT = """
import os, warnings
import numpy as np
from octavo.kernels.cpu import CpuOperations
warnings.simplefilter("ignore", DeprecationWarning)  # "this process is multi-threaded": that is the point
operations = CpuOperations(2)
x, weight = np.ones((4, 8), np.float32), np.ones(8, np.float32)
program = operations.record()
program.rms_norm(x, weight, np.zeros((4, 8), np.float32), eps=1e-5)
program.run(4, 1)
child = os.fork()
program.run(4, 1)
operations.rms_norm(x, weight, x, eps=1e-5)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_computes_and_exits():
    subprocess.run(
        [sys.executable, "-c", FORK_SCRIPT], check=True, timeout=30, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )


THREADS_SCRIPT = """
import resource
from octavo.errors import ConfigError
from octavo.kernels.cpu import CpuOperations
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 256 * 2**20,) * 2)  # of stacks, 32 at most
try:
    CpuOperations(1000)
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif("QEMU_CPU" in os.environ, reason="the emulator of processors does not limit the address space")
def test_more_threads_than_the_system_starts_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", THREADS_SCRIPT],
        check=True,
        timeout=30,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "did not start 1000 threads" in done.stdout


def test_unknown_instruction_set_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=instruction_sets()[0]):
        CpuOperations(1, instruction_set="mmx")


def test_environment_chooses_the_instruction_set(monkeypatch):
    monkeypatch.setenv("OCTAVO_CPU_ISA", instruction_sets()[-1])
    assert CpuOperations(1).instruction_set == instruction_sets()[-1]


def test_no_threads_is_refused():
    with pytest.raises(ConfigError, match="num_threads"):
        CpuOperations(0)
