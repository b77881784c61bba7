"""The auto-tuner in a closed loop: an engine, the real control door and a stand-in for training."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.scenario import batch, started, step
from tests.diagnostics.scripted import scripted
from tests.trainer.control_room import Loop
from tocsin.diagnostics.autotune import Autotune, Decision, Now
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import EVENTS_FILE, RunWriter
from tocsin.diagnostics.reader import FeedReader, read_events
from tocsin.diagnostics.replay import replay
from tocsin.diagnostics.rule import Proposal, Rule
from tocsin.schemas.actions import ActionRecord, Patch, Verify
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.config import DataConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.control import ControlDoor, Desk
from tocsin.trainer.tuner import Tuner, make_policy

LAUNCHED = Knobs(learning_rate=1e-4)
ALLOW = {"POL014": ["learning_rate"]}
Measure = Callable[[Knobs], dict[str, float]]
"""What training shows under some knobs: the clip fraction and the reward."""


def lower(expect: float = 1e-4, to: float = 5e-5) -> Proposal:
    return Proposal(
        verb="lower-learning-rate",
        title=f"lower learning_rate {expect:g} to {to:g}",
        applicability="review",
        preferred=True,
        patches=(Patch(path="learning_rate", expect=expect, to=to, min=0.0, max=1.0, effective="next_step"),),
        verify=Verify(metric="step_completed.clip_high_frac", operator="<", threshold=0.2, within=20, unit="steps"),
        cooldown_steps=22,
    )


class Simulated:
    """A run whose steps take no time. What the learner would measure is a function of the knobs."""

    def __init__(self, folder: Path, rule: Rule, attempt: int = 1, **autotune: Any) -> None:
        settings = AutotuneConfig.model_validate({"mode": "on", "allow": ALLOW, **autotune})
        config = RunConfig(
            steps=1000,
            model=ModelConfig(path="m"),
            data=DataConfig(train="t"),
            rewards=[RewardConfig(function="exact")],
            knobs=LAUNCHED,
            autotune=settings,
        )
        self.folder, self.attempt = folder, attempt
        self.writer = RunWriter(folder, "run")
        self.engine = Engine([rule])
        self.waiting: list[BaseEvent] = []
        self.loop = Loop(self.waiting.append, LAUNCHED)
        self.loop.position.step = 0
        self.tuner = Tuner(config, folder, attempt, self.engine, self.waiting.append)
        desk = Desk(
            folder=folder, attempt=attempt, launched=LAUNCHED, emit=self.waiting.append, stop=lambda request: None
        )
        self.door = ControlDoor(desk)
        self.door._loop = self.loop
        self.take(started(learning_rate=1e-4))

    def take(self, event: BaseEvent) -> None:
        """The way of an event through the monitor."""
        position = self.loop.position
        envelope = {"attempt": self.attempt, "ts": "2026-01-31T12:00:00.000Z", "mono": float(position.step)}
        at = {"step": position.step, "config_generation": position.config_generation}
        written = self.writer.event(event.model_copy(update={**envelope, **at}))
        records = self.engine.observe(written)
        for record in records:
            self.writer.record(record)
        self.tuner.see(written, records)
        while self.waiting:
            self.take(self.waiting.pop(0))

    def train(self, to_step: int, measure: Measure) -> None:
        position = self.loop.position
        while position.step < to_step:
            self.door.poll()
            self.door.at_barrier()
            while self.waiting:
                self.take(self.waiting.pop(0))
            shown = measure(self.loop.knobs)
            wobble = position.step % 2
            passes = round(8 * shown["reward"]) + wobble
            generation = [position.config_generation] * 16
            self.take(batch([[1.0] * passes + [0.0] * (8 - passes)] * 16, config_generation=generation))
            position.step += 1
            self.take(step(clip_high_frac=shown["clip"] + 0.02 * wobble))

    def feed(self, *, coverage: bool = False) -> list[Any]:
        records = FeedReader(self.folder).page(_beginning(self.folder), limit=1000).records
        return [record for record in records if coverage or isinstance(record, Diagnostic | ActionRecord)]

    def actions(self) -> list[tuple[str, str]]:
        return [(record.state, record.note) for record in self.feed() if isinstance(record, ActionRecord)]

    def states(self) -> list[str]:
        return [state for state, _ in self.actions()]


def _beginning(folder: Path) -> str:
    return FeedReader(folder).page(limit=1).next_cursor.partition(".")[0] + ".0"


def _content(record: Any) -> Any:
    """A record without what its writing added."""
    return record.model_copy(update={"seq": 0, "run_id": ""})


def rule(*spans: tuple[int, int], **options: Any) -> Rule:
    return scripted("POL014", *spans, proposals=(lower(),), **options)


def named(made: Rule) -> Rule:
    """The rule under the name that its code has."""
    type(made).name = "lr-too-high"
    return made


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Callable[..., Simulated]]:
    """Makes runs, and closes their files."""
    made: list[Simulated] = []

    def make(found: Rule, **settings: Any) -> Simulated:
        made.append(Simulated(tmp_path / "run", named(found), **settings))
        return made[-1]

    yield make
    for run in made:
        run.writer.close()


def cured_by_lowering(knobs: Knobs) -> dict[str, float]:
    return {"clip": 0.6 if knobs.learning_rate > 6e-5 else 0.05, "reward": 0.5}


def harmed_by_lowering(knobs: Knobs) -> dict[str, float]:
    return {"clip": 0.6, "reward": 0.5 if knobs.learning_rate > 6e-5 else 0.125}


def unmoved(knobs: Knobs) -> dict[str, float]:
    return {"clip": 0.6, "reward": 0.5}


Make = Callable[..., Simulated]


def test_the_feed_reads_cause_warning_change_effect(simulated: Make) -> None:
    run = simulated(rule((40, 60)))
    run.train(120, cured_by_lowering)
    story = [(r.record, r.state, r.step if isinstance(r, ActionRecord) else r.last.step) for r in run.feed()]
    assert story == [
        ("diagnostic", "firing", 40),
        ("action", "approved", 40),
        ("action", "applied", 40),
        ("action", "target_met", 48),
        ("action", "rejected", 48),  # the finding holds still, and a change was made just now
        ("diagnostic", "resolved", 60),
    ]
    assert {record.actor for record in run.feed() if isinstance(record, ActionRecord)} == {"autotune"}
    assert run.loop.knobs.learning_rate == 5e-5
    again = replay(read_events(run.folder / EVENTS_FILE), Engine([named(rule((40, 60)))]))
    assert [_content(record) for record in again] == [_content(record) for record in run.feed(coverage=True)]


def test_a_dry_run_changes_nothing_and_says_what_it_would_have_done(simulated: Make) -> None:
    run = simulated(rule((40, 60)), mode="dry-run")
    run.train(120, cured_by_lowering)
    assert run.actions() == [("dry_run", "POL014 lr-too-high: learning_rate 0.0001 -> 5e-05")]
    assert run.loop.knobs == LAUNCHED
    assert not list((run.folder / "control").glob("*.json"))


def test_a_rule_that_is_wrong_is_taken_back_twice_and_then_off_and_a_person_is_asked(simulated: Make) -> None:
    run = simulated(rule((40, 1000)))
    run.train(300, harmed_by_lowering)
    changes = [state for state in run.states() if state not in ("approved", "rejected")]
    assert changes == ["applied", "harmed", "reverted", "applied", "harmed", "reverted", "proposed"]
    assert run.loop.knobs.learning_rate == 1e-4
    assert "the weights keep what they learned meanwhile" in next(n for s, n in run.actions() if s == "reverted")
    assert run.actions()[-1] == ("rejected", "POL014 is off for this run, because its changes were reverted")


def test_an_action_without_effect_is_taken_back(simulated: Make) -> None:
    run = simulated(rule((40, 80)))
    run.train(90, unmoved)
    assert run.states()[:5] == ["approved", "applied", "no_effect", "approved", "reverted"]
    assert run.loop.knobs.learning_rate == 1e-4


def test_another_knob_that_a_person_moves_meanwhile_confounds_and_nothing_is_taken_back(simulated: Make) -> None:
    run = simulated(rule((40, 80)))
    run.train(45, unmoved)
    run.take(KnobChanged(path="temperature", before=1.0, after=0.9, actor="person:ada", effective_step=45))
    run.train(60, unmoved)
    assert [s for s in run.states() if s != "rejected"] == ["approved", "applied", "confounded", "applied"]
    assert run.loop.knobs.learning_rate == 5e-5


class Greedy(Autotune):
    """A policy of a user's that asks for what is not allowed."""

    def decide(self, now: Now) -> list[Decision]:
        """Turn up the temperature, whatever happens."""
        if now.step != 50:
            return []
        patches = (KnobPatch(path="temperature", expect=1.0, to=1.5),)
        return [Decision(kind="apply", code="POL014", diagnostic_id="d", action_id="d/a", patches=patches)]


