import math
from collections.abc import Iterable
from typing import Any

import pytest

from tests.diagnostics.scenario import batch, step
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RolloutFailed
from tocsin.schemas.step import LogProbGap
from tocsin.trainer.bench.cases import FAULTS, Case
from tocsin.trainer.bench.harm import harm
from tocsin.trainer.bench.judge import HORIZON, Judged, Naming, Tocsin, judge
from tocsin.trainer.bench.material import Material
from tocsin.trainer.bench.report import BEGIN, END, fault_table, misses, summary_lines, write_between
from tocsin.trainer.bench.score import score
from tocsin.trainer.bench.sham import shams

ONSET = 40
KIND = next(kind for kind in FAULTS if kind.name == "lr-too-high")
MATERIAL = Material("reverse", 1)
CASE = Case(name="lr-too-high/1/1", split="test", material=MATERIAL, kind=KIND, dose=1.0, onset=ONSET)
HEALTHY = Case(name="healthy/plain/1", split="test", material=MATERIAL)
REWARDS = [[0.0, 1.0]] * 8
STEPS = ONSET + HORIZON


def naming(code: str, at: int, **fields: Any) -> Naming:
    known = {"name": code.lower(), "codes": frozenset({code}), "severity": "warning", "is_fault": True, "step": at}
    return Naming(**{**known, "began": at - 3, **fields})


def judged(*said: Naming, case: Case = CASE) -> Judged:
    return judge(case, list(said), STEPS, ("slower",) if case.kind else ())


def test_the_fault_itself_counts_strictly_and_what_it_does_at_once_leniently():
    itself, effect = judged(naming("POL014", ONSET + 5)), judged(naming("POL008", ONSET + 9))
    assert (itself.recalled, itself.is_first_strict, itself.is_first_lenient) == (True, True, True)
    assert (itself.delay, itself.delay_beyond) == (5, 2)
    assert (effect.recalled, effect.is_first_strict, effect.is_first_lenient) == (True, False, True)


def test_a_severity_counts_as_it_was_when_the_first_cause_is_asked_for():
    later = naming("GEN001", ONSET + 2, severity="critical", levels=((ONSET + 2, "warning"), (STEPS + 1, "critical")))
    assert judged(naming("POL014", ONSET + 1), later).first == "pol014"
    before = naming("GEN001", ONSET + 2, severity="critical", levels=((ONSET + 2, "warning"), (ONSET + 9, "critical")))
    assert judged(naming("POL014", ONSET + 1), before).first == "gen001"


def test_what_is_said_before_the_onset_is_a_false_alarm_and_no_detection():
    early = judged(naming("POL014", ONSET - 1))
    assert (early.recalled, len(early.false_alarms), early.first) == (False, 1, None)
    assert judged(naming("POL014", ONSET)).recalled
    late = judged(naming("POL014", ONSET + HORIZON + 1))
    assert not late.recalled


def test_the_first_cause_is_the_gravest_root_that_still_stands():
    worse = naming("RWD001", ONSET + 20, severity="critical")
    assert judged(naming("POL014", ONSET + 5), worse).first == "rwd001"
    explained = naming("RWD001", ONSET + 20, severity="critical", explained=ONSET + 21)
    assert judged(naming("POL014", ONSET + 5), explained).first == "pol014"
    over = naming("POL014", ONSET + 5, over=ONSET + 30)
    assert judged(over).first is None
    assert judged(over).recalled
    waste = naming("OFF016", ONSET + 2, is_fault=False)
    assert judged(waste, naming("POL014", ONSET + 5)).first == "pol014"


def test_an_unused_resource_is_no_false_alarm_on_a_healthy_run():
    found = judged(naming("OFF016", 9, is_fault=False), naming("POL014", 30), case=HEALTHY)
    assert [one.name for one in found.false_alarms] == ["pol014"]
    assert [one.name for one in found.waste] == ["off016"]


def test_our_own_words_are_read_off_the_records_of_a_replay():
    fine, bad = {"outcome": "updated"}, {"outcome": "nonfinite", "nonfinite": ["loss"], "grad_norm": None}
    events: list[BaseEvent] = []
    for number in range(60):
        fields: dict[str, Any] = bad if number >= ONSET else fine
        for event in (batch(REWARDS), step(**fields)):
            events.append(event.model_copy(update={"seq": len(events) + 1, "step": number + 1, "mono": float(number)}))
    named = [one for one in Tocsin().namings(events) if "POL015" in one.codes]
    (one,) = named
    assert ONSET < one.step <= ONSET + 5
    assert one.began <= one.step
    assert one.is_root_at(59)
    assert not [one for one in Tocsin().namings(events[: 2 * ONSET]) if "POL015" in one.codes]


