"""What the processes of a run have in common."""

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import ctypes, resource, sys
from tocsin.trainer.processes import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if sys.argv[1] == "keep":
    keep_freed_memory()


def step():
    blocks = [library.malloc(2**24) for _ in range(8)]
    for block in blocks:
        library.memset(block, 1, 2**24)
    for block in blocks:
        library.free(block)


step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_steps_of_equal_size_take_the_same_memory_again():
    def page_faults(how: str) -> int:
        return int(subprocess.check_output([sys.executable, "-c", ROUNDS, how], text=True))

    # Five steps of 128 MiB in pages of at most 64 KiB, or of 2 MiB where the kernel makes them huge.
    assert page_faults("leave") > 200
    assert page_faults("keep") < 50
