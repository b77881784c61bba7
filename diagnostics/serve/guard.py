"""What every HTTP request must pass before anything looks at it: Host, Origin, token, size and speed of the body.

A browser sends requests to this machine for any page that it shows. The check of Host keeps out a page whose name was
made to point here (DNS rebinding), the check of Origin one that is open about where it comes from.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.diagnostics.serve.problems import Problem
from tocsin.diagnostics.serve.tokens import Tokens, bearer

MAX_BODY_BYTES: Final = 2**16
BODY_S: Final = 10.0
"""A body that needs longer to arrive is given up."""
MAX_REQUESTS: Final = 512
"""Requests that are served at one time, waiting polls and streams included."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer: it is data, it is of this moment, and it is nobody else's."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Who may ask."""

    tokens: Tokens
    hosts: Collection[str] = LOOPBACK
    """Names that this server answers to, without port, in lower case."""
    reading_needs_token: bool = False
    """For a server that others than this machine can reach."""
    max_requests: int = MAX_REQUESTS
    body_s: float = BODY_S


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass
class Guard:
    """ASGI application around another one. Puts the actor of a token into `scope["state"]["actor"]`."""

    app: ASGIApp
    admission: Admission
    _num_requests: int = field(default=0, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there is nothing here"})
        else:
            await self._request(scope, receive, _with_headers(send))

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._num_requests >= self.admission.max_requests:
            problem = Problem(
                "busy", f"{self._num_requests} requests are being served; ask again", {"Retry-After": "1"}
            )
            await problem.response()(scope, receive, send)
            return
        self._num_requests += 1
        try:
            headers = Headers(scope=scope)
            _check_host(headers, self.admission.hosts)
            actor = self._actor(headers)
            body = await self._body(headers, receive)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        else:
            scope["state"] = {**scope.get("state", {}), "actor": actor}
            await self.app(scope, _replay(body, receive), send)
        finally:
            self._num_requests -= 1

    def _actor(self, headers: Headers) -> str | None:
        given = headers.getlist("authorization")
        actor = self.admission.tokens.actor(bearer(given[0])) if len(given) == 1 else None
        if actor is None and (given or self.admission.reading_needs_token):
            what = "the token is wrong" if given else "this server answers nobody without a token"
            raise no_token(what)
        return actor

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None when there is none."""
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return None
        too_large = Problem("large-body", f"a body must have at most {MAX_BODY_BYTES} bytes")
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            raise too_large
        body = bytearray()
        with anyio.move_on_after(self.admission.body_s) as patience:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return bytes(body)  # the client went away, as whoever asks for more will hear
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
        assert patience.cancelled_caught
        raise Problem("slow-body", f"a body must arrive within {self.admission.body_s:g} s", {"Connection": "close"})


def no_token(what: str) -> Problem:
    """The answer to somebody who must show a token."""
    return Problem("no-token", f"{what}; send `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})


def _check_host(headers: Headers, hosts: Collection[str]) -> None:
    given = headers.getlist("host")
    name = _host_name(given[0]) if len(given) == 1 else None
    if name is None or name not in hosts:
        raise Problem(
            "foreign-host",
            f"`Host` must be one of {', '.join(sorted(hosts))}, got `{(given or ['none'])[0][:60]}`; "
            "tocsin serve --allow-host adds a name",
        )
    for origin in headers.getlist("origin"):
        if origin.lower() not in (f"http://{given[0].lower()}", f"https://{given[0].lower()}"):
            raise Problem("foreign-origin", f"`Origin` must be this server, got `{origin[:60]}`")


def _host_name(host: str) -> str | None:
    """`localhost` for `LocalHost:7878`, `::1` for `[::1]:7878`."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 raises for a port that is none
    except ValueError:
        return None
    is_plain = parts.netloc == host and parts.username is None and not parts.path
    return parts.hostname if is_plain else None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, text in HEADERS.items():
                headers.setdefault(name, text)
        await send(message)

    return sending


def _replay(body: bytes | None, receive: Receive) -> Receive:
    """`receive` that begins with a body which was read already."""
    waiting = [] if body is None else [body]

    async def receiving() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receiving
