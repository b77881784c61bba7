"""`python guard.py COMMAND...`: run a server that ends when the process that started it does, kill -9 included.

A vLLM server is a tree of processes, and what the kernel offers (`PR_SET_PDEATHSIG`) reaches one process and follows
a thread. The guard leads the process group of the tree instead, and reads a pipe that only its parent holds: the end
of the pipe is the end of the parent. Standard library only, run by path, so that it starts in milliseconds.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import Final

GRACE_S: Final = 10.0
"""From asking a server without a parent to end until it is killed. It then removes its shared memory itself."""


def main(command: list[str]) -> None:
    """Run `command` to its end, then end whatever is left of its process group, this process included."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def ask(number: int, frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, ask)
    threading.Thread(target=_follow_parent, args=(server,), daemon=True).start()
    code = server.wait()
    print(f"[tocsin] the server ended with {_meaning(code)}", flush=True)
    os.killpg(0, signal.SIGKILL)


def _follow_parent(server: "subprocess.Popen[bytes]") -> None:
    sys.stdin.buffer.read()
    server.terminate()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _meaning(code: int) -> str:
    if code == -signal.SIGKILL:
        return "SIGKILL: somebody killed it, or the kernel did for lack of memory"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    main(sys.argv[1:])