def test_no_policy_changes_a_knob_that_is_not_allowed(simulated: Make) -> None:
    run = simulated(rule((40, 60)), policy="tests.trainer.test_tuner:Greedy")
    run.train(80, unmoved)
    assert run.actions() == [("rejected", "`autotune` does not allow POL014 to change temperature")]
    assert run.loop.knobs == LAUNCHED


class Sly(Autotune):
    """A policy that does not say what the action that it asks for changes, and calls it that of another rule."""

    def decide(self, now: Now) -> list[Decision]:
        """Ask for the action of the finding that is open at step 50."""
        action = "lr-too-high/learner#1/lower-learning-rate"
        return [Decision(kind="apply", code="RWD001", diagnostic_id="d", action_id=action)] if now.step == 50 else []


def test_the_knobs_of_an_action_count_whatever_a_policy_says_of_it(simulated: Make) -> None:
    run = simulated(rule((40, 60)), policy="tests.trainer.test_tuner:Sly", allow={"RWD001": ["learning_rate"]})
    run.train(80, unmoved)
    assert run.actions() == [("rejected", "`autotune` does not allow POL014 to change learning_rate")]
    assert run.loop.knobs == LAUNCHED


class Backwards(Autotune):
    """A policy that calls a change of its own the taking back of another."""

    def decide(self, now: Now) -> list[Decision]:
        """Turn up the temperature under the name of an action that nobody took."""
        if now.step != 50:
            return []
        patches = (KnobPatch(path="temperature", to=1.5),)
        return [Decision(kind="revert", code="POL014", diagnostic_id="d", action_id="d/a", patches=patches)]


