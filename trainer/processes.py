"""Child processes: started with quiet threads, deaf to Ctrl-C, and never outliving their parent.

The learner's process starts the sampler and the rollout process, the rollout process starts the reward workers.
Ctrl-C reaches a whole terminal group, but only the learner may act on it: it ends its children in order.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
from multiprocessing import resource_tracker
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Final

from tocsin.diagnostics.variables import environment_variables

SPAWN: Final[SpawnContext] = multiprocessing.get_context("spawn")
"""How every child is made. A fork would copy locks that torch's and pyarrow's threads hold."""

_FORKING: Final[list[bool]] = []
"""Not empty in a process that promised to have no such threads, and in its children."""

PARENT_POLL_S: Final = 1.0
"""How often a child looks for its parent where the kernel cannot tell it."""

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""

KEPT_BYTES: Final = 2**30
"""Free memory that a process which trains or generates on the CPU may hold back from the system."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
"""Options of prctl(2)."""


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of a process that computes with `threads` CPU threads.

    Passive waiting matters more than the number: OpenMP threads that spin between two operations take the cores
    from the other processes of the run. The tokenizers library would otherwise start one thread per core.
    """
    number = str(threads)
    return {
        "OMP_NUM_THREADS": number,
        "MKL_NUM_THREADS": number,
        "OPENBLAS_NUM_THREADS": number,
        "RAYON_NUM_THREADS": number,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }


def keep_freed_memory() -> None:
    """Have this process take again what it freed, instead of returning it to the system after every step.

    The C library gives back what lies free at the top of its heap, and large blocks at once, so that each step touches
    new pages. How much that costs depends on the order in which a run came by its memory: most for a learner that began
    with small micro-batches and went over to large ones. Torch's allocator for CUDA devices keeps memory in the same
    way. Does nothing where the library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that it accepts
    library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def fork_children() -> None:
    """Have this process and its children fork those that need torch and transformers, instead of importing them anew.

    For a process that imported the libraries once to start many runs. It must not have computed anything before.
    """
    _FORKING.append(True)


def heavy_context() -> SpawnContext | ForkContext:
    """How a child is made that needs torch and transformers, or whose own children do."""
    return multiprocessing.get_context("fork") if _FORKING else SPAWN


def start_child(process: BaseProcess, *, threads: int = 1) -> None:
    """Start `process` with `thread_environment(threads)`; its target calls `child_main_setup` first.

    Call it from the main thread or another one that lives as long as the child: Linux counts the end of the
    *thread* that made a child as the death of its parent. SIGINT stays blocked in the child until it ignores it,
    so Ctrl-C during its imports prints no traceback.
    """
    # Its own start unblocks SIGINT in this thread, so it must be running before the mask is set.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with environment_variables(thread_environment(threads)):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_main_setup(name: str) -> None:
    """First call of a child's target: ignore interrupts, die with the parent, show `name` in process lists."""
    ignore_interrupts()
    die_with_parent()
    if sys.platform == "linux":
        _prctl(PR_SET_NAME, f"tocsin-{name}"[:15].encode())
    # A crash in native code then leaves the Python stack on stderr.
    faulthandler.enable(file=sys.__stderr__ or sys.stderr)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that owns the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, for whatever reason, kill -9 included."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child of multiprocessing has a parent to follow"
    assert parent.pid is not None
    die_with(parent.pid)


def die_with(parent_pid: int) -> None:
    """Have this process killed when its parent, which is `parent_pid`, ends."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        watch = threading.Thread(target=_exit_without, args=(parent_pid,), name="parent-watch", daemon=True)
        watch.start()
    # The parent may have ended before the request was in place.
    if os.getppid() != parent_pid:
        os._exit(1)


def _exit_without(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)


def _prctl(option: int, argument: int | bytes) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed: {os.strerror(number)}")
