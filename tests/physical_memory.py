"""Physical memory, as the kernel counts it."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def resident_array_bytes(array: np.ndarray) -> int:
    """Returns how much of a page-aligned array is in memory."""
    return _resident_bytes(array.ctypes.data, array.nbytes)


def resident_file_bytes(path: Path) -> int:
    """Returns how much of a file is in the page cache."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        array = np.frombuffer(view, np.uint8)
        try:
            return _resident_bytes(array.ctypes.data, array.nbytes)
        finally:
            del array


def process_bytes(pid: int | str = "self") -> int:
    """Returns a process's resident memory."""
    return os.sysconf("SC_PAGESIZE") * int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def _resident_bytes(address: int, num_bytes: int) -> int:
    pages = ctypes.create_string_buffer(-(-num_bytes // mmap.PAGESIZE))
    if LIBC.mincore(address, num_bytes, pages):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE
