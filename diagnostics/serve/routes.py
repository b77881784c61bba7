"""The table of what can be asked over HTTP. `app` serves it and `openapi` describes it, so that they cannot differ."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tocsin.diagnostics.serve import operations
from tocsin.diagnostics.serve.changes import ASKS, Ask, Change, change
from tocsin.diagnostics.serve.operations import OpenRun, Runs
from tocsin.diagnostics.serve.waiting import CHANGES, LONGEST_WAIT_S, SLOW, Poll, in_thread, next_page, opened
from tocsin.schemas.base import Model
from tocsin.schemas.control import Verb
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.feed import Page

MAX_WINDOW: Final = 50
"""Steps on each side in a snapshot that is sent."""

Cursor = Annotated[str, Field(json_schema_extra={"pattern": r"^[0-9a-f]{12}\.[0-9]{1,18}$"})]
"""The reader checks it, and says what is wrong with it."""


class NoQuery(Model):
    """Nothing."""


class RunsQuery(Model):
    """Which runs."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """Most runs of the answer."""


class StreamQuery(Model):
    """What to read on from."""

    cursor: Cursor | None = None
    """`next_cursor` of an earlier page. Without: what is open, and the tail."""
    min_severity: Severity | None = None
    """Leave out diagnostics that are milder, and every other record."""


class FeedQuery(StreamQuery):
    """One poll."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most records of the page."""
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0.0
    """Wait this long for a page that says something new."""


class GetQuery(Model):
    """Which record."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    """Id of a diagnostic or of an action; or a rule, for its newest finding."""


class SnapshotQuery(Model):
    """Which part of the recording."""

    around: Annotated[int, Field(ge=0, le=10**12)]
    """Optimizer step in the middle."""
    window: Annotated[int, Field(ge=0, le=MAX_WINDOW)] = 2
    """Steps on each side."""
    contains: Annotated[str, Field(max_length=60)] = ""
    """Leave only metrics whose name, event type included, contains this."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, checked."""

    runs: Runs
    path: dict[str, str]
    query: Any
    """Instance of the route's `query`."""
    body: Any
    """Instance of the route's `body`; None for a route without."""
    actor: str | None
    """Whom the token of the request stands for."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One address."""

    name: str
    path: str
    summary: str
    query: type[Model] = NoQuery
    body: type[Ask] | None = None
    answer: type[Model]
    problems: tuple[str, ...]
    """Kinds of problems beside those of every address."""
    ask: Callable[[Asked], Awaitable[Model]]
    is_stream: bool = False


async def named(asked: Asked) -> OpenRun:
    """The run that the address names. Raises `RunNotFound`."""
    return await opened(asked.runs, asked.path["run"])


async def _runs(asked: Asked) -> Model:
    answer: Model = await in_thread(operations.run_lines, asked.runs, asked.query.limit)
    return answer


async def _status(asked: Asked) -> Model:
    answer: Model = await in_thread(operations.status, await named(asked), limiter=SLOW)
    return answer


async def _feed(asked: Asked) -> Model:
    query = asked.query
    poll = Poll(cursor=query.cursor, limit=query.limit, min_severity=query.min_severity)
    return await next_page(await named(asked), poll, query.wait_s)


async def _get(asked: Asked) -> Model:
    answer: Model = await in_thread(operations.finding, await named(asked), asked.query.id)
    return answer


async def _snapshot(asked: Asked) -> Model:
    query = asked.query
    read = partial(operations.snapshot, window=query.window, contains=query.contains)
    answer: Model = await in_thread(read, await named(asked), query.around, limiter=SLOW)
    return answer


async def _knobs(asked: Asked) -> Model:
    answer: Model = await in_thread(operations.knobs, await named(asked), limiter=SLOW)
    return answer


async def _rules(asked: Asked) -> Model:
    return operations.rules()


async def _rule(asked: Asked) -> Model:
    return operations.rule(asked.path["code"])


