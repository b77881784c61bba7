"""What a request must pass before anything looks at it."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.diagnostics.run_folder import RUN, Run, example
from tests.diagnostics.serve.servers import TOKEN, problem, serving, until, with_token
from tocsin.diagnostics.serve.guard import MAX_BODY_BYTES, is_loopback
from tocsin.schemas.diagnosis import Coverage

FEED = f"/runs/{RUN}/feed"
PAUSE = f"/runs/{RUN}/pause"


@pytest.fixture
def client(runs: Path) -> Iterator[httpx.Client]:
    Run(runs).firing().end()
    with serving(runs, body_s=0.5) as found:
        yield found


def raw(client: httpx.Client, text: bytes, then: bytes = b"") -> bytes:
    """The answer to bytes as they are."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=60) as connection:
        connection.sendall(text)
        if then:
            connection.sendall(then)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:80", "localhost@evil.example", "[::2]", "", "a b"]
)
def test_a_request_for_another_host_is_refused(client: httpx.Client, host: str):
    assert problem(client.get("/runs", headers={"Host": host})) == (421, "foreign-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:7878"])
def test_the_names_of_this_machine_are_served_at_any_port(client: httpx.Client, host: str):
    assert client.get("/runs", headers={"Host": host}).status_code == 200


def test_two_hosts_are_refused(client: httpx.Client):
    answer = raw(client, b"GET /runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "file://", "http://[", ""])
def test_a_page_from_elsewhere_is_refused(client: httpx.Client, origin: str):
    headers = {"Origin": origin, **with_token()}
    assert problem(client.get("/runs", headers=headers)) == (403, "foreign-origin")
    assert problem(client.post(PAUSE, json={}, headers=headers)) == (403, "foreign-origin")
    assert problem(client.post("/mcp", json={}, headers=headers)) == (403, "foreign-origin")


def test_a_page_of_this_server_may_ask(client: httpx.Client):
    assert client.get("/runs", headers={"Origin": str(client.base_url).rstrip("/")}).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer wrong-token-of-sixteen",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
    ],
)
def test_a_wrong_token_is_refused_also_for_reading(client: httpx.Client, authorization: str):
    for path in (FEED, "/mcp"):
        answer = client.get(path, headers={"Authorization": authorization})
        assert problem(answer) == (401, "no-token")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_a_change_needs_a_token_and_a_dry_run_as_well(client: httpx.Client):
    for body in ({}, {"apply": True}):
        assert problem(client.post(PAUSE, json=body)) == (401, "no-token")
    assert client.get(FEED).status_code == 200


def test_a_server_that_others_can_reach_answers_nobody_without_a_token(runs: Path):
    Run(runs).firing().end()
    with serving(runs, reading_needs_token=True) as client:
        for path in ("/", "/openapi.json", FEED, f"/runs/{RUN}/stream", "/rules"):
            assert problem(client.get(path)) == (401, "no-token")
            assert client.get(path, headers=with_token()).status_code == 200


def test_a_body_that_is_too_large_is_refused_however_it_comes(client: httpx.Client):
    large = b" " * (MAX_BODY_BYTES + 1)
    headers = {"Content-Type": "application/json", **with_token()}
    for path in (PAUSE, "/mcp"):
        assert problem(client.post(path, content=large, headers=headers)) == (413, "large-body")

    def pieces() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1024 + 1):
            yield b" " * 1024

    assert problem(client.post(PAUSE, content=pieces(), headers=headers)) == (413, "large-body")


def test_a_body_that_does_not_arrive_is_given_up(client: httpx.Client):
    head = f"POST {PAUSE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nAuthorization: Bearer {TOKEN}\r\n\r\n{{"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_a_server_that_is_busy_says_so_and_recovers(runs: Path):
    run = Run(runs).healthy()
    with serving(runs, max_requests=1) as client:
        with client.stream("GET", f"/runs/{RUN}/stream"):
            busy = client.get("/runs")
            assert problem(busy) == (503, "busy")
            assert busy.headers["Retry-After"] == "1"
        until(lambda: client.get("/runs").status_code == 200)
    run.kill()


def test_readers_that_take_nothing_do_not_keep_others_waiting(runs: Path):
    run = Run(runs).firing()
    for _ in range(300):
        run.writer.record(example(Coverage))
    with serving(runs) as client:
        address = (client.base_url.host, client.base_url.port or 80)
        slow = [socket.create_connection(address) for _ in range(20)]
        for connection in slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(f"GET /runs/{RUN}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(0.5)
        assert client.get(FEED).status_code == 200
        for connection in slow:
            connection.close()
    run.kill()


def test_answers_are_data_of_this_moment_and_nobody_elses(client: httpx.Client):
    for path in (FEED, "/nothing", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("box", False)],
)
def test_what_is_loopback(host: str, answer: bool):
    assert is_loopback(host) is answer
