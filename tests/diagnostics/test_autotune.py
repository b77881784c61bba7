"""The auto-tuner's policy: records in, decisions out."""

from typing import Any

import pytest

from tests.diagnostics.tuning import LOWER, TS, action, finding, now, patch, policy, record, short
from tocsin.diagnostics.autotune import Autotune, Decision
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic

LOWERED = {"learning_rate": 5e-4}


def test_a_warning_is_answered_by_its_preferred_action_once() -> None:
    tuner = policy(finding())
    assert tuner.decide(now()) == [
        Decision(
            kind="apply",
            code="POL014",
            diagnostic_id="lr-too-high/learner#1",
            action_id="lr-too-high/learner#1/lower-learning-rate",
            patches=(KnobPatch(path="learning_rate", expect=1e-3, to=5e-4),),
            reason="POL014 lr-too-high: learning_rate 0.001 -> 0.0005",
        )
    ]
    assert [tuner.decide(now(step)) for step in (51, 60)] == [[], []], "it waits for the answer of the door"


def test_a_dry_run_says_what_it_would_do_once_and_changes_nothing() -> None:
    tuner = policy(finding(), mode="dry-run")
    assert short(tuner.decide(now())) == [("dry_run", "0.0005")]
    assert tuner.decide(now(51)) == []


def test_a_dry_run_that_names_nothing_shows_what_could_be_allowed() -> None:
    assert short(policy(finding("SYS001", LOWER), mode="dry-run", allow={}).decide(now())) == [("dry_run", "0.0005")]


@pytest.mark.parametrize(
    ("seen", "at", "reason"),
    [
        (finding("SYS001"), {}, "`autotune` does not allow SYS001 to change learning_rate [review]"),
        (
            finding("POL014", action("raise-clip", patch("clip_high", 0.2, 0.3))),
            {},
            "`autotune` does not allow POL014 to change clip_high [review]",
        ),
        (
            finding("POL014", action("choose", patch("learning_rate", 1e-3, None), applicability="placeholder")),
            {},
            "somebody has to choose its value",
        ),
        (
            finding("POL014", LOWER.model_copy(update={"disabled": "explained by weights#1: answer that one first"})),
            {},
            "explained by weights#1: answer that one first",
        ),
        (
            finding(),
            {"knobs": {"learning_rate": 2e-3}},
            "`learning_rate` is 0.002, and the action was made for 0.001",
        ),
        (finding(), {"steps_left": 19}, "too few steps are left to see what it does"),
        (
            finding(),
            {"pending": frozenset({"SYS014"})},
            "SYS014 resume-inconsistency, which may be its cause, is pending",
        ),
        (
            finding(),
            {"warming": frozenset({"SYS014"})},
            "SYS014 resume-inconsistency, which may be its cause, is warming up",
        ),
        (finding(state="no_data", reason="data_lost"), {}, "the data of the finding stopped"),
    ],
)
def test_a_refusal_is_a_decision_with_its_reason_said_once(seen: Diagnostic, at: dict[str, Any], reason: str) -> None:
    tuner = policy(seen)
    assert short(tuner.decide(now(**at))) == [("decline", reason)]
    assert tuner.decide(now(51, **at)) == []


def test_an_action_that_is_automatic_needs_its_knob_allowed_and_not_its_rule() -> None:
    seen = finding("SYS001", LOWER.model_copy(update={"applicability": "automatic"}))
    assert short(policy(seen, automatic=["learning_rate"]).decide(now())) == [("apply", "0.0005")]
    assert short(policy(seen, automatic=["clip_high"]).decide(now()))[0][0] == "decline"


def test_advice_and_what_is_milder_than_a_warning_are_passed_over_without_a_word() -> None:
    advice = action("resume", applicability="advisory")
    assert policy(finding("POL014", advice), finding(severity="info")).decide(now()) == []
    assert short(policy(finding(severity="info"), min_severity="info").decide(now())) == [("apply", "0.0005")]


def test_the_second_action_is_taken_where_the_first_is_not_allowed_and_the_feed_says_so() -> None:
    clip = action("raise-clip", patch("clip_low", 0.2, 0.3), preferred=True)
    tuner = policy(finding("POL003", LOWER.model_copy(update={"preferred": False}), clip))
    assert short(tuner.decide(now())) == [
        ("decline", "`autotune` does not allow POL003 to change clip_low [review]"),
        ("apply", "0.0005"),
    ]


def test_the_gravest_fault_comes_first_and_efficiency_after_every_fault() -> None:
    older = action("raise-staleness", patch("max_staleness", 1, 2))
    waits = finding("OFF016", older, kind="efficiency", severity="critical", started=1)
    mild = finding("POL003", action("raise-clip", patch("clip_high", 0.2, 0.3)), started=1)
    tuner = policy(waits, mild, finding(severity="critical"))
    assert [d.code for d in tuner.decide(now())] == ["POL014"]


