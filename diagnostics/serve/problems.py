"""Every way in which a question over HTTP can fail, as one document: RFC 9457, `application/problem+json`."""

import logging
from typing import Final

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.control import NobodyReads
from tocsin.diagnostics.reader import BadCursor, NotAFeed, UnknownId
from tocsin.diagnostics.render import clean
from tocsin.diagnostics.runs import BadManifest, RunNotFound
from tocsin.diagnostics.serve.changes import Unanswered
from tocsin.diagnostics.serve.operations import UnknownRule
from tocsin.diagnostics.snapshot import NoSuchStep
from tocsin.schemas.base import Model

MEDIA_TYPE: Final = "application/problem+json"
MAX_DETAIL: Final = 600
ODD_FILES: Final = "the files of the run hold what no release of Tocsin wrote; nothing of it is quoted"

log: Final = logging.getLogger("tocsin.serve")


class ProblemDocument(Model):
    """Why a question has no answer."""

    type: str
    """`urn:tocsin:problem:<kind>`, the same for every occurrence: what a program branches on."""
    title: str
    """The kind in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What is wrong this time, on one line."""


KINDS: Final[dict[str, tuple[int, str]]] = {
    "bad-query": (400, "The query of the address is not what this question takes"),
    "bad-cursor": (400, "The cursor is none that a page returned"),
    "bad-body": (400, "The body is not JSON"),
    "bad-request": (422, "The body is not what this question takes"),
    "no-token": (401, "A token is needed, or the one that came is wrong"),
    "foreign-origin": (403, "The page that asks is not from this server"),
    "unknown-address": (404, "There is nothing at this address"),
    "unknown-run": (404, "There is no such run"),
    "unknown-id": (404, "The run has no such record"),
    "unknown-rule": (404, "There is no such failure mode"),
    "unknown-step": (404, "The run recorded nothing around this step"),
    "no-feed": (404, "The run has no feed that can be read"),
    "wrong-method": (405, "This address takes another method"),
    "slow-body": (408, "The body did not arrive in time"),
    "refused": (409, "The run would not do this, or did not"),
    "run-over": (409, "Nobody would read the request"),
    "large-body": (413, "The body is too large"),
    "wrong-media": (415, "The body must be JSON"),
    "foreign-host": (421, "The request is for another host"),
    "internal": (500, "The server failed"),
    "busy": (503, "The server has as many requests as it can serve"),
    "unreadable": (503, "The files of the run cannot be read now"),
    "unanswered": (504, "The run did not answer in time"),
}
"""Status and title by kind."""

ERRORS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (RunNotFound, "unknown-run"),
    (UnknownId, "unknown-id"),
    (UnknownRule, "unknown-rule"),
    (NoSuchStep, "unknown-step"),
    (BadCursor, "bad-cursor"),
    (NotAFeed, "no-feed"),
    (NobodyReads, "run-over"),
    (Refused, "refused"),
    (Unanswered, "unanswered"),
    (ValueError, "bad-request"),
)
"""What the operations raise, the first that fits."""


class Problem(Exception):
    """A question that is answered with a `ProblemDocument`."""

    def __init__(self, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.headers = headers or {}

    @property
    def status(self) -> int:
        """The HTTP status."""
        return KINDS[self.kind][0]

    def response(self) -> Response:
        """The answer to send."""
        status, title = KINDS[self.kind]
        detail = clean(" ".join(str(self).split()))[:MAX_DETAIL]
        document = ProblemDocument(type=f"urn:tocsin:problem:{self.kind}", title=title, status=status, detail=detail)
        return Response(
            document.model_dump_json(ensure_ascii=True), status, headers=self.headers, media_type=MEDIA_TYPE
        )


def problem_of(error: Exception) -> Problem:
    """What to answer for an error of an operation. A bug is logged, and nothing of it is sent."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, OSError):
        return Problem("unreadable", error.strerror or type(error).__name__)
    if isinstance(error, BadManifest | ValidationError):
        return Problem("unreadable", ODD_FILES)
    for kind_of_error, kind in ERRORS:
        if isinstance(error, kind_of_error):
            return Problem(kind, str(error))
    log.error("a bug in the server", exc_info=error)
    return Problem("internal", "this is a bug; the log of the server has more")


async def answer_error(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    if isinstance(error, HTTPException):
        kind = {404: "unknown-address", 405: "wrong-method"}.get(error.status_code, "internal")
        detail = {
            "unknown-address": f"nothing is at {request.url.path[:120]}; /openapi.json lists what can be asked",
            "wrong-method": f"{request.method} must be {(error.headers or {}).get('allow', 'another method')}",
        }.get(kind, error.detail)
        return Problem(kind, detail, dict(error.headers or {})).response()
    return problem_of(error).response()
