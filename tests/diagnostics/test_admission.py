"""What is admitted and what is refused, by the request and the state of the run alone."""

from typing import Any

import pytest

from tests.schemas.examples import RECORD_EXAMPLES
from tocsin.diagnostics.admission import Refused, Situation, admit, admit_at_barrier
from tocsin.diagnostics.causes import NEVER_HIDDEN
from tocsin.diagnostics.knob_patch import reach
from tocsin.schemas.actions import Action, Patch
from tocsin.schemas.control import ControlRequest, KnobPatch
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.knobs import Knobs

NOW = "2026-01-31T12:00:00.000Z"
LAUNCHED = Knobs(learning_rate=1e-4, group_size=8, max_staleness=1)
SITUATION = Situation(attempt=2, step=40, config_generation=3, knobs=LAUNCHED, launched=LAUNCHED, is_paused=False)
LOWER = Action(
    id="lr-too-high/learner#1/lower",
    title="Lower learning_rate",
    applicability="review",
    risk="low",
    patches=[Patch(path="learning_rate", expect=1e-4, to=5e-5, min=0.0, max=1.0, effective="next_step")],
)
CHOOSE = Action(
    id="lr-too-high/learner#1/choose",
    title="Choose group_size",
    applicability="placeholder",
    risk="low",
    patches=[
        Patch(path="group_size", expect=8, min=4, max=12, effective="next_opened_step"),
        Patch(path="groups_per_step", expect=16, to=8, min=1, max=64, effective="next_opened_step"),
    ],
)


def request(verb: str = "set", **changes: Any) -> ControlRequest:
    return ControlRequest.model_validate(
        {
            "id": "0123456789abcdef",
            "idempotency_key": "k",
            "actor": "agent:nightwatch",
            "created": "2026-01-31T11:59:59.000Z",
            "expires": "2026-01-31T12:01:00.000Z",
            "attempt": 2,
            "verb": verb,
            **changes,
        }
    )


def setting(**values: Any) -> ControlRequest:
    return request(patches=[KnobPatch(path=path, to=to) for path, to in values.items()])


def situation(**changes: Any) -> Situation:
    return Situation(**{**{name: getattr(SITUATION, name) for name in Situation.__dataclass_fields__}, **changes})


def finding(*actions: Action) -> Diagnostic:
    example = next(record for record in RECORD_EXAMPLES if isinstance(record, Diagnostic))
    return example.model_copy(update={"actions": list(actions)})


def refusal(asked: ControlRequest, now: Situation = SITUATION) -> str:
    with pytest.raises(Refused) as caught:
        admit(asked, now, now=NOW)
    return str(caught.value)


def test_a_change_within_reach_is_admitted_with_the_value_in_force_and_the_moment_it_takes_effect():
    admitted = admit(setting(learning_rate=5e-5), SITUATION, now=NOW)
    assert admitted.patches == (KnobPatch(path="learning_rate", expect=1e-4, to=5e-5),)
    assert admitted.effect == "learning_rate 0.0001 -> 5e-05 from the next step on"


