import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import numpy as np
import pytest

from tocsin.trainer.vllm.client import KEEP_ALIVE_S, Refused, VllmClient

IDLE_S = 5.0
"""After which vLLM closes a connection."""


def requests_by_connection(calls: Callable[[VllmClient], Awaitable[None]], *, most: int) -> list[int]:
    """How many requests each connection carried to a server that tears one down at the request after `most`: what a
    server does that closed it just then, after an error or because it was idle."""
    connections: list[int] = []
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(connections)
        connections.append(0)
        serving.append(asyncio.current_task())
        while await reader.readline():
            length = 0
            while header := (await reader.readline()).strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            await reader.readexactly(length)
            if connections[number] == most:
                break
            body = b'{"is_paused": false}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            connections[number] += 1
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = VllmClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=10.0)
        await calls(client)
        await client.close()
        server.close()
        await asyncio.gather(*(task for task in serving if task))

    asyncio.run(run())
    return connections


def test_a_call_that_steers_a_server_has_a_connection_of_its_own():
    async def calls(client: VllmClient) -> None:
        assert not await client.is_paused()
        await client.pause(clear_cache=True)
        assert not await client.is_paused()

    assert requests_by_connection(calls, most=1) == [1, 1, 1]


def test_requests_for_tokens_share_connections_and_use_none_that_the_server_is_about_to_close():
    async def ask(client: VllmClient) -> None:
        with pytest.raises(Refused, match="must state log-probs"):
            await client.prompt_logprobs(np.array([1, 2]))

    async def calls(client: VllmClient) -> None:
        await ask(client)
        await ask(client)
        await asyncio.sleep(KEEP_ALIVE_S + 0.2)
        await ask(client)

    assert requests_by_connection(calls, most=2) == [2, 1], "a busy connection is kept, an idle one is not"
    assert KEEP_ALIVE_S < IDLE_S / 2, "the two clocks need not agree"
