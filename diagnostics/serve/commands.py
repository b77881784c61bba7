"""`tocsin serve` and `tocsin mcp`."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings

from tocsin.diagnostics.actors import check_actor
from tocsin.diagnostics.options import RUNS, RunsDir
from tocsin.diagnostics.output import note
from tocsin.diagnostics.runs import list_runs
from tocsin.diagnostics.serve.app import MCP_PATH, create_app
from tocsin.diagnostics.serve.guard import LOOPBACK, MAX_BODY_BYTES, Admission, Guard, is_loopback
from tocsin.diagnostics.serve.operations import Runs
from tocsin.diagnostics.serve.tokens import VARIABLE, Tokens, new_token, parse_tokens, read_tokens
from tocsin.diagnostics.serve.tools import create_server

PORT = 7878
GOODBYE_S = 3
"""How long requests that are under way may go on after Ctrl-C."""


def serve(
    runs_dir: Annotated[Path, typer.Argument(metavar="[RUNS_DIR]", help="Folder that holds the runs.")] = RUNS,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 for any free port.")] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Who may change runs: lines of `agent:NAME: TOKEN`; mode 600.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Further name that clients reach this by; repeatable."),
    ] = None,
) -> None:
    """Serve all runs of a folder over HTTP, and MCP at /mcp, until Ctrl-C.

    Reading needs no token on this machine; every change needs one, and the change is made in the name of its actor.
    Without --token-file the lines come from the variable TOCSIN_TOKENS; without that a token is made and printed, new
    at each start. An address that other machines can reach needs tokens of yours, for reading as well.

    \b
    Example:
      tocsin serve runs
      curl 'http://127.0.0.1:7878/runs/latest/status'
    """
    reachable = not is_loopback(host)
    tokens = _tokens(token_file)
    if tokens is None and reachable:
        raise ValueError(f"--host {host} can be reached by others, so it needs --token-file or {VARIABLE}")
    if tokens is None:
        tokens, actor, token = new_token()
        note(f"tocsin: to change a run as {actor}, send this header (new at each start; --token-file keeps one):")
        note(f"  Authorization: Bearer {token}")
    hosts = {*LOOPBACK, host.lower(), *(name.lower() for name in allow_host or [])}
    admission = Admission(tokens=tokens, hosts=hosts, reading_needs_token=reachable)
    with _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        runs = len(list_runs(runs_dir))
        note(f"tocsin: serving {runs} run{'' if runs == 1 else 's'} of {runs_dir} at {url} (MCP at {url}{MCP_PATH})")
        config = uvicorn.Config(
            door(Runs(runs_dir), admission),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])


def door(runs: Runs, admission: Admission) -> Guard:
    """The application of `tocsin serve`: HTTP and MCP."""
    server = create_server(runs, _actor_of_token)
    # Without sessions nothing piles up for clients that never say goodbye. Host and Origin are the guard's.
    server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @contextlib.asynccontextmanager
    async def living() -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    return create_app(runs, admission, StreamableHTTPASGIApp(server.session_manager), living)


def _actor_of_token(ctx: Context) -> str | None:
    request = ctx.request_context.request
    actor: str | None = None if request is None else request.scope.get("state", {}).get("actor")
    return actor


def _tokens(token_file: Path | None) -> Tokens | None:
    if token_file is not None:
        return read_tokens(token_file)
    lines = os.environ.get(VARIABLE)
    return None if lines is None else parse_tokens(lines, VARIABLE)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `ValueError` when the address is taken or none of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ValueError(f"cannot listen at {host} port {port}: {error.strerror or error}; try --port 0") from None


def mcp(
    *,
    runs_dir: RunsDir = RUNS,
    allow_changes: Annotated[bool, typer.Option("--allow-changes", help="Offer the tools that change a run.")] = False,
    actor: Annotated[
        str, typer.Option("--as", metavar="WHO", help="Who asks for changes: agent:NAME or person:NAME.")
    ] = "agent:mcp",
) -> None:
    """Speak MCP on standard input and output: what an agent starts to watch runs.

    Read-only unless --allow-changes; even then a change is a dry run unless the call says apply.

    \b
    Example:
      tocsin mcp --runs-dir runs --allow-changes --as agent:nightwatch
    """
    asker = check_actor(actor, "--as")
    create_server(Runs(runs_dir), (lambda _: asker) if allow_changes else None).run("stdio")
