"""The HTTP door: an ASGI application that serves the table of `routes`, and whatever else is mounted beside it."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from tocsin.diagnostics.serve.changes import Change
from tocsin.diagnostics.serve.guard import Admission, Guard, no_token
from tocsin.diagnostics.serve.openapi import document
from tocsin.diagnostics.serve.operations import Runs
from tocsin.diagnostics.serve.problems import Problem, answer_error
from tocsin.diagnostics.serve.routes import QUESTIONS, Asked, Question, method, named
from tocsin.diagnostics.serve.stream import stream
from tocsin.diagnostics.serve.waiting import Poll
from tocsin.schemas.base import Model
from tocsin.schemas.config import describe_errors

MCP_PATH: Final = "/mcp"

Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[None]]


def create_app(runs: Runs, admission: Admission, mcp: ASGIApp | None = None, lifespan: Lifespan | None = None) -> Guard:
    """The application. `mcp` is served at `/mcp`; `lifespan` is entered while the application runs."""

    @contextlib.asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        async with (lifespan or contextlib.nullcontext)():
            yield

    routes: list[BaseRoute] = [
        Route("/", _index, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        *(Route(q.path, _endpoint(q, runs), methods=[method(q).upper()], name=q.name) for q in QUESTIONS),
    ]
    if mcp is not None:
        routes.append(Route(MCP_PATH, mcp))
    handlers: dict[Any, Any] = {HTTPException: answer_error, Exception: answer_error}
    return Guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=living), admission)


async def _index(request: Request) -> Response:
    """Where a reader finds the rest."""
    links = {"openapi": "/openapi.json", "runs": "/runs", "rules": "/rules", "mcp": MCP_PATH}
    return JSONResponse({"name": "tocsin", "version": version("tocsin"), **links})


async def _openapi(request: Request) -> Response:
    return JSONResponse(document())


def _endpoint(question: Question, runs: Runs) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await _answer(question, runs, request)
        except Exception as error:  # the boundary of the server: every failure becomes one document, a bug a logged one
            return await answer_error(request, error)

    return answer


async def _answer(question: Question, runs: Runs, request: Request) -> Response:
    actor: str | None = request.scope["state"]["actor"]
    if question.body is not None and actor is None:
        raise no_token("a change needs a token, a dry run as well")
    asked = Asked(runs, dict(request.path_params), _query(question, request), await _body(question, request), actor)
    if question.is_stream:
        query = asked.query
        cursor = request.headers.get("last-event-id") or query.cursor
        return await stream(await named(asked), Poll(cursor=cursor, min_severity=query.min_severity))
    found = await question.ask(asked)
    is_under_way = isinstance(found, Change) and found.state == "accepted"
    return as_json(found, 202 if is_under_way else 200)


def as_json(answer: Model, status: int = 200) -> Response:
    """`answer` in ASCII; absent values are left out, as in the files of a run."""
    text = answer.model_dump_json(exclude_none=True, ensure_ascii=True)
    return Response(text, status, media_type="application/json")


def _query(question: Question, request: Request) -> Model:
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Problem("bad-query", f"`{min(repeated)[:60]}` must be given once")
    try:
        return question.query.model_validate(dict(given))
    except ValidationError as error:
        raise Problem("bad-query", describe_errors(error.errors(), source="query")) from None


async def _body(question: Question, request: Request) -> Model | None:
    if question.body is None:
        return None
    text = await request.body() or b"{}"
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem("wrong-media", f"`Content-Type` must be application/json, got `{media[:60]}`")
    try:
        return TypeAdapter(question.body).validate_json(text, strict=True)
    except ValidationError as error:
        is_json = error.errors()[0]["type"] != "json_invalid"
        detail = describe_errors(error.errors(), source="body") if is_json else error.errors()[0]["msg"]
        raise Problem("bad-request" if is_json else "bad-body", detail) from None
