"""The C++ backend's threads when one of them cannot go on."""

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
weight = operations.pack_weight([HostTensor("w", values.shape, "f32", values)], "fp32")
x, out = np.zeros((192, 8192), np.float32), np.zeros((192, 64), np.float32)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**20  # less than what the threads want for packing rows
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
operations.linear(x, weight, out)
"""


def test_a_thread_without_memory_ends_the_process_instead_of_leaving_it_waiting():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert result.returncode == -signal.SIGABRT
    assert "bad_alloc" in result.stderr
