"""The life of an action as the feed tells it: asked for, applied, and what came of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, numbered, run, started, step
from tests.diagnostics.scripted import proposal, scripted
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rule import Proposal
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import read
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, CheckpointSaved, ControlAnswered, KnobChanged, RunEnded, RunPaused, RunResumed

ACTION = "rule-pol014/learner#1/lower-learning-rate"
REQUEST = "0123456789abcdef"


def answered(**fields: Any) -> ControlAnswered:
    """An agent's request to apply the action, accepted."""
    accepted = {
        "request_id": REQUEST,
        "verb": "act",
        "state": "accepted",
        "reason": "learning_rate 0.0001 -> 5e-05 from the next step on",
        "actor": "agent:night",
        "idempotency_key": "once",
        "action_id": ACTION,
        "patches": [KnobPatch(path="learning_rate", expect=1e-4, to=5e-5)],
    }
    return ControlAnswered.model_validate({**accepted, **fields})


def changed(**fields: Any) -> KnobChanged:
    """The knob change that carries the request out; the first one of the run."""
    content = {
        "path": "learning_rate",
        "before": 1e-4,
        "after": 5e-5,
        "actor": "agent:night",
        "effective_step": 20,
        "request_id": REQUEST,
        "action_id": ACTION,
        "idempotency_key": "once",
        "config_generation": 1,
    }
    return KnobChanged.model_validate({**content, **fields})


def under(generation: int, t: int, reward: float = 0.5) -> BatchConsumed:
    """A batch of 16 groups generated under one configuration; the reward wobbles by a completion."""
    passes = round(8 * reward) + t % 2
    found = batch([[1.0] * passes + [0.0] * (8 - passes)] * 16)
    return found.model_copy(
        update={"groups": found.groups.model_copy(update={"config_generation": [generation] * len(found.groups.size)})}
    )


def story(
    *, clip_after: float, reward_after: float = 0.5, extra: dict[int, list[BaseEvent]] | None = None, num: int = 80
) -> Iterator[list[BaseEvent]]:
    """A run whose clip fraction is about 0.6 from step 10 on; at step 20 the action is applied.

    Batches 20 and 21 were still generated under the old configuration.
    """
    yield [started(learning_rate=1e-4)]
    for t in range(1, num + 1):
        asked: list[BaseEvent] = {20: [answered(), changed()]}.get(t, [])
        generation = 1 if t > 21 else 0
        level = 0.05 if t < 10 else 0.6 if t <= 20 else clip_after
        clip = level + 0.02 * (t % 2)
        more = (extra or {}).get(t, [])
        yield [*asked, *more, under(generation, t, reward_after if t > 21 else 0.5), step(clip_high_frac=clip)]


RULE = scripted("POL014", (10, 500), proposals=(proposal(),))


def actions(steps: Iterator[list[BaseEvent]], rules: Any = (RULE,)) -> list[ActionRecord]:
    return [record for record in run(Engine(rules), steps) if isinstance(record, ActionRecord)]


def states(steps: Iterator[list[BaseEvent]], rules: Any = (RULE,)) -> list[tuple[int, str]]:
    return [(record.step, record.state) for record in actions(steps, rules)]


def test_an_action_that_works_is_approved_applied_and_meets_its_target() -> None:
    found = actions(story(clip_after=0.05))
    assert [(record.step, record.state) for record in found] == [
        (19, "approved"),
        (19, "applied"),
        (31, "target_met"),  # a quarter of 40 batches after the first one under the change, in step 22
    ]
    for record in found:
        assert (record.action_id, record.diagnostic_id) == (ACTION, "rule-pol014/learner#1")
        assert (record.actor, record.idempotency_key, record.request_id) == ("agent:night", "once", REQUEST)
        assert (record.path, record.before, record.after) == ("learning_rate", 1e-4, 5e-5)
    assert found[0].note == "learning_rate 0.0001 -> 5e-05 from the next step on"
    assert found[2].note.startswith("step_completed.clip_high_frac 0.6")
    assert found[2].note.endswith("target < 0.2")


@pytest.mark.parametrize(
    ("clip_after", "reward_after", "expected"),
    [(0.6, 0.5, (61, "no_effect")), (0.3, 0.5, (61, "inconclusive")), (0.05, 0.125, (31, "harmed"))],
)
def test_the_verdict_is_honest(clip_after: float, reward_after: float, expected: tuple[int, str]) -> None:
    assert states(story(clip_after=clip_after, reward_after=reward_after))[2:] == [expected]


def test_another_knob_that_moves_meanwhile_confounds() -> None:
    other = KnobChanged(path="temperature", before=1.0, after=0.9, actor="person:ada", effective_step=25)
    found = actions(story(clip_after=0.05, extra={25: [other]}))
    assert [(record.step, record.state, record.action_id) for record in found[2:]] == [
        (24, "confounded", ACTION),
        (24, "applied", found[3].action_id),
    ]
    assert found[2].note == "`temperature` changed as well, by person:ada"
    assert found[3].action_id.startswith("knob/temperature@")


