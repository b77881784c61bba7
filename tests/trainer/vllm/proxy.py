"""A proxy in front of a vLLM server that misbehaves on request.

    with proxy(server.url) as between:
        between.misbehave("reset", times=2)
        ...                                    # the next two prompts are cut off, then all is well
        assert between.prompts == 3

Each connection carries one request. Everything runs in a thread of its own.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

Trouble = Literal["reset", "unavailable", "refused", "deaf", "broken-off"]
"""`reset`: the connection is torn down. `unavailable`: 503. `refused`: 400. `deaf`: no answer ever comes.
`broken-off`: the connection is torn down after the head of the answer."""

GENERATE: Final = "/inference/v1/generate"
FOREVER: Final = 1_000_000


@dataclass
class Rule:
    """What goes wrong with prompts."""

    trouble: Trouble
    times: int
    matches: Callable[[list[int]], bool]
    """Of the token ids of a prompt."""


class Proxy:
    """A proxy for one server."""

    def __init__(self, upstream: str) -> None:
        where = urlsplit(upstream)
        assert where.hostname is not None
        assert where.port is not None
        self._upstream = (where.hostname, where.port)
        self._rules: list[Rule] = []
        self.prompts = 0
        """Prompts that arrived, whatever became of them."""
        self.troubles: list[Trouble] = []
        """Everything that went wrong, in order."""
        self.url = ""
        self._connections: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._listening: asyncio.Server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def misbehave(
        self, trouble: Trouble, times: int = FOREVER, matches: Callable[[list[int]], bool] = lambda ids: True
    ) -> None:
        """Have this happen to the next `times` prompts that match."""
        self._rules.append(Rule(trouble, times, matches))

    def behave(self) -> None:
        """Pass everything on."""
        self._rules.clear()

    def vanish(self) -> None:
        """Refuse connections and tear down those that are open, as a server does that is gone."""
        asyncio.run_coroutine_threadsafe(self._vanish(), self._loop).result()

    def close(self) -> None:
        """End the thread."""
        self.vanish()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _vanish(self) -> None:
        self._listening.close()
        for writer in self._connections:
            writer.transport.abort()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            # A client that gives up tears its connection down, and `vanish` ends whatever is under way.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                await self._answer(head, body, writer)
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        trouble = self._trouble(head, body)
        if trouble == "reset":
            writer.transport.abort()
        elif trouble == "unavailable":
            writer.write(_response("503 Service Unavailable"))
            await writer.drain()
        elif trouble == "refused":
            writer.write(_response("400 Bad Request"))
            await writer.drain()
        elif trouble == "deaf":
            await asyncio.Event().wait()
        else:
            await self._pass_on(head, body, writer, is_broken_off=trouble == "broken-off")

    def _trouble(self, head: bytes, body: bytes) -> Trouble | None:
        if GENERATE.encode() not in head.splitlines()[0]:
            return None
        self.prompts += 1
        token_ids = json.loads(body)["token_ids"]
        for rule in self._rules:
            if rule.times > 0 and rule.matches(token_ids):
                rule.times -= 1
                self.troubles.append(rule.trouble)
                return rule.trouble
        return None

    async def _pass_on(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, *, is_broken_off: bool) -> None:
        answers, upstream = await asyncio.open_connection(*self._upstream)
        self._connections.add(upstream)
        try:
            lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
            upstream.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            if is_broken_off:
                writer.write(await answers.readuntil(b"\r\n\r\n"))
                await writer.drain()
                writer.transport.abort()
                return
            while chunk := await answers.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
        finally:
            self._connections.discard(upstream)
            upstream.close()


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy that behaves until it is told otherwise."""
    between = Proxy(upstream)
    try:
        yield between
    finally:
        between.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _response(status: str) -> bytes:
    body = json.dumps({"error": {"message": "the proxy says so"}})
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
