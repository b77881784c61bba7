"""What a rule of another package must declare and may answer: what is odd costs that rule, and no other."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.diagnostics.scenario import run, started
from tests.diagnostics.scripted import proposal, quiet_steps, scripted
from tocsin.diagnostics.catalogue import describe, document
from tocsin.diagnostics.engine import Engine, Record
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.vetting import declared
from tocsin.schemas.diagnosis import Cause, Coverage, Diagnostic, Evidence, NotEvaluated
from tocsin.schemas.step import StepCompleted

EVIDENCE = Evidence(
    metric="step_completed.loss", observed=1.0, operator=">", threshold=0.5, window=1, window_unit="steps", n=1
)
CAUSE = Cause(text="chance", weight=0.5, check="look again")
FINDING = Finding(severity="warning", summary="1 is more than 0.5", evidence=(EVIDENCE,))
TIMING = Timing(unit="steps", window=1, warm_up=0, persistence=1, clear_persistence=2)


@dataclass(frozen=True, kw_only=True)
class Sound(Rule):
    """Holds always."""

    code, name, title = "XAC001", "x-sound", "Always holds"
    kind, proof, where = "fault", "injected", "learner"
    reads, trigger, timing = ("step_completed.loss",), StepCompleted, TIMING
    rising = (("low", "high"),)
    causes = (CAUSE,)
    answer: ClassVar[Callable[[], Any]] = staticmethod(lambda: FINDING)

    low: float = threshold(1, "A bound")
    high: float = threshold(2, "Another bound")

    def check(self, features, *, is_open) -> Answer:
        answer: Answer = self.answer()
        return answer


def odd(**changes: Any) -> type[Rule]:
    """The sound rule with other class variables."""
    return type("Odd", (Sound,), {"__doc__": Sound.__doc__, **changes})


def answering(answer: Callable[[], object]) -> Rule:
    """The sound rule with another answer."""
    return odd(answer=staticmethod(answer))()


def told(records: list[Record], code: str) -> list[tuple[str, str]]:
    return [
        (record.state, record.severity) for record in records if isinstance(record, Diagnostic) and record.code == code
    ]


def test_a_sound_rule_is_taken_listed_and_heard():
    rule = declared(Sound, {})
    assert describe(rule)["code"] in document(rule)
    assert told(run(Engine([rule]), quiet_steps(3)), "XAC001") == [("firing", "warning")]


ODD_DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "title of two lines": ({"title": "one\ntwo"}, "`title` must be one line"),
    "title that a terminal obeys": ({"title": "\x1b[31mred"}, "`title` must be one line"),
    "title that turns text around": ({"title": "a\u202eb"}, "`title` must be one line"),
    "title that is no text": ({"title": 5}, "Odd: `title`: Input should be a valid string"),
    "title that is computed": ({"title": property(lambda self: "t")}, "Odd: `title`: Input should be a valid string"),
    "huge name": ({"name": "x-" + "a" * 99}, "Odd: `name`: String should have at most 60"),
    "huge component": ({"where": "a" * 99}, "Odd: `where`: String should have at most 60"),
    "code with a line end": ({"code": "XAC001\n"}, "Odd: `code`: String should match pattern"),
    "own labels": ({"labels": property(lambda self: {"n": 1})}, "`labels` must be left as `Rule` has it"),
    "own checks": ({"__post_init__": lambda self: None}, "`__post_init__` must be left as `Rule` has it"),
    "own thresholds": ({"thresholds": classmethod(lambda cls: {})}, "`thresholds` must be left as `Rule` has it"),
    "window of text": ({"timing": replace(TIMING, window="9")}, "`timing.window`: Input should be a valid integer"),
    "negative window": ({"timing": replace(TIMING, window=-1)}, "`timing.window`: Input should be greater than"),
    "endless window": ({"timing": replace(TIMING, window=10**400)}, "`timing.window` must be a number of 64 bits"),
    "odd unit": ({"timing": replace(TIMING, unit="moons")}, "`timing.unit`: Input should be 'completions'"),
    "constant reminders": ({"timing": replace(TIMING, reminder_every=0)}, "`timing.reminder_every`: Input should be"),
    "never absent": ({"timing": replace(TIMING, absent_after=0)}, "`timing.absent_after`: Input should be"),
    "negative silence": ({"timing": replace(TIMING, silent_after=-1)}, "`timing.silent_after`: Input should be"),
    "half a reopening": ({"timing": replace(TIMING, reopen_within=0.5)}, "`timing.reopen_within`: Input should be"),
    "timing of something else": ({"timing": SimpleNamespace(**vars(TIMING))}, "`timing`: Input should be an instance"),
    "no causes": ({"causes": ()}, "Odd: `causes`: Tuple should have at least 1 item"),
    "causes that run out": ({"causes": (c for c in [CAUSE])}, "Odd: `causes`: Input should be a valid tuple"),
    "unvalidated cause": (
        {"causes": (CAUSE.model_copy(update={"weight": "much"}),)},
        "Odd.causes.0: `weight`: Input should be a valid number",
    ),
    "cause of two lines": (
        {"causes": (CAUSE.model_copy(update={"text": "a\nb"}),)},
        "`causes.0.text` must be one line",
    ),
    "hundred causes": ({"causes": (CAUSE,) * 100}, "`causes` must have at most 50 entries"),
    "reads what is not there": ({"reads": ("step_completed.lost",)}, "metric must name a field of `step_completed`"),
    "reads a text": ({"reads": "step_completed.loss"}, "Odd: `reads`: Input should be a valid tuple"),
    "no trigger": ({"trigger": None}, "`trigger` must be a class of"),
    "rises by a name that is none": (
        {"rising": (("low", "lower"),)},
        "`rising` must have tuples of names of thresholds",
    ),
    "rises by letters": ({"rising": ("low", "high")}, "Odd: `rising.0`: Input should be a valid tuple"),
    "no docstring": ({"__doc__": None}, "must have a docstring, which"),
    "blank docstring": ({"__doc__": " \n "}, "must have a docstring, which"),
    "docstring that a terminal obeys": ({"__doc__": "Holds.\n\x1b[2J"}, "must have a docstring of at most"),
    "endless docstring": ({"__doc__": "Holds. " * 9999}, "must have a docstring of at most"),
    "not a dataclass": ({"more": threshold(1, "More")}, "must be decorated with `@dataclass"),
    "number that is no threshold": ({"__annotations__": {"more": float}, "more": 1.0}, "must be made by `threshold("),
    "threshold of text": (
        {"__annotations__": {"more": float}, "more": threshold("1", "More")},  # type: ignore[arg-type]
        "Odd.more: `default`: Input should be a valid number",
    ),
    "threshold of two lines": (
        {"__annotations__": {"more": float}, "more": threshold(1, "More\nor less")},
        "`text` must be one line",
    ),
    "threshold without a lower end": (
        {"__annotations__": {"more": float}, "more": threshold(1, "More", low=-math.inf)},
        "Odd.more: `low`: Input should be a finite number",
    ),
}


@pytest.mark.parametrize("fault", ODD_DECLARATIONS)
def test_what_is_declared_wrongly_is_refused_with_one_line(fault: str):
    changes, reason = ODD_DECLARATIONS[fault]
    kind = odd(**changes)
    if "__annotations__" in changes:
        kind = dataclass(frozen=True, kw_only=True)(kind)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the reason is compared below
        declared(kind, {})
    assert reason in str(refused.value)
    assert type(refused.value) is ValueError
    assert "\n" not in str(refused.value).strip()


def with_evidence(**changes: object) -> Finding:
    return replace(FINDING, evidence=(EVIDENCE.model_copy(update=changes),))


def with_proposal(**changes: Any) -> Finding:
    return replace(FINDING, proposals=(replace(proposal(), **changes),))


def with_verify(**changes: object) -> Finding:
    verify = proposal().verify
    assert verify is not None
    return with_proposal(verify=verify.model_copy(update=changes))


def with_patch(**changes: object) -> Finding:
    return with_proposal(patches=(proposal().patches[0].model_copy(update=changes),))


def raises(error: BaseException) -> Answer:
    raise error


class Panic(BaseException):
    """As compiled extensions raise it, outside `Exception`."""


class Loose(Finding):
    """A finding that checks nothing of itself."""

    def __post_init__(self) -> None:
        pass


ODD_ANSWERS: dict[str, Callable[[], object]] = {
    "exits": lambda: raises(SystemExit(3)),
    "is cancelled": lambda: raises(asyncio.CancelledError()),
    "panics": lambda: raises(Panic()),
    "error with an odd name": lambda: raises(type("E\x1b\n" + "x" * 500, (Exception,), {})()),
    "text": lambda: "bad",
    "true": lambda: True,
    "summary of two lines": lambda: replace(FINDING, summary="one\ntwo"),
    "summary that a terminal obeys": lambda: replace(FINDING, summary="\x1b]0;owned\x07"),
    "summary with C1": lambda: replace(FINDING, summary="a\x9b31mb"),
    "summary with half a character": lambda: replace(FINDING, summary="a\ud800"),
    "summary that is no text": lambda: replace(FINDING, summary=["a"]),  # type: ignore[arg-type]
    "long summary": lambda: Loose(severity="info", summary="a" * 161, evidence=(EVIDENCE,)),
    "no evidence": lambda: Loose(severity="info", summary="a", evidence=()),
    "severity of its own": lambda: replace(FINDING, severity="fatal"),  # type: ignore[arg-type]
    "severity in capitals": lambda: replace(FINDING, severity="WARNING"),  # type: ignore[arg-type]
    "severity that is no text": lambda: replace(FINDING, severity=["info"]),  # type: ignore[arg-type]
    "evidence that is no evidence": lambda: replace(FINDING, evidence=(1,)),  # type: ignore[arg-type]
    "much evidence": lambda: replace(FINDING, evidence=(EVIDENCE,) * 99),
    "metric of two lines": lambda: with_evidence(metric="a\nb"),
    "huge metric": lambda: with_evidence(metric="a" * 1000),
    "unit that a terminal obeys": lambda: with_evidence(unit="\x1b[1m"),
    "operator of its own": lambda: with_evidence(operator="~"),
    "observed text": lambda: with_evidence(observed="much"),
    "negative window": lambda: with_evidence(window=-1),
    "endless window": lambda: with_evidence(window=10**5000),
    "window in moons": lambda: with_evidence(window_unit="moons"),
    "evidence with nothing": lambda: replace(FINDING, evidence=(Evidence.model_construct(),)),
    "cause that is no cause": lambda: replace(FINDING, causes=("chance",)),  # type: ignore[arg-type]
    "cause of two lines": lambda: replace(FINDING, causes=(CAUSE.model_copy(update={"check": "a\nb"}),)),
    "cause with a weight of 2": lambda: replace(FINDING, causes=(CAUSE.model_copy(update={"weight": 2.0}),)),
    "cause without a number": lambda: replace(FINDING, causes=(CAUSE.model_copy(update={"weight": math.nan}),)),
    "proposal that is none": lambda: replace(FINDING, proposals=("ask",)),  # type: ignore[arg-type]
    "verb with a slash": lambda: with_proposal(verb="raise/lower"),
    "verb of nothing": lambda: with_proposal(verb=""),
    "verb of two lines": lambda: with_proposal(verb="raise\n"),
    "verb twice": lambda: replace(FINDING, proposals=(look("ask", "ask one"), look("ask", "ask another"))),
    "title of two lines": lambda: with_proposal(title="lower\nit"),
    "reason of two lines": lambda: with_proposal(disabled="not\nnow"),
    "applicability of its own": lambda: with_proposal(applicability="sure"),
    "negative cooldown": lambda: with_proposal(cooldown_steps=-1),
    "verified by nothing": lambda: with_verify(threshold=math.nan),
    "verified by infinity": lambda: with_verify(threshold=math.inf),
    "verified never": lambda: with_verify(within=0),
    "verified in two lines": lambda: with_verify(unit="ste\nps"),
    "knob that does not exist": lambda: with_patch(path="temprature"),
    "knob of two lines": lambda: with_patch(path="a\nb", effective="restart"),
    "knob set to NaN": lambda: with_patch(to=math.nan),
    "knob set to text": lambda: with_patch(to="low"),
    "patch without an end": lambda: with_patch(max=math.inf),
    "effective at some time": lambda: with_patch(effective="soon"),
    "detail of two lines": lambda: not_evaluated("warm_up", "not\nyet"),
    "detail that a terminal obeys": lambda: NotEvaluated(reason="warm_up", detail="\x1b[2J"),
    "huge detail": lambda: not_evaluated("warm_up", "a" * 1000),
    "detail that is no text": lambda: NotEvaluated.model_construct(reason="warm_up", detail=5),
    "reason of its own": lambda: NotEvaluated.model_construct(reason="tired", detail="a"),
    "reason without a detail": lambda: NotEvaluated.model_construct(reason="warm_up"),
}


@pytest.mark.parametrize("fault", ODD_ANSWERS)
def test_what_is_no_answer_is_an_error_of_that_rule_and_every_other_goes_on(fault: str):
    others = scripted("RWD001", (1, 9)), scripted("XAD001", (1, 9))
    engine = Engine([others[0], answering(ODD_ANSWERS[fault]), others[1]])
    records = run(engine, [[started()], *quiet_steps(4)])
    assert [told(records, code) for code in ("RWD001", "XAC001", "XAD001")] == [
        [("firing", "warning")],
        [],
        [("firing", "warning")],
    ]
    (last,) = [record for record in records if isinstance(record, Coverage)][-1:]
    assert last.not_evaluated["XAC001"].reason == "error"
    assert last.not_evaluated["XAC001"].detail.isprintable()
    assert len(last.not_evaluated["XAC001"].detail) < 200
    assert last.health == "degraded"
    assert engine.pending() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_whoever_ends_the_process_is_not_taken_for_an_error_of_a_rule(error: type[BaseException]):
    with pytest.raises(error):
        run(Engine([answering(lambda: raises(error()))]), quiet_steps(1))


def test_no_attribute_of_a_rule_keeps_its_answers_from_being_vetted():
    automatic = replace(FINDING, proposals=(replace(proposal(), applicability="automatic"),))
    kind = odd(is_added=False, answer=staticmethod(lambda: automatic))
    (first, *_) = [r for r in run(Engine([declared(kind, {})]), quiet_steps(3)) if isinstance(r, Diagnostic)]
    assert [action.applicability for action in first.actions] == ["review"]


def test_what_is_unusual_and_sound_is_not_refused():
    finding = replace(
        with_evidence(observed={"nonfinite": "nan"}, unit="\N{GREEK SMALL LETTER MU}s"),
        summary="r\u00e9compense\u00a0: \u5831\u916c is 1 \N{GRINNING FACE}",
        causes=(),
        proposals=(look("ask", "ask"), proposal(), Proposal(verb="more-2", title="more", applicability="advisory")),
    )
    (first, *_) = [r for r in run(Engine([answering(lambda: finding)]), quiet_steps(3)) if isinstance(r, Diagnostic)]
    assert first.summary == finding.summary
    assert [action.id for action in first.actions] == [
        f"x-sound/learner#1/{verb}" for verb in ("ask", "lower-learning-rate", "more-2")
    ]


def test_an_answer_that_is_made_anew_each_time_is_no_news():
    engine = Engine([answering(lambda: NotEvaluated(reason="missing_input", detail="no loss"))])
    covered = [record for record in run(engine, quiet_steps(40)) if isinstance(record, Coverage)]
    assert len(covered) <= 2