def _changing(verb: Verb) -> Callable[[Asked], Awaitable[Model]]:
    async def ask(asked: Asked) -> Model:
        run = await named(asked)
        answer: Model = await in_thread(change, run, verb, asked.body, asked.actor, limiter=CHANGES)
        return answer

    return ask


async def _never(asked: Asked) -> Model:
    raise AssertionError("a stream is answered by `stream`")


OF_A_RUN: Final = ("unknown-run", "no-feed", "unreadable")

READING: Final = (
    Question(
        name="list_runs",
        path="/runs",
        summary="The newest runs, each with its writer and what is open.",
        query=RunsQuery,
        answer=operations.RunList,
        problems=("unreadable",),
        ask=_runs,
    ),
    Question(
        name="status",
        path="/runs/{run}/status",
        summary="A run at a glance: writer, newest metrics, what is open, which rules are evaluated.",
        answer=operations.RunStatus,
        problems=OF_A_RUN,
        ask=_status,
    ),
    Question(
        name="feed",
        path="/runs/{run}/feed",
        summary="One page of diagnostics, actions and coverage, oldest first. Pass its next_cursor with the next poll.",
        query=FeedQuery,
        answer=Page,
        problems=OF_A_RUN,
        ask=_feed,
    ),
    Question(
        name="stream",
        path="/runs/{run}/stream",
        summary="The feed as server-sent events. Goes on after Last-Event-ID, ends when the run is over.",
        query=StreamQuery,
        answer=Page,
        problems=OF_A_RUN,
        ask=_never,
        is_stream=True,
    ),
    Question(
        name="get",
        path="/runs/{run}/get",
        summary="One finding in full: evidence, ranked causes, actions, history.",
        query=GetQuery,
        answer=operations.Finding,
        problems=(*OF_A_RUN, "unknown-id"),
        ask=_get,
    ),
    Question(
        name="snapshot",
        path="/runs/{run}/snapshot",
        summary="Every number of every event around a step. Columns over groups are reduced to min, mean and max.",
        query=SnapshotQuery,
        answer=operations.Snapshot,
        problems=(*OF_A_RUN, "unknown-step"),
        ask=_snapshot,
    ),
    Question(
        name="knobs",
        path="/runs/{run}/knobs",
        summary="What can be changed, with the values in force and how far one change may go.",
        answer=operations.KnobStates,
        problems=OF_A_RUN,
        ask=_knobs,
    ),
    Question(
        name="list_rules",
        path="/rules",
        summary="Every failure mode that has a code.",
        answer=operations.Rules,
        problems=(),
        ask=_rules,
    ),
    Question(
        name="explain",
        path="/rules/{code}",
        summary="What a rule means, its known false alarms, what to do, sources; or why a mode has no rule.",
        answer=operations.Rule,
        problems=("unknown-rule",),
        ask=_rule,
    ),
)

SUMMARIES: Final[dict[Verb, str]] = {
    "act": "Apply an action that an open diagnostic proposes.",
    "set": "Change knobs at the next step barrier.",
    "silence": "Hold back the records of one rule for some steps.",
    "pause": "Stand still from the next step barrier on.",
    "resume": "Go on after a pause.",
    "checkpoint": "Write a checkpoint at the next step barrier.",
    "stop": "Write a checkpoint and end the run.",
}

CHANGING: Final = tuple(
    Question(
        name=verb,
        path=f"/runs/{{run}}/{verb}",
        summary=f"{SUMMARIES[verb]} A dry run unless `apply` is true; needs a token.",
        body=body,
        answer=Change,
        problems=(*OF_A_RUN, "refused", "run-over", "unanswered"),
        ask=_changing(verb),
    )
    for verb, (body, _) in ASKS.items()
)

QUESTIONS: Final = (*READING, *CHANGING)

EVERYWHERE: Final = ("bad-query", "foreign-origin", "foreign-host", "busy", "internal")
WITH_BODY: Final = ("bad-body", "bad-request", "no-token", "slow-body", "large-body", "wrong-media")

Method = Literal["get", "post"]


def method(question: Question) -> Method:
    """How the question is asked."""
    return "get" if question.body is None else "post"
