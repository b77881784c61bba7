"""The MCP door: the operations as few tools with short answers, and the open findings and the feed as resources.

Tools that change a run are there only when the server is given `changes`, and do a dry run unless told `apply`.
"""

import inspect
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from tocsin.diagnostics.render import clean
from tocsin.diagnostics.runs import BadManifest, RunNotFound
from tocsin.diagnostics.serve import operations, texts
from tocsin.diagnostics.serve.changes import ASKS, Ask, change
from tocsin.diagnostics.serve.operations import OpenRun, Runs
from tocsin.diagnostics.serve.problems import ODD_FILES
from tocsin.diagnostics.serve.routes import MAX_WINDOW
from tocsin.diagnostics.serve.texts import Told
from tocsin.diagnostics.serve.waiting import CHANGES as AT_THE_DOOR
from tocsin.diagnostics.serve.waiting import LONGEST_WAIT_S, SLOW, Poll, in_thread, next_page, opened, read_page
from tocsin.schemas.base import Model
from tocsin.schemas.config import describe_errors
from tocsin.schemas.control import Verb
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.knobs import KnobValue

INSTRUCTIONS: Final = """\
Tocsin watches language-model training runs. Loop: tocsin_status once, then tocsin_poll with the cursor of its last
answer and wait_s=30. For a finding: tocsin_get (evidence, causes, actions), and tocsin_explain for what its rule means
and when it is wrong. A change (tocsin_act, tocsin_set, tocsin_control; absent on a read-only server) is a dry run
unless apply=true; afterwards poll for its verdict. A writer that is dead or stalled proves nothing: it is not health.
`run` is an id, a unique prefix of one, or `latest`."""

READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)

ActorOf = Callable[[Context], str | None]
"""Whom a call comes from; None for somebody who may not change a run."""

log: Final = logging.getLogger("tocsin.serve")

Record = dict[str, Any]


class StatusShape(Model):
    """A run at a glance."""

    run: str
    verdict: Literal["clear", "open", "cannot_tell"]
    writer: Record
    metrics: Record
    open: list[Record]
    health: str


class PageShape(Model):
    """One poll."""

    records: list[Record]
    next_cursor: str
    has_more: bool
    reset: bool
    active: Record
    writer: Record


class FindingShape(Model):
    """One finding."""

    id: str
    diagnostic: Record | None = None
    history: list[Record]


class ChangeShape(Model):
    """What a change did, or would do."""

    state: str
    applied: bool
    reason: str
    effects: list[str]


RunName = Annotated[str, Field(description="Run id, prefix, or latest")]
ApplyFlag = Annotated[bool, Field(description="Do it; otherwise a dry run")]
Key = Annotated[str | None, Field(description="Makes a repetition harmless")]
Note = Annotated[str, Field(description="Why, one line")]
Values = dict[str, KnobValue]
Plain = Literal["pause", "resume", "checkpoint", "stop", "silence"]

Tool = Callable[..., Awaitable[CallToolResult]]