def test_a_cause_that_becomes_visible_confounds_what_was_applied_against_its_symptom() -> None:
    symptom = scripted("POL003", (10, 500), proposals=(proposal(),))
    cause = scripted("POL014", (12, 500), persistence=15)
    action = ACTION.replace("pol014", "pol003")
    events: Iterator[list[BaseEvent]] = (
        [
            e.model_copy(update={"action_id": action}) if isinstance(e, ControlAnswered | KnobChanged) else e
            for e in group
        ]
        for group in story(clip_after=0.6)
    )
    found = actions(events, [symptom, cause])
    assert [(record.step, record.state) for record in found] == [(19, "approved"), (19, "applied"), (26, "confounded")]
    assert found[2].note == "rule-pol014/learner#1 became visible as the cause"


def test_an_approved_action_expires_when_its_diagnostic_is_over_or_explained() -> None:
    over = scripted("POL014", (10, 22), proposals=(proposal(),))
    asked: list[list[BaseEvent]] = [[*([answered()] if t == 20 else []), step()] for t in range(1, 40)]
    found = actions(iter(asked), [over])
    assert [(record.step, record.state, record.note) for record in found][1:] == [
        (24, "expired", "not applied: its diagnostic resolved")
    ]
    symptom = scripted("POL003", (10, 500), proposals=(proposal(),))
    cause = scripted("POL014", (12, 500), persistence=15)
    request = answered(action_id=ACTION.replace("pol014", "pol003"))
    asked = [[*([request] if t == 20 else []), step()] for t in range(1, 40)]
    found = actions(iter(asked), [symptom, cause])
    assert found[-1].note == "not applied: explained by rule-pol014/learner#1"


def test_a_knob_that_goes_back_for_the_same_action_is_reverted_and_ends_the_trial() -> None:
    back = changed(before=5e-5, after=1e-4, request_id="f" * 16, actor="autotune", config_generation=2, note="harm")
    found = actions(story(clip_after=0.6, extra={30: [back]}))
    assert [(record.step, record.state, record.actor, record.note) for record in found[2:]] == [
        (29, "reverted", "autotune", "harm")
    ]


def test_a_resume_from_before_the_change_reverts_it_and_ends_the_trial() -> None:
    resumed = RunResumed(
        checkpoint_step=10,
        rewound_from_step=30,
        knobs=started(learning_rate=1e-4).knobs,
        devices=[],
        versions={},
    )
    found = actions(story(clip_after=0.05, num=28, extra={28: [resumed]}))
    assert [(record.state, record.action_id, record.before, record.after) for record in found[2:]] == [
        ("reverted", ACTION, 5e-5, 1e-4)
    ]
    kept = resumed.model_copy(update={"knobs": started(learning_rate=5e-5).knobs})
    found = actions(story(clip_after=0.05, num=28, extra={28: [kept]}))
    assert [(record.state, record.note[:19]) for record in found[2:]] == [("inconclusive", "the run was resumed")]


def test_two_patches_of_one_request_are_one_trial() -> None:
    second = changed(path="grad_clip", before=1.0, after=0.5, config_generation=2)
    request = answered(patches=[KnobPatch(path="learning_rate", to=5e-5), KnobPatch(path="grad_clip", to=0.5)])
    steps: list[list[BaseEvent]] = [[started()]]
    for t in range(1, 60):
        asked: list[BaseEvent] = [request, changed(), second] if t == 20 else []
        clip = (0.6 if 10 <= t <= 20 else 0.05) + 0.01 * (t % 2)
        steps.append([*asked, under(2 if t > 24 else 1 if t > 21 else 0, t), step(clip_high_frac=clip)])
    found = actions(iter(steps))
    assert [(record.step, record.state, record.path) for record in found] == [
        (19, "approved", "learning_rate"),
        (19, "approved", "grad_clip"),
        (19, "applied", "learning_rate"),
        (19, "applied", "grad_clip"),
        (34, "target_met", "learning_rate"),  # starts with the batch of step 25
    ]


def test_an_action_without_a_check_is_inconclusive_at_once() -> None:
    unverified = Proposal(verb="lower-learning-rate", title="lower it", applicability="review")
    rule = scripted("POL014", (10, 500), proposals=(unverified,))
    assert states(story(clip_after=0.6, num=25), [rule])[1:] == [(19, "applied"), (19, "inconclusive")]


def test_refusals_and_duplicates_are_answered_with_their_reason() -> None:
    refused = answered(state="refused", reason="`learning_rate` must be 0.0001 as expected, and is 5e-05", patches=[])
    again = answered(state="duplicate", reason="accepted as 0123 before", request_id="f" * 16)
    found = actions(iter([[refused, again, step()]]))
    assert [(record.state, record.action_id, record.note) for record in found] == [
        ("rejected", ACTION, "`learning_rate` must be 0.0001 as expected, and is 5e-05"),
        ("rejected", f"request/{'f' * 16}", "duplicate, nothing is done twice: accepted as 0123 before"),
    ]


