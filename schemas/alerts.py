"""`[[alerts]]` of the configuration: who is told of warnings; and `Alert`, what a webhook is sent."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from tocsin.schemas.base import SCHEMA_VERSION, Count, Model, PositiveSeconds, Timestamp
from tocsin.schemas.diagnosis import Severity

AlertKind = Literal["webhook", "slack", "alertmanager"]


class AlertConfig(Model):
    """`[[alerts]]`: one receiver of warnings."""

    # Somebody may have put a secret where it does not belong.
    model_config = ConfigDict(hide_input_in_errors=True)

    kind: AlertKind
    """`webhook`: a POST of JSON, see `schemas/json/alert.schema.json`, when a finding fires, escalates, resolves or
    outlives its run. `slack`: the same as a line of text, for Slack and what takes its messages. `alertmanager`:
    Prometheus Alertmanager, API v2."""
    url: str | None = None
    """Address without secrets in it. For `alertmanager` the root, for instance `http://127.0.0.1:9093`."""
    url_env: str | None = None
    """Environment variable that holds the address, where the address itself is a secret, as Slack's are."""
    headers: dict[str, str] = {}
    """Header to the environment variable that holds its value, for instance `Authorization = "ALERT_TOKEN"`."""
    min_severity: Severity = "warning"
    """Milder findings are left out."""
    timeout_s: PositiveSeconds = 10.0
    """For one attempt."""
    retry_budget_s: Annotated[FiniteFloat, Field(ge=0)] = 300.0
    """`webhook`, `slack`: how long a message is tried again, with growing pauses, after connection errors and answers
    of 429 and 5xx; then it is dropped and counted. `alertmanager` is told the state anew for as long as the run goes
    on."""
    hold_s: PositiveSeconds = 3600.0
    """`alertmanager`: how long what fires goes on firing there when the run no longer speaks: killed, or at its end."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that must be set."""
        return (*([self.url_env] if self.url_env else []), *self.headers.values())

    @model_validator(mode="after")
    def _consistent(self) -> "AlertConfig":
        if (self.url is None) == (self.url_env is None):
            raise ValueError("`alerts` must have either `url` or `url_env`, the variable that holds it")
        if self.kind == "slack" and self.url is not None:
            raise ValueError("`alerts` of kind `slack` must have `url_env`: its address is a secret")
        if self.url is not None:
            problem = address_problem(self.url)
            if problem:
                raise ValueError(f"`alerts.url` {problem}")
        for name in self.secrets:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError("`alerts.url_env` and `alerts.headers` must name environment variables")
        for header in self.headers:
            if not re.fullmatch(r"[A-Za-z0-9-]+", header):
                raise ValueError(f"`alerts.headers` must be names of headers, got `{header}`")
        return self


def address_problem(url: str) -> str:
    """Why `url` is no address to post to, without repeating it; empty when it is one."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        return "must be an address like `http://127.0.0.1:9093`"
    return "must not hold a name or password; use `headers`" if "@" in parts.netloc else ""


class Alert(Model):
    """What a receiver of kind `webhook` gets: one change of one finding. No text of a model or of the data is in it."""

    record: Literal["alert"] = "alert"
    schema_version: str = SCHEMA_VERSION
    status: Literal["firing", "resolved"]
    reason: Literal["fired", "reopened", "unexplained", "escalated", "resolved", "run_ended", "run_failed", "run_dead"]
    """`run_ended`: still open when the run ended, which is no resolution. `run_failed`, `run_dead`: about the run."""
    dedup_key: str
    """The same for every message about one finding of one run, whatever its severity: the diagnostic's fingerprint."""
    run_id: str
    id: str
    """Id of the diagnostic, `zero-std-groups/trainer#2`; `run-failed` or `run-dead` for the run itself."""
    code: str | None = None
    name: str
    severity: Severity
    summary: str
    text: str
    """The same as a line for people."""
    labels: dict[str, str] = {}
    step: Count
    started: Timestamp
    ended: Timestamp | None = None
    action: str | None = None
    """Id of the action to try first: `tocsin act RUN ID`."""
    help: str
    """Command that says more."""
    dropped: Count = 0
    """Messages to this receiver that were lost since the last one that arrived."""