class ReadingTools:
    """The tools that change nothing. A docstring is what a model reads."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    async def status(self, run: RunName = "latest") -> Annotated[CallToolResult, StatusShape]:
        """Is the run alive, what is open, newest metrics, rules evaluated."""
        return told(texts.tell_status(await in_thread(operations.status, await self.opened(run), limiter=SLOW)))

    async def poll(
        self,
        *,
        run: RunName = "latest",
        cursor: Annotated[str | None, Field(description="Of the last poll; none: what is open, the tail")] = None,
        wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S, description="Wait for news")] = 0.0,
        min_severity: Severity | None = None,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> Annotated[CallToolResult, PageShape]:
        """New findings, actions and verdicts after a cursor, oldest first; nothing is missed."""
        poll = Poll(cursor=cursor, limit=limit, min_severity=min_severity)
        return told(texts.tell_page(await next_page(await self.opened(run), poll, wait_s)))

    async def get(
        self, id: Annotated[str, Field(description="Finding, action, or rule code")], run: RunName = "latest"
    ) -> Annotated[CallToolResult, FindingShape]:
        """One finding: evidence, ranked causes with checks, actions with bounds, history."""
        return told(texts.tell_finding(await in_thread(operations.finding, await self.opened(run), id)))

    async def explain(
        self,
        code: Annotated[str, Field(description="Rule code or name")],
        full: Annotated[bool, Field(description="Also detection, thresholds, sources")] = False,
    ) -> CallToolResult:
        """What a rule means, when it is wrong, what to do."""
        return told(texts.tell_rule(code, full=full))

    async def snapshot(
        self,
        around: Annotated[int, Field(ge=0, description="Optimizer step")],
        run: RunName = "latest",
        window: Annotated[int, Field(ge=0, le=MAX_WINDOW, description="Steps on each side")] = 1,
        contains: Annotated[str, Field(description="Part of the metric names wanted")] = "",
    ) -> CallToolResult:
        """Every metric around a step."""
        read = partial(operations.snapshot, window=window, contains=contains)
        return told(texts.tell_snapshot(await in_thread(read, await self.opened(run), around, limiter=SLOW)))

    async def knobs(self, run: RunName = "latest") -> CallToolResult:
        """What can be changed while the run goes on: values and bounds."""
        return told(texts.tell_knobs(await in_thread(operations.knobs, await self.opened(run), limiter=SLOW)))

    async def opened(self, run: str) -> OpenRun:
        """The run called `run`. Raises `RunNotFound`."""
        return await opened(self.runs, run)


class ChangingTools:
    """The tools that ask at the control door of a run."""

    def __init__(self, runs: Runs, actor_of: ActorOf) -> None:
        self.runs = runs
        self.actor_of = actor_of

    async def act(  # noqa: PLR0913 one parameter per argument is how the SDK declares them
        self,
        *,
        action_id: Annotated[str, Field(description="As tocsin_get shows it")],
        ctx: Context,
        run: RunName = "latest",
        apply: ApplyFlag = False,
        values: Annotated[Values | None, Field(description="Values that a placeholder leaves open")] = None,
        idempotency_key: Key = None,
        note: Note = "",
    ) -> Annotated[CallToolResult, ChangeShape]:
        """Apply an action of an open finding. The run judges it later: poll for the verdict."""
        asked = {"action_id": action_id, "values": values or {}, "idempotency_key": idempotency_key, "note": note}
        return await self._change("act", run, {**asked, "apply": apply}, ctx)

    async def set(  # noqa: PLR0913
        self,
        *,
        values: Annotated[Values, Field(description="New value by knob, all or none")],
        ctx: Context,
        run: RunName = "latest",
        apply: ApplyFlag = False,
        expect: Annotated[Values | None, Field(description="Refuse unless these are in force")] = None,
        idempotency_key: Key = None,
        note: Note = "",
    ) -> Annotated[CallToolResult, ChangeShape]:
        """Change knobs at the next step barrier, within the bounds that tocsin_knobs shows."""
        asked = {"values": values, "expect": expect or {}, "idempotency_key": idempotency_key, "note": note}
        return await self._change("set", run, {**asked, "apply": apply}, ctx)

    async def control(  # noqa: PLR0913
        self,
        *,
        verb: Plain,
        ctx: Context,
        run: RunName = "latest",
        apply: ApplyFlag = False,
        code: Annotated[str | None, Field(description="Rule to silence")] = None,
        steps: Annotated[int | None, Field(ge=0, description="Silence for how long; 0 ends it")] = None,
        note: Note = "",
    ) -> Annotated[CallToolResult, ChangeShape]:
        """Pause, resume, checkpoint or stop (with a checkpoint) the run; or silence a rule's records."""
        own = {"code": code, "steps": steps} if verb == "silence" else {}
        return await self._change(verb, run, {**own, "note": note, "apply": apply}, ctx)

    async def _change(self, verb: Verb, run: str, asked: Record, ctx: Context) -> CallToolResult:
        actor = self.actor_of(ctx)
        if actor is None:
            raise ValueError("a change needs a token, a dry run as well; send `Authorization: Bearer TOKEN`")
        given = {name: part for name, part in asked.items() if part is not None}
        try:
            ask: Ask = ASKS[verb][0].model_validate(given)
        except ValidationError as error:
            raise ValueError(describe_errors(error.errors(), source="arguments")) from None
        asked_of = await opened(self.runs, run)
        return told(texts.tell_change(await in_thread(change, asked_of, verb, ask, actor, limiter=AT_THE_DOOR)))