def test_what_was_accepted_and_is_refused_at_the_barrier_is_rejected_after_all() -> None:
    late = answered(state="refused", reason="the value changed in between", action_id=None, patches=[])
    found = actions(iter([[answered(), late, step()]]))
    assert [(record.state, record.action_id) for record in found] == [("approved", ACTION), ("rejected", ACTION)]


def test_a_direct_change_is_told_by_its_request() -> None:
    own = {"action_id": None, "verb": "set"}
    found = actions(iter([[answered(**own), changed(action_id=None), step()]]))
    assert [(record.state, record.action_id, record.diagnostic_id) for record in found] == [
        ("approved", f"request/{REQUEST}", None),
        ("applied", f"request/{REQUEST}", None),
    ]


@pytest.mark.parametrize(
    ("verb", "event"),
    [
        ("pause", RunPaused(actor="agent:night")),
        ("checkpoint", CheckpointSaved(path="checkpoints/1", seconds=0.1, bytes=1)),
        ("stop", RunEnded(outcome="interrupted")),
    ],
)
def test_other_requests_are_applied_when_they_are_carried_out(verb: str, event: BaseEvent) -> None:
    request = answered(verb=verb, action_id=None, patches=[], reason="at the next step barrier")
    found = actions(iter([[request, step()], [event]]))
    assert [(record.state, record.action_id, record.note) for record in found] == [
        ("approved", f"request/{REQUEST}", "at the next step barrier"),
        ("applied", f"request/{REQUEST}", f"{verb}: done"),
    ]


def test_what_is_open_when_the_run_ends_is_told() -> None:
    waiting = answered(verb="set", action_id=None, request_id="f" * 16)
    steps = [*story(clip_after=0.6, num=32, extra={32: [waiting]}), [RunEnded(outcome="interrupted")]]
    found = actions(iter(steps))
    assert [(record.state, record.note[:26]) for record in found[3:]] == [
        ("expired", "not applied: the run ended"),
        ("inconclusive", "the run ended; step_comple"),
    ]


def test_a_trial_whose_metric_is_not_measured_any_more_ends_after_three_times_its_time() -> None:
    steps: list[list[BaseEvent]] = [[started()]]
    for t in range(1, 200):
        asked: list[BaseEvent] = [answered(), changed()] if t == 20 else []
        steps.append([*asked, under(0 if t < 22 else 1, t), step(clip_high_frac=0.6 if t < 22 else None)])
    found = actions(iter(steps))
    assert [(record.step, record.state) for record in found[2:]] == [(21 + 3 * 40, "inconclusive")]
    assert found[2].note.startswith("too little was measured in 120 steps; step_completed.clip_high_frac 0.")
    assert "nothing after" in found[2].note


def test_a_trial_whose_change_reaches_no_batch_ends() -> None:
    steps: list[list[BaseEvent]] = [[started()]]
    for t in range(1, 560):
        asked: list[BaseEvent] = [answered(), changed()] if t == 20 else []
        steps.append([*asked, under(0, t), step(clip_high_frac=0.6)])
    assert states(iter(steps))[2:] == [(518, "inconclusive")]


def test_the_share_of_sham_successes_through_the_whole_engine_is_small() -> None:
    verdicts = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise, level = 0.0, []
        for _ in range(100):
            noise = 0.5 * noise + rng.normal(0, 0.05 * 0.75**0.5)
            level.append(min(1.0, max(0.0, 0.25 + noise)))
        steps = [[started(learning_rate=1e-4)]]
        for t, clip in enumerate(level, start=1):
            asked = [answered(), changed()] if t == 20 else []
            steps.append([*asked, under(1 if t > 20 else 0, t), step(clip_high_frac=clip)])
        verdicts += [state for _, state in states(iter(steps))[2:]]
    assert len(verdicts) == 12
    assert verdicts.count("target_met") <= 1


def everything() -> list[BaseEvent]:
    """Causes, an action with its verdict, a silence and a resume in one run."""
    hush = ControlAnswered(
        request_id="a" * 16,
        verb="silence",
        state="accepted",
        reason="",
        actor="person:ada",
        code="SYS001",
        until_step=50,
    )
    return numbered([*story(clip_after=0.05, extra={15: [hush]}), [RunEnded(outcome="completed")]])


def engine() -> Engine:
    return Engine(
        [
            RULE,
            scripted("POL003", (14, 60)),
            scripted("POL009", (16, 70), severity="critical"),
            scripted("SYS001", (5, 55), severity="info"),
        ]
    )


def test_a_replay_of_causes_actions_and_silences_gives_the_records_of_the_live_run() -> None:
    events = everything()
    first, whole = engine(), engine()
    live = [record for event in events for record in first.observe(event)]
    lines = [event.model_dump_json(exclude_none=True) for event in events]
    again = [record for line in lines for record in whole.observe(read(EVENT, line))]
    assert [record.model_dump_json() for record in again] == [record.model_dump_json() for record in live]
    kinds = {record.state for record in live if isinstance(record, ActionRecord)}
    reasons = {record.reason for record in live if isinstance(record, Diagnostic)}
    assert {"approved", "applied", "target_met", "expired"} <= kinds
    assert {"fired", "escalated", "resolved", "reminder", "run_ended"} <= reasons
