"""The C++ backend's threads when one of them cannot go on: the caller's own, whose exceptions could come back to it."""

import signal
import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.host_tensor import HostTensor

operations = CpuOperations(2)
values = np.zeros((64, 8192), np.float32)
narrow, wide = (
    operations.pack_weight([HostTensor("w", (size, 8192), "f32", values[:size])], "fp32") for size in (32, 64)
)
x, out = np.zeros((63, 8192), np.float32), np.zeros((63, 64), np.float32)
operations.linear(x, narrow, out[:, :32])  # a single panel, which is the second thread's: it has its memory now
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**20  # less than what the first thread wants for packing rows
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
operations.linear(x, wide, out)
"""


def test_a_thread_without_memory_ends_the_process_instead_of_leaving_it_waiting():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert result.returncode == -signal.SIGABRT
    assert "bad_alloc" in result.stderr