def told(answer: Told) -> CallToolResult:
    """`answer` for a client."""
    text, data = answer
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data)


def failing_in_words(tool: Tool) -> Tool:
    """`tool`, whose errors become one line that a model can act on. A bug is logged, and nothing of it is sent."""

    @wraps(tool)
    async def call(*arguments: Any, **named: Any) -> CallToolResult:
        try:
            return await tool(*arguments, **named)
        except (ValidationError, BadManifest):
            reason = ODD_FILES
        except OSError as error:
            reason = f"the files of the run cannot be read: {error.strerror or type(error).__name__}"
        except ValueError as error:
            reason = str(error)
        except Exception:  # the boundary to clients: a bug is for the log, not for a model
            log.exception("a bug in %s", tool.__name__)
            reason = "this is a bug; the log of the server has more"
        return CallToolResult(content=[TextContent(type="text", text=clean(" ".join(reason.split())))], is_error=True)

    return call


def create_server(runs: Runs, actor_of: ActorOf | None = None) -> MCPServer:
    """The server; read-only without `actor_of`."""
    server = MCPServer(
        "tocsin", title="Tocsin", version=version("tocsin"), instructions=INSTRUCTIONS, log_level="ERROR"
    )
    reading = ReadingTools(runs)
    for tool in (reading.status, reading.poll, reading.get, reading.explain, reading.snapshot, reading.knobs):
        _add(server, tool, READS)
    if actor_of is not None:
        changing = ChangingTools(runs, actor_of)
        for change_tool in (changing.act, changing.set, changing.control):
            _add(server, change_tool, CHANGES)
    _add_resources(server, reading)
    return server


def _add(server: MCPServer, tool: Tool, annotations: ToolAnnotations) -> None:
    name = f"tocsin_{tool.__name__}"
    server.add_tool(failing_in_words(tool), name, description=inspect.getdoc(tool), annotations=annotations)


def _add_resources(server: MCPServer, reading: ReadingTools) -> None:
    """Level and edge view of a run, and the list of runs. A client that caches them polls all the same."""

    @server.resource("tocsin://runs", title="Runs", mime_type="application/json")
    async def runs() -> str:
        """The newest runs, each with its writer and what is open."""
        found = await in_thread(operations.run_lines, reading.runs, 20)
        return str(found.model_dump_json(exclude_none=True))

    @server.resource("tocsin://runs/{run}/active", title="What is open", mime_type="application/json")
    async def active(run: str) -> str:
        """Open findings, what to answer first first, with writer and metrics."""

        async def read() -> Told:
            return texts.tell_status(await in_thread(operations.status, await reading.opened(run), limiter=SLOW))

        return await _resource(read)

    @server.resource("tocsin://runs/{run}/feed", title="Feed", mime_type="application/json")
    async def feed(run: str) -> str:
        """What is open and the newest records, with the cursor from which tocsin_poll goes on."""

        async def read() -> Told:
            return texts.tell_page(await read_page(await reading.opened(run), Poll()))

        return await _resource(read)


async def _resource(read: Callable[[], Awaitable[Told]]) -> str:
    try:
        _, data = await read()
    except RunNotFound as error:
        raise ResourceNotFoundError(clean(str(error))) from None
    except (ValidationError, BadManifest):
        raise ResourceError(ODD_FILES) from None
    except (ValueError, OSError) as error:
        raise ResourceError(clean(str(error))) from None
    return json.dumps(data, allow_nan=False)
