"""What a finding has cost since its onset."""

from collections.abc import Iterable

from tests.diagnostics.scenario import diagnostics, started, step, waited
from tests.diagnostics.scripted import scripted
from tocsin.diagnostics.spending import Spending, Spent
from tocsin.schemas.diagnosis import Cost
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, RunContinued, RunPaused, RunResumed


def at(mono: float, event: BaseEvent) -> BaseEvent:
    return event.model_copy(update={"mono": mono})


def spend(events: Iterable[BaseEvent]) -> Spent:
    spending = Spending()
    for event in events:
        spending.update(event)
    return spending.spent


TICK = ClockTicked(idle_s=0.0)


def test_time_is_that_between_events_and_begins_with_the_first():
    assert spend([at(1000.0, TICK), at(1002.0, TICK), at(1001.0, TICK), at(1005.0, TICK)]).seconds == 6.0


def test_pauses_cost_nothing():
    pause, go_on = RunPaused(actor="person:ada"), RunContinued(actor="person:ada", paused_s=90.0)
    spent = spend(
        [
            at(0.0, started()),
            at(10.0, pause),
            at(50.0, TICK),
            at(100.0, go_on),
            # Its waits hold the pause.
            at(104.0, waited(0.1, 0.9, step_s=94.0)),
            at(105.0, waited(0.1, 0.2, step_s=1.0)),
        ]
    )
    assert (spent.seconds, spent.learner_idle_s, spent.sampler_idle_s) == (15.0, 0.1, 0.2)


def test_the_clock_of_another_attempt_starts_anew():
    resumed = RunResumed(checkpoint_step=3, rewound_from_step=5, knobs={}, devices=[], versions={})
    spent = spend([at(5000.0, started()), at(5010.0, TICK), at(20.0, resumed), at(25.0, TICK)])
    assert (spent.seconds, spent.devices) == (15.0, 0)


def test_tokens_without_gradient_are_those_that_were_not_trained_on():
    spent = spend([step(tokens=1200, tokens_trained=900), step(outcome="no_signal", tokens=800, tokens_trained=0)])
    assert (spent.tokens, spent.tokens_without_gradient) == (2000, 1100)


def test_a_finding_says_what_was_spent_since_it_first_held():
    rule = scripted("RWD001", (3, 5), persistence=2)
    steps = [[started(kinds=["cuda", "cuda"])], *([waited(0.5, 0.25), step()] for _ in range(12))]
    fired, resolved = diagnostics(rule, steps)
    # Held first at step 3 of 0.1 s each, and fired one step later.
    assert (fired.started.step, fired.fired.step) == (3, 4)
    assert fired.cost == Cost(
        hours=round(0.1 / 3600, 6),
        tokens=1200,
        tokens_without_gradient=300,
        learner_idle_s=0.5,
        sampler_idle_s=0.25,
        devices=2,
    )
    assert resolved.cost.tokens == 1200 * (resolved.resolved.step - 3)
