"""One hand-written example of everything that is written: what a small healthy run would say."""

from typing import Any, Final

from tocsin.schemas.actions import Action, ActionRecord, Patch, Verify
from tocsin.schemas.base import Model
from tocsin.schemas.batch import BatchConsumed, GroupColumns, Histogram, Quantiles
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import At, Cause, Coverage, Diagnostic, Evidence, NotEvaluated, Relation
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    CheckpointSaved,
    ClockTicked,
    ComponentHeartbeat,
    ControlAnswered,
    DeviceInfo,
    EvaluationCompleted,
    KnobChanged,
    Ledger,
    MetricsLogged,
    QueueSampled,
    ResourcesSampled,
    RolloutFailed,
    RunContinued,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    SamplerSampled,
    WeightsSynced,
)
from tocsin.schemas.feed import ActiveCounts, Header, Page, WriterState
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.manifest import Attempt, Manifest
from tocsin.schemas.resources import DeviceMemory, PhasePeak
from tocsin.schemas.step import LogProbGap, MicrobatchStats, RatioMoments, StepCompleted

TS: Final = "2026-01-31T12:00:00.000Z"
ENVELOPE: Final[dict[str, Any]] = {
    "run_id": "sort-digits-1",
    "attempt": 1,
    "seq": 42,
    "ts": TS,
    "mono": 12.5,
    "step": 3,
    "policy_version": 3,
    "config_generation": 0,
}
CPU: Final = DeviceInfo(name="cpu", kind="cpu")
MICROBATCHES: Final = MicrobatchStats(num=2, token_budget=4096, max_tokens=512, padded_frac=0.125)
SPREAD: Final = Quantiles(mean=1.0, p50=1.0, p95=2.0, max=2.0)

GROUPS: Final = GroupColumns(
    group_index=[6, 7],
    prompt_id=["6-0badcafe", "7-deadbeef"],
    size=[4, 4],
    num_failed=[0, 0],
    reward_mean=[0.5, 1.0],
    reward_std=[0.5, 0.0],
    reward_min=[0.0, 1.0],
    reward_max=[1.0, 1.0],
    zero_spread=[False, True],
    tokens=[28, 28],
    truncated=[0, 0],
    staleness=[1, 1],
    staleness_flight=[0, 1],
    config_generation=[0, 0],
)

EVENT_EXAMPLES: Final[tuple[BaseEvent, ...]] = (
    RunStarted(
        **ENVELOPE, num_steps=400, seed=0, knobs=Knobs().model_dump(), devices=[CPU], versions={"torch": "2.13.0"}
    ),
    RunResumed(
        **ENVELOPE,
        checkpoint_step=100,
        rewound_from_step=117,
        knobs=Knobs().model_dump(),
        devices=[CPU],
        versions={"torch": "2.13.0"},
    ),
    RunEnded(**ENVELOPE, outcome="failed", error="RuntimeError: the sampler died 4 times"),
    StepCompleted(
        **ENVELOPE,
        outcome="updated",
        loss=-0.01,
        grad_norm=0.7,
        grad_clip=1.0,
        learning_rate=3e-4,
        update_ratio=1e-3,
        clip_low_frac=0.0,
        clip_high_frac=0.01,
        dual_clip_frac=0.0,
        entropy=0.8,
        ratio=[RatioMoments(staleness=1, tokens=28, mean=1.01, mean_square=1.03, max=1.4)],
        ess_frac=0.98,
        logprob_gap=LogProbGap(k1=0.01, k3=0.001, abs_mean=0.02, abs_p95=0.05, abs_p99=0.1, abs_max=0.3),
        kl_ref=0.02,
        groups=2,
        groups_trained=1,
        tokens=56,
        tokens_trained=28,
        microbatches=MICROBATCHES,
        oom_retries=0,
        seconds={"wait": 0.0, "forward_backward": 0.05, "optimizer": 0.01, "sync_wait": 0.0, "total": 0.07},
    ),
    BatchConsumed(
        **ENVELOPE,
        groups=GROUPS,
        reward_range=(0.0, 1.0),
        reward_mean=0.75,
        pass_rate=0.75,
        components={"exact": 0.75},
        length=Quantiles(mean=7.0, p50=7.0, p95=7.0, max=7.0),
        length_histogram=Histogram(edges=[0.0, 4.0, 8.0], counts=[0, 8]),
        staleness=SPREAD,
        finish_reasons={"stop": 8},
        max_staleness=1,
    ),
    RolloutFailed(
        **ENVELOPE,
        cause="reward_timeout",
        prompt_id="6-0badcafe",
        group_index=6,
        completions=4,
        whole_group=True,
        error="TimeoutError: no answer within 30 s",
    ),
    WeightsSynced(
        **ENVELOPE,
        version=3,
        seconds={"write": 0.01, "pause": 0.0, "load": 0.01, "verify": 0.01, "total": 0.03},
        bytes=1_400_000,
        probe_gap=2.4e-7,
        probe_moved=0.02,
        probe_tolerance=1e-5,
        verified=True,
    ),
    SamplerSampled(**ENVELOPE, sampler="local", version=3, groups=2, completions=8, tokens=56, seconds=0.05),
    ResourcesSampled(
        **ENVELOPE,
        devices=[
            DeviceMemory(
                device="cuda:0",
                kind="cuda",
                total_bytes=24 * 2**30,
                baseline_bytes=2**30,
                phases={"forward_backward": PhasePeak(allocated_bytes=8 * 2**30, reserved_bytes=9 * 2**30)},
            )
        ],
        microbatches=MICROBATCHES,
        host_rss_bytes={"learner": 2**29},
        host_memory_frac=0.25,
        disk_free_bytes=2**34,
    ),
    QueueSampled(
        **ENVELOPE,
        ledger=Ledger(
            launched=10, in_flight=2, queued=1, consumed=4, dropped={"expired": 1}, failed={"reward_timeout": 2}
        ),
        learner_wait_s=0.01,
        sampler_wait_s=0.02,
        step_s=0.07,
        queue_wait=SPREAD,
    ),
    KnobChanged(**ENVELOPE, path="learning_rate", before=3e-4, after=1e-4, actor="agent:night-watch", effective_step=4),
    ControlAnswered(
        **ENVELOPE,
        request_id="0123456789abcdef",
        verb="set",
        state="accepted",
        reason="learning_rate 0.0003 to 0.0001 from step 4 on",
        actor="agent:night-watch",
        idempotency_key="halve-lr-1",
        patches=[KnobPatch(path="learning_rate", expect=3e-4, to=1e-4)],
    ),
    RunPaused(**ENVELOPE, actor="person:ada"),
    RunContinued(**ENVELOPE, actor="person:ada", paused_s=12.5),
    CheckpointSaved(**ENVELOPE, path="checkpoints/100", seconds=0.2, bytes=4_200_000),
    EvaluationCompleted(
        **ENVELOPE,
        name="held-out",
        version=3,
        n=256,
        failed=0,
        reward_mean=0.45,
        reward_se=0.031,
        pass_rate=0.45,
        pass_rate_se=0.031,
    ),
    ComponentHeartbeat(**ENVELOPE, component="sampler", state="restarted", detail="exit code -9"),
    ClockTicked(**ENVELOPE, idle_s=4.9),
    MetricsLogged(**ENVELOPE, source="trl", metrics={"reward": 0.5}),
)

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
    attempts=[Attempt(attempt=1, pid=1234, host="localhost", boot_id="b", started=TS)],
)