@pytest.mark.parametrize("actor", ["autotune", "person:ada"])
def test_one_change_is_on_trial_at_a_time_whoever_made_it(actor: str) -> None:
    tuner = policy(
        finding(), record("applied", 50, code="POL003", actor=actor, path="clip_high", before=0.1, after=0.2)
    )
    said = "clip-fraction-high/learner#1/lower-learning-rate is on trial: one change at a time"
    assert short(tuner.decide(now(90))) == [("decline", said)]
    tuner.observe(record("inconclusive", 95, code="POL003", actor=actor))
    assert short(tuner.decide(now(100))) == [("apply", "0.0005")]


def test_after_a_change_it_waits_for_longer_than_the_delay_of_the_pipeline() -> None:
    applied = record("applied", 50)
    tuner = policy(finding(), applied, record("inconclusive", 60), finding("POL014", LOWER_AGAIN, reason="reminder"))
    assert short(tuner.decide(now(61, knobs=LOWERED))) == [
        ("decline", "autotune changed something at step 50 and waits until step 70")
    ]
    assert short(tuner.decide(now(70, knobs=LOWERED))) == [("apply", "0.00025")]


LOWER_AGAIN = action("lower-learning-rate", patch("learning_rate", 5e-4, 2.5e-4), preferred=True)


def test_an_action_without_a_cooldown_still_waits_for_the_pipeline() -> None:
    hasty = LOWER_AGAIN.model_copy(update={"cooldown_steps": 0})
    tuner = policy(finding(), record("applied", 50), record("inconclusive", 51), finding("POL014", hasty))
    old = {**LOWERED, "max_staleness": 8}
    assert short(tuner.decide(now(52, knobs=old)))[0][1].endswith("waits until step 60")
    assert short(tuner.decide(now(60, knobs=old))) == [("apply", "0.00025")]


def test_a_change_by_somebody_else_counts_unless_the_finding_began_under_it() -> None:
    theirs = record("applied", 45, actor="person:ada", diagnostic_id=None, action_id="knob/learning_rate@7")
    before = policy(finding(started=44), theirs)
    assert short(before.decide(now(50))) == [
        ("decline", "`learning_rate` was changed by person:ada at step 45: wait until 65")
    ]
    assert short(policy(finding(started=46), theirs).decide(now(50))) == [("apply", "0.0005")]


def test_a_change_that_did_harm_is_taken_back_at_once_and_the_weights_are_not() -> None:
    tuner = policy(finding(), record("applied", 50), record("harmed", 60))
    (back,) = tuner.decide(now(61, knobs=LOWERED))
    assert back.kind == "revert"
    assert back.patches == (KnobPatch(path="learning_rate", expect=5e-4, to=1e-3),)
    assert back.reason == "verdict harmed: the knob goes back, the weights keep what they learned meanwhile"
    assert tuner.decide(now(62, knobs=LOWERED)) == []
    tuner.observe(record("reverted", 62, before=5e-4, after=1e-3))
    assert short(tuner.decide(now(63))) == [
        ("decline", "autotune changed something at step 62 and waits until step 82")
    ]


@pytest.mark.parametrize(
    ("verdict", "on_failure", "kinds"),
    [
        ("no_effect", "revert", ["revert"]),
        ("no_effect", "keep", ["decline"]),
        ("no_effect", "ask", ["ask", "decline"]),
        ("target_met", "revert", ["decline"]),
        ("inconclusive", "revert", ["decline"]),
        ("confounded", "revert", ["decline"]),
    ],
)
def test_what_follows_a_verdict_is_what_the_action_says(verdict: str, on_failure: str, kinds: list[str]) -> None:
    seen = finding("POL014", LOWER.model_copy(update={"on_failure": on_failure}))
    tuner = policy(seen, record("applied", 50), record(verdict, 60))
    assert [d.kind for d in tuner.decide(now(61, knobs=LOWERED))] == kinds


def test_a_knob_that_somebody_moved_since_is_not_taken_back() -> None:
    tuner = policy(finding(), record("applied", 50), record("harmed", 60))
    assert short(tuner.decide(now(61, knobs={"learning_rate": 7e-4}))) == [
        ("ask", "verdict harmed, and the knob has another value by now: a person has to decide")
    ]


def test_after_two_reverts_the_rule_is_off_and_a_person_is_asked() -> None:
    tuner = policy(finding())
    for step in (50, 100):
        for item in (record("applied", step), record("harmed", step + 10), record("reverted", step + 12)):
            tuner.observe(item)
    asked = "POL014 lr-too-high is off for this run: its changes were reverted 2 times, so that a person has to decide"
    assert short(tuner.decide(now(200))) == [
        ("ask", asked),
        ("decline", "POL014 is off for this run, because its changes were reverted"),
    ]
    assert tuner.decide(now(300)) == []