def run(pass_rate: float = 0.9, **fields: Any) -> list[BaseEvent]:
    """A run of 100 steps, a second each, with a held-out evaluation at the end."""
    events: list[BaseEvent] = []
    for number in range(100):
        is_late = number >= ONSET
        seconds = float(number) + (number - ONSET) * fields.get("slower", 0.0) * is_late
        gap = LogProbGap(**dict.fromkeys(LogProbGap.model_fields, fields.get("gap", 0.0) * is_late))
        consumed = batch(REWARDS, pass_rate=fields.get("late", pass_rate) if is_late else pass_rate)
        outcome = fields.get("outcome", "updated") if is_late else "updated"
        made: Iterable[BaseEvent] = (consumed, step(logprob_gap=gap, outcome=outcome))
        events += [event.model_copy(update={"step": number + 1, "mono": seconds}) for event in made]
        if is_late and fields.get("lost"):
            lost = RolloutFailed(cause="reward_error", prompt_id="0", error="", completions=8, whole_group=True)
            events += [lost.model_copy(update={"step": number + 1})] * fields["lost"]
    error = math.sqrt(pass_rate * (1 - pass_rate) / 256)
    evaluated = EvaluationCompleted(
        name="held_out", version=100, n=256, failed=0, reward_mean=pass_rate, reward_se=error, pass_rate=pass_rate
    )
    return [*events, evaluated.model_copy(update={"step": 100})]


@pytest.mark.parametrize(
    ("fields", "phrase"),
    [
        ({"pass_rate": 0.7}, "held-out pass rate 0.70 instead of 0.90"),
        ({"late": 0.8}, "training pass rate 0.80 instead of 0.90"),
        ({"slower": 0.5}, "1.5 times as long a step"),
        ({"lost": 64}, "of groups without gradient"),
        ({"outcome": "nonfinite"}, "60 of 60 updates skipped"),
        ({"gap": 0.2}, "log-probs off by 0.20 nats"),
    ],
)
def test_each_kind_of_harm_is_measured_against_the_twin(fields: dict[str, Any], phrase: str):
    found = harm(CASE, run(**fields), run())
    assert any(phrase in one for one in found), found
    assert not harm(CASE, run(), run())
    assert not harm(CASE, run(), run(**fields)) or "pass" in phrase


def test_scores_count_harmful_runs_and_report_the_others_apart():
    right = judged(naming("POL014", ONSET + 5))
    wrong = judged(naming("GEN001", ONSET + 5))
    harmless = judge(CASE, [naming("POL014", ONSET + 5)], STEPS)
    alarmed, quiet = judged(naming("POL014", 3), case=HEALTHY), judged(case=HEALTHY)
    found = score("tocsin", [right, wrong, harmless, alarmed, quiet, quiet])
    assert (found.recall.hits, found.recall.n) == (1, 2)
    assert (found.strict.hits, found.harmless, found.harmless_named) == (1, 1, 1)
    # The harmless dose was named rightly as well; an alarm of a healthy run counts against.
    assert (found.precision.hits, found.precision.n) == (2, 4)
    early = score("tocsin", [judged(naming("POL014", ONSET - 1), naming("POL014", ONSET + 5))])
    assert (early.precision.hits, early.precision.n) == (1, 2)
    assert (found.false_alarms, found.healthy_runs) == (1, 3)
    assert found.delays == (5, 5)
    assert found.healthy_steps == 3 * STEPS + 3 * ONSET


def test_tables_have_a_row_for_everything_and_replace_what_stood_between_the_marks(tmp_path):
    runs = [judged(naming("POL014", ONSET + 5)), judged(naming("GEN001", 9)), judged(case=HEALTHY)]
    lines = summary_lines([score("tocsin", runs)], runs, [])
    assert any(line.startswith("| recall") for line in lines)
    assert "`lr-too-high` | 1 | 2 of 2 | 1 of 2" in fault_table(runs)[2]
    assert len(misses(runs)) == 1
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between(page, ["new"])
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="must have the marks"):
        write_between(page, ["new"])


def test_a_sham_action_is_judged_wherever_a_metric_stands_out():
    events: list[BaseEvent] = []
    for number in range(120):
        fields = {"grad_norm": 0.5 + 0.1 * math.sin(number)}
        for event in (batch(REWARDS), step(**fields)):
            events.append(event.model_copy(update={"seq": len(events) + 1, "step": number + 1, "mono": float(number)}))
    found = [one for one in shams(events) if one.metric == "step_completed.grad_norm"]
    assert found
    assert {one.outcome for one in found} <= {"target_met", "no_effect", "inconclusive", "harmed"}
