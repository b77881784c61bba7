"""One hand-written example of everything that is written besides events, which `event_examples` has."""

from typing import Final

from tests.schemas.event_examples import CPU, ENVELOPE, EVENT_EXAMPLES, GROUPS, TS
from tocsin.schemas.actions import Action, ActionRecord, Patch, Verify
from tocsin.schemas.base import Model
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.diagnosis import At, Cause, Cost, Coverage, Diagnostic, Evidence, NotEvaluated, Relation
from tocsin.schemas.feed import ActiveCounts, Header, Page, WriterState
from tocsin.schemas.manifest import Attempt, DiagnosticsCost, Manifest

__all__ = ["CPU", "ENVELOPE", "EVENT_EXAMPLES", "GROUPS", "HEADER", "MANIFEST", "PAGE", "RECORD_EXAMPLES", "RUN_CONFIG"]

_AT: Final = At(step=3, policy_version=3, ts=TS)

RECORD_EXAMPLES: Final[tuple[Model, ...]] = (
    Diagnostic(
        run_id="sort-digits-1",
        seq=1,
        event_seq=42,
        code="RWD001",
        name="zero-std-groups",
        kind="fault",
        id="zero-std-groups/trainer#1",
        fingerprint="0badcafe0badcafe",
        episode=1,
        state="firing",
        reason="fired",
        severity="warning",
        summary="52 of 64 groups had no reward spread over steps 0-3 (expected 9 at this pass rate).",
        labels={"component": "trainer"},
        config_generation=0,
        started=_AT,
        fired=_AT,
        last=_AT,
        count=2,
        evidence=[
            Evidence(
                metric="zero_spread_frac",
                observed=0.8125,
                operator=">",
                threshold=0.5,
                window=64,
                window_unit="groups",
                n=64,
                baseline=0.14,
            )
        ],
        causes=[Cause(code=None, text="Prompts are too easy.", weight=0.6, check="most groups pass")],
        actions=[
            Action(
                id="zero-std-groups/trainer#1/raise-group-size",
                title="Raise group_size from 8 to 16",
                applicability="review",
                risk="low",
                preferred=True,
                patches=[Patch(path="group_size", expect=8, to=16, min=2, max=1024, effective="next_opened_step")],
                verify=Verify(metric="zero_spread_frac", operator="<", threshold=0.5, within=128, unit="groups"),
                cooldown_steps=20,
            )
        ],
        relations=[Relation(kind="explained_by", id="nan-inf/learner#1")],
        cost=Cost(
            hours=0.01,
            tokens=5_120,
            tokens_without_gradient=4_160,
            learner_idle_s=1.5,
            sampler_idle_s=0.25,
            devices=1,
        ),
        help="tocsin explain RWD001",
    ),
    ActionRecord(
        run_id="sort-digits-1",
        seq=2,
        event_seq=43,
        ts=TS,
        step=3,
        config_generation=1,
        action_id="zero-std-groups/trainer#1/raise-group-size",
        diagnostic_id="zero-std-groups/trainer#1",
        state="applied",
        actor="person:ada",
        path="group_size",
        before=8,
        after=16,
        idempotency_key="0badcafe",
    ),
    Coverage(
        run_id="sort-digits-1",
        seq=3,
        event_seq=44,
        at=_AT,
        evaluated=["POL015", "RWD001"],
        not_evaluated={"SYS001": NotEvaluated(reason="not_applicable", detail="no accelerator")},
        health="ok",
    ),
)

HEADER: Final = Header(contents="feed", run_id="sort-digits-1", epoch="0badcafe0bad", created=TS)

PAGE: Final = Page.model_validate(
    {
        "records": [record.model_dump() for record in RECORD_EXAMPLES],
        "next_cursor": "0badcafe0bad.3",
        "has_more": False,
        "reset": False,
        "active": ActiveCounts(warning=1).model_dump(),
        "writer": WriterState(state="alive", last_event_age_s=0.5, step=3).model_dump(),
    }
)

RUN_CONFIG: Final = RunConfig(
    steps=400,
    model=ModelConfig(path="model"),
    data=DataConfig(train="train.jsonl"),
    rewards=[RewardConfig(function="exact")],
)

MANIFEST: Final = Manifest(
    run_id="sort-digits-1",
    created=TS,
    config=RUN_CONFIG,
    versions={"tocsin": "0.1.0"},
    hardware={"cpu": "x86_64", "cores": "2"},
    attempts=[
        Attempt(
            attempt=1,
            pid=1234,
            host="localhost",
            boot_id="b",
            started=TS,
            cost=DiagnosticsCost(step_s=0.05, rules_s=4e-4, events_s=3e-4, emit_s=2e-4),
        )
    ],
)