def test_a_revert_by_a_person_counts_and_one_by_a_resume_does_not() -> None:
    def seen(actor: str) -> Autotune:
        tuner = policy(finding())
        for step in (50, 100):
            tuner.observe(record("applied", step))
            tuner.observe(record("reverted", step + 5, actor=actor, request_id="0123456789abcde0"))
        return tuner

    assert seen("person:ada").memory.is_off("POL014")
    assert not seen("learner").memory.is_off("POL014")


def test_reverts_of_a_rule_of_another_package_count_under_its_code() -> None:
    seen = finding().model_copy(update={"code": "XAC001", "name": "x-odd", "id": "x-odd/learner#1"})
    ids = {"diagnostic_id": seen.id, "action_id": f"{seen.id}/lower-learning-rate"}
    tuner = policy(seen)
    for step in (50, 100):
        tuner.observe(record("applied", step, **ids))
        tuner.observe(record("reverted", step + 5, actor="person:ada", request_id="0123456789abcde0", **ids))
    assert tuner.memory.is_off("XAC001")
    assert short(tuner.decide(now(200)))[0][1].startswith("XAC001 x-odd is off for this run")


def test_a_rule_has_a_limited_number_of_changes() -> None:
    tuner = policy(max_changes=2)
    for step in (50, 100):
        tuner.observe(record("applied", step, request_id=f"{step:016x}"))
        tuner.observe(record("target_met", step + 10, request_id=f"{step:016x}"))
        tuner.observe(finding(state="resolved", reason="resolved"))
    tuner.observe(finding(started=180))
    assert short(tuner.decide(now(200))) == [
        ("decline", "POL014 has led to 2 changes, which is `autotune.max_changes`")
    ]


def test_a_door_that_refuses_three_times_is_left_alone() -> None:
    tuner = policy(finding())
    kinds = []
    for step in range(50, 55):
        kinds += [d.kind for d in tuner.decide(now(step))]
        tuner.observe(record("rejected", step, note="`config_generation` must be 2, got 1"))
    assert kinds == ["apply", "apply", "apply", "decline"]


def test_nothing_is_kept_of_what_was_said_about_a_finding_that_is_over() -> None:
    tuner = policy(finding("SYS001"))
    tuner.decide(now())
    assert len(tuner.memory.said) == 1
    tuner.observe(finding("SYS001", state="resolved", reason="resolved"))
    assert (tuner.memory.said, tuner.memory.open) == (set(), {})


def test_a_silenced_rule_is_left_alone_until_its_silence_ends() -> None:
    silence = Coverage(
        event_seq=1,
        at=At(step=40, policy_version=40, ts=TS),
        evaluated=["POL014"],
        not_evaluated={},
        health="ok",
        silenced={"POL014": 60},
    )
    tuner = policy(finding(), silence)
    assert short(tuner.decide(now(50))) == [("decline", "POL014 is silenced until step 60")]
    assert short(tuner.decide(now(60))) == [("apply", "0.0005")]


def test_the_records_of_a_feed_make_the_memory_again() -> None:
    story = [
        finding(),
        record("applied", 50),
        record("harmed", 60),
        record("reverted", 62, before=5e-4, after=1e-3),
        record("rejected", 63, request_id=None, note="autotune changed something at step 62 and waits until step 82"),
    ]
    first = policy(finding())
    first.decide(now(50))
    for item in story[1:3]:
        first.observe(item)
    first.decide(now(61, knobs=LOWERED))
    first.observe(story[3])
    first.decide(now(63))
    first.observe(story[4])
    resumed = policy(*story)
    assert resumed.memory == first.memory
    assert resumed.decide(now(64)) == first.decide(now(64)) == []
    assert short(resumed.decide(now(82))) == short(first.decide(now(82))) == [("apply", "0.0005")]


def test_a_change_that_waited_to_be_taken_back_when_the_process_died_is_taken_back_on_resume() -> None:
    resumed = policy(finding(), record("applied", 50), record("harmed", 60))
    assert [d.kind for d in resumed.decide(now(61, knobs=LOWERED))] == ["revert"]


def test_the_same_records_give_the_same_decisions() -> None:
    story = [finding("POL003", LOWER), finding(), record("applied", 50), record("no_effect", 60)]
    assert policy(*story).decide(now(61, knobs=LOWERED)) == policy(*story).decide(now(61, knobs=LOWERED))


def test_rules_and_knobs_that_do_not_exist_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="must name codes of rules, got POL999"):
        policy(allow={"POL999": ["learning_rate"]})
    with pytest.raises(ValueError, match="unknown knob `learning_rte`"):
        policy(allow={"POL014": ["learning_rte"]})
    with pytest.raises(ValueError, match=r"needs `autotune\.allow`"):
        AutotuneConfig(mode="on")