def test_what_is_called_a_revert_is_held_to_the_same_knobs(simulated: Make) -> None:
    run = simulated(rule((40, 60)), policy="tests.trainer.test_tuner:Backwards")
    run.train(80, unmoved)
    assert run.actions() == [("rejected", "`autotune` does not allow POL014 to change temperature")]
    assert run.loop.knobs == LAUNCHED


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("tests.trainer.test_tuner:Nothing", "must be a class that takes the section"),
        ("no_such_module:Policy", "must be a class that takes the section"),
        ("builtins:dict", "must have `observe` and `decide`"),
    ],
)
def test_a_policy_that_is_none_is_refused_before_the_run(policy: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(AutotuneConfig(policy=policy))


def test_a_resumed_run_knows_what_was_reverted_before_and_acts_on_nothing_of_the_past(simulated: Make) -> None:
    first = simulated(rule((40, 1000)))
    first.train(300, harmed_by_lowering)
    config, emitted = first.tuner._config, list[BaseEvent]()
    engine = Engine([named(rule((40, 1000)))])
    resumed = Tuner(config, first.folder, 2, engine, emitted.append)
    for event in read_events(first.folder / EVENTS_FILE):
        resumed.see(event, engine.observe(event))
    assert (emitted, list((first.folder / "control").glob("*.json"))) == ([], [])
    now = step().model_copy(update={"attempt": 2, "step": 301})
    resumed.see(now, engine.observe(now))
    assert emitted == [], "the feed says already that the rule is off"
