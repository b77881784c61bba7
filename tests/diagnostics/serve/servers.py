"""The application of `tocsin serve` on a free port of this machine, and clients of it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tocsin.diagnostics.serve.commands import door
from tocsin.diagnostics.serve.guard import Admission
from tocsin.diagnostics.serve.operations import Runs
from tocsin.diagnostics.serve.tokens import Tokens

TOKEN = "a-token-of-the-tests"
ACTOR = "agent:nightwatch"
PATIENCE_S = 60.0
"""For one answer. Many times what it takes on an idle machine."""


@contextmanager
def serving(runs_dir: Path, **admission: Any) -> Iterator[httpx.Client]:
    """A server of `runs_dir` in a thread, and a client that shows no token. `admission` are fields of `Admission`."""
    guard = door(Runs(runs_dir), Admission(**{"tokens": Tokens([(ACTOR, TOKEN)]), **admission}))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(guard, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started)
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def with_token(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and kind of an answer that is a problem and nothing else."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert set(document) == {"type", "title", "status", "detail"}
    assert document["detail"]
    assert "\n" not in document["detail"]
    return response.status_code, document["type"].removeprefix("urn:tocsin:problem:")
