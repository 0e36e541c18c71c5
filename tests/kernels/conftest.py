"""What the kernel tests share: a seeded generator, and the C++ backend in every instruction set that runs here."""

import numpy as np
import pytest

from octavo.kernels.cpu import CpuOperations, instruction_sets


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is printed when the test fails; pytest-randomly sets it."""
    seed = int(np.random.randint(2**31))
    print(f"rng seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session", params=instruction_sets())
def cpu(request: pytest.FixtureRequest) -> CpuOperations:
    """The C++ backend on two threads."""
    return CpuOperations(2, instruction_set=request.param)


@pytest.fixture(scope="session", params=instruction_sets())
def cpu_by_num_threads(request: pytest.FixtureRequest) -> dict[int, CpuOperations]:
    """The C++ backend on one, two and three threads, for comparing bits."""
    return {num_threads: CpuOperations(num_threads, instruction_set=request.param) for num_threads in (1, 2, 3)}
