"""What tests of servers need: a specification, the processes of a server, and a stand-in for vLLM that starts at once.

The stand-in is an executable that is used as the interpreter. It answers `probe.py`, and as a server it logs like vLLM,
has a child, and is healthy at once. Further arguments change that: `--fails`, `--never-healthy`, `--deaf` to SIGTERM.
"""

import os
import sys
from pathlib import Path

import psutil

from tocsin.trainer.vllm.interpreter import Interpreter
from tocsin.trainer.vllm.servers import ServerSpec, free_ports

STAND_IN = """\
#!{python}
import http.server, signal, subprocess, sys, time

if sys.argv[1].endswith("probe.py"):
    print('{{"vllm": "0.32.0", "is_cpu": true, "has_plugin": true, "unloadable": []}}')
    sys.exit()
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("(APIServer pid=1) INFO 11-29 20:55:43 [model.py:733] Resolved architecture: LlamaForCausalLM", flush=True)
if "--fails" in sys.argv:
    print("(Worker pid=3) ERROR 11-29 20:55:50 [worker.py:9] RuntimeError: Cannot find any model weights")
    sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
if "--never-healthy" in sys.argv:
    time.sleep(600)


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""


def stand_in(folder: Path) -> Interpreter:
    """The stand-in, written into `folder`."""
    path = folder / "stand-in"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o700)
    return Interpreter(path, version="0.32.0", device="cpu")


def server_spec(interpreter: Interpreter, model: Path, folder: Path, *extra_args: str) -> ServerSpec:
    """A server on a free port that logs to `folder`."""
    return ServerSpec(
        name="vllm-0",
        interpreter=interpreter,
        model=str(model),
        dtype="float32",
        port=free_ports(1)[0],
        log=folder / "vllm-0.log",
        extra_args=extra_args,
    )


def group(leader: int | None) -> list[psutil.Process]:
    """Every living process of the group that `leader` leads."""
    assert leader is not None
    return [process for process in psutil.process_iter() if _group_of(process.pid) == leader]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
