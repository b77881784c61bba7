"""Records of a run as the auto-tuner's policy sees them, written by hand."""

from typing import Any

from tocsin.diagnostics.autotune import Autotune, Now
from tocsin.diagnostics.modes import NAMES
from tocsin.schemas.actions import Action, ActionRecord, Patch, Verify
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.diagnosis import At, Diagnostic, Evidence

TS = "2026-01-31T12:00:00.000Z"
ALLOW = {"POL014": ["learning_rate"], "POL003": ["clip_high", "learning_rate"], "OFF016": ["max_staleness"]}
KNOBS: dict[str, Any] = {"learning_rate": 1e-3, "clip_high": 0.2, "max_staleness": 1}


def patch(path: str, expect: float, to: float | None) -> Patch:
    return Patch(path=path, expect=expect, to=to, min=0, max=10, effective="next_step")


def action(verb: str, *patches: Patch, **fields: Any) -> Action:
    usual = {
        "title": verb,
        "applicability": "review",
        "risk": "low",
        "verify": Verify(metric="step_completed.update_ratio", operator="<", threshold=1.0, within=20, unit="steps"),
        "cooldown_steps": 20,
    }
    return Action.model_validate({"id": verb, **usual, **fields, "patches": list(patches)})


LOWER = action("lower-learning-rate", patch("learning_rate", 1e-3, 5e-4), preferred=True)


def finding(code: str = "POL014", *actions: Action, started: int = 40, **fields: Any) -> Diagnostic:
    """An open finding; its actions get ids that belong to it."""
    id = f"{NAMES[code]}/learner#1"
    at = At(step=started, policy_version=started, ts=TS)
    evidence = Evidence(metric="m", observed=1.0, operator=">", threshold=0.5, window=1, window_unit="steps", n=1)
    usual = {
        "event_seq": 1,
        "code": code,
        "name": NAMES[code],
        "kind": "fault",
        "id": id,
        "fingerprint": "0",
        "episode": 1,
        "state": "firing",
        "reason": "fired",
        "severity": "warning",
        "summary": "something holds",
        "labels": {},
        "config_generation": 0,
        "started": at,
        "last": at,
        "count": 1,
        "evidence": [evidence],
        "causes": [],
        "help": f"tocsin explain {code}",
        "actions": [item.model_copy(update={"id": f"{id}/{item.id}"}) for item in actions or (LOWER,)],
    }
    return Diagnostic.model_validate({**usual, **fields})


def record(state: str, step: int, *, code: str = "POL014", **fields: Any) -> ActionRecord:
    """A step in the life of the action that lowers the rate, asked for by the auto-tuner."""
    id = f"{NAMES[code]}/learner#1"
    usual = {
        "event_seq": 1,
        "ts": TS,
        "step": step,
        "config_generation": 0,
        "action_id": f"{id}/lower-learning-rate",
        "diagnostic_id": id,
        "state": state,
        "actor": "autotune",
        "path": "learning_rate",
        "before": 1e-3,
        "after": 5e-4,
        "request_id": "0123456789abcdef",
    }
    return ActionRecord.model_validate({**usual, **fields})


def now(step: int = 50, *, knobs: dict[str, Any] | None = None, **fields: Any) -> Now:
    return Now(step=step, knobs={**KNOBS, **(knobs or {})}, **fields)


def policy(*records: Any, mode: str = "on", **settings: Any) -> Autotune:
    """A policy that has seen these records."""
    made = Autotune(AutotuneConfig.model_validate({"mode": mode, "allow": ALLOW, **settings}))
    for item in records:
        made.observe(item)
    return made


def short(decisions: Any) -> list[tuple[str, str]]:
    """Kind, and the value that is asked for or the reason."""
    return [(d.kind, str(d.patches[0].to) if d.patches else d.reason) for d in decisions]