def test_changes_that_only_go_together_are_admitted_together():
    asked = setting(weight_sync_every=2, max_staleness=2)
    assert [patch.path for patch in admit(asked, SITUATION, now=NOW).patches] == ["weight_sync_every", "max_staleness"]
    alone = situation(knobs=LAUNCHED.changed("max_staleness", 0))
    assert refusal(setting(weight_sync_every=2), alone).startswith("`weight_sync_every` must be at most")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request("pause", schema_version="2.0.0"), "`schema_version` must be 1.x, got 2.0.0"),
        (request("pause", expires=NOW), f"`expires` must lie in the future, got {NOW} at {NOW}"),
        (request("pause", expires=""), "`expires` must lie in the future, got nothing"),
        (request("pause", attempt=1), "`attempt` must be 2, got 1; the run was resumed in between"),
        (request("pause", config_generation=2), "`config_generation` must be 3, got 2; a knob changed in between"),
        (
            request(patches=[KnobPatch(path="learning_rate", expect=2e-4, to=5e-5)]),
            "`learning_rate` must be 0.0002 as expected, and is 0.0001",
        ),
        (setting(lr=1.0), "unknown knob `lr`; the knobs are: "),
        (setting(grad_clip=1e9), "`grad_clip` must be between 0.0001 and 10000, got 1000000000.0"),
        (setting(group_size=1), "`group_size` must be between 2 and 1024, got 1"),
        (setting(group_size=12.0), "`group_size`: Input should be a valid integer"),
        (setting(group_size=True), "`group_size`: Input should be a valid integer"),
        (setting(skip_zero_spread=1), "`skip_zero_spread`: Input should be a valid boolean"),
        (setting(learning_rate=1e-3), "`learning_rate` must be between 5e-05 and 0.0002 after one change, got 0.001"),
        (setting(learning_rate=True), "`learning_rate`: Input should be a valid number"),
        (setting(group_size=10**30), "`group_size` must be between 2 and 1024"),
        (setting(dual_clip=1.6, clip_high=0.4, clip_low=0.9), "`clip_low` must be between 0.1 and 0.4"),
        (setting(group_size=8, learning_rate=1e-4), "`group_size` is 8, `learning_rate` is 0.0001 already"),
        (request("silence", code="ABC123", until_step=60), "`code` must be the code of a rule, got `ABC123`"),
        (request("silence", code="POL015", until_step=60), "POL015 nan-inf must not be silenced"),
        (request("resume"), "the run must be paused to go on, and is not"),
        (request("act", action_id="x/y#1/z"), "`action_id` must be an action of an open diagnostic, got `x/y#1/z`"),
    ],
)
def test_what_is_out_of_order_is_refused_with_its_reason(asked: ControlRequest, reason: str):
    assert refusal(asked).startswith(reason)


def test_a_second_pause_is_refused_and_a_paused_run_may_go_on():
    paused = situation(is_paused=True)
    assert refusal(request("pause"), paused).startswith("the run is paused already, at step 40")
    assert admit(request("resume"), paused, now=NOW).effect == "training goes on"


def test_a_knob_far_from_its_launch_value_goes_no_further_and_may_come_back_at_once():
    wandered = situation(knobs=LAUNCHED.changed("learning_rate", 1.6e-3))
    assert "16 from its launch value 0.0001" in refusal(setting(learning_rate=2e-3), wandered)
    assert admit(setting(learning_rate=1e-4), wandered, now=NOW).patches[0].to == 1e-4
    assert refusal(setting(learning_rate=9e-5), wandered).startswith(
        "`learning_rate` must be between 0.0001 and 0.0016"
    )


@pytest.mark.parametrize(
    ("path", "current", "launched", "low", "high"),
    [
        ("learning_rate", 1e-4, 1e-4, 5e-5, 2e-4),
        ("learning_rate", 1.0, 1e-4, 1e-4, 1.0),  # a planted fault: the way back is free, the way on is closed
        ("microbatch_tokens", 4096, 4096, 1024, 16384),
        ("max_staleness", 0, 0, 0, 1),  # whole numbers may always move by one
        ("max_staleness", 1, 1, 0, 8),
        ("max_staleness", 16, 16, 2, 64),
        ("group_size", 4, 4, 2, 8),
        ("group_size", 3, 3, 2, 6),
        ("group_size", 8, 2, 2, 16),
        ("entropy_coef", 0.0, 0.0, 0.0, 0.01),  # zero has no multiples
        ("entropy_coef", 0.01, 0.0, 0.0, 0.01),
    ],
)
def test_reach_is_bounded_by_step_by_drift_and_by_the_registry(
    path: str, current: float, launched: float, low: float, high: float
):
    assert reach(path, current, launched) == (low, high)


def test_a_knob_that_this_attempt_cannot_change_is_refused():
    now = situation(fixed={"kl_beta": "no reference model"}, ceilings={"max_completion_tokens": 300})
    assert refusal(setting(kl_beta=0.01), now).endswith("while this attempt runs: no reference model")
    assert refusal(setting(max_completion_tokens=301), now).startswith("`max_completion_tokens` must be at most 300")
    assert admit(setting(max_completion_tokens=300), now, now=NOW).patches[0].to == 300


def test_an_action_is_admitted_with_its_own_values():
    now = situation(findings=[finding(LOWER)])
    admitted = admit(request("act", action_id=LOWER.id), now, now=NOW)
    assert admitted.patches == (KnobPatch(path="learning_rate", expect=1e-4, to=5e-5),)


@pytest.mark.parametrize(
    ("action", "values", "reason"),
    [
        (LOWER.model_copy(update={"disabled": "cooling down"}), {}, "must be enabled, and is not: cooling down"),
        (LOWER.model_copy(update={"applicability": "advisory"}), {}, "is advice only: Lower learning_rate"),
        (LOWER.model_copy(update={"patches": []}), {}, "is advice only"),
        (LOWER, {"learning_rate": 6e-5}, "computes the value of `learning_rate`; give none"),
        (CHOOSE, {}, "`group_size` must be given a value between 4 and 12; for instance --value group_size=8"),
        (CHOOSE, {"group_size": 16}, "`group_size` must be between 4 and 12, got 16"),
        (CHOOSE, {"group_size": 10, "grad_clip": 2.0}, "computes the value of `grad_clip`"),
    ],
)
def test_an_action_that_cannot_be_applied_is_refused(action: Action, values: dict[str, Any], reason: str):
    patches = [KnobPatch(path=path, to=to) for path, to in values.items()]
    asked = request("act", action_id=action.id, patches=patches)
    assert reason in refusal(asked, situation(findings=[finding(action)]))


def test_a_placeholder_takes_the_value_that_was_chosen_and_keeps_the_others():
    asked = request("act", action_id=CHOOSE.id, patches=[KnobPatch(path="group_size", to=10)])
    admitted = admit(asked, situation(findings=[finding(CHOOSE)]), now=NOW)
    assert [(patch.path, patch.to) for patch in admitted.patches] == [("group_size", 10), ("groups_per_step", 8)]


def test_an_action_whose_knob_was_moved_since_is_refused():
    moved = situation(findings=[finding(LOWER)], knobs=LAUNCHED.changed("learning_rate", 5e-5))
    assert refusal(request("act", action_id=LOWER.id), moved).startswith("`learning_rate` must be 0.0001 as expected")


def test_a_patch_that_needs_a_restart_is_refused():
    patch = LOWER.patches[0].model_copy(update={"effective": "restart"})
    action = LOWER.model_copy(update={"patches": [patch]})
    assert "needs a restart" in refusal(request("act", action_id=action.id), situation(findings=[finding(action)]))


def test_what_is_never_hidden_cannot_be_silenced_and_a_silence_can_always_end():
    assert {"POL009", "POL015", "SYS002", "OFF010"} == NEVER_HIDDEN
    assert admit(request("silence", code="RWD001", until_step=60), SITUATION, now=NOW).patches == ()
    ended = admit(request("silence", code="POL015", until_step=40), SITUATION, now=NOW)
    assert ended.effect == "POL015 nan-inf is not silenced any more"


def test_expiry_counts_when_a_request_is_read_and_not_at_the_barrier():
    asked = request("pause", expires="2026-01-31T11:59:59.500Z")
    assert refusal(asked).startswith("`expires`")
    assert admit_at_barrier(asked, SITUATION).effect == "training pauses at the next step barrier"


def test_a_reason_is_one_short_line_whatever_the_request_contains():
    asked = request("act", action_id="\x1b[31mred\n" + "x" * 190)
    assert "\x1b" not in refusal(asked)
    assert "\n" not in refusal(asked)
    assert len(str(Refused("y" * 1000))) == 400


def test_the_newest_change_can_be_taken_back_at_once_however_far_it_went():
    lowered = situation(knobs=LAUNCHED.changed("learning_rate", 1e-4), previous={"learning_rate": 3e-3})
    assert refusal(setting(learning_rate=2.9e-3), lowered).startswith("`learning_rate` must be between")
    assert admit_at_barrier(setting(learning_rate=3e-3), lowered).patches[0].to == 3e-3
    beyond = situation(previous={"learning_rate": 2.0})
    assert refusal(setting(learning_rate=2.0), beyond) == "`learning_rate` must be between 0 and 1, got 2.0"
