"""A replay from the file says what the live run said."""

import math

import numpy as np

from tests.diagnostics.scenario import batch, memory, numbered, started, step
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.replay import replay
from tocsin.schemas.base import read
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, KnobChanged, RunEnded


def eventful() -> list[BaseEvent]:
    """A run in which rewards turn constant, memory lies idle and a NaN turns up."""
    rng = np.random.default_rng(7)
    steps: list[list[BaseEvent]] = [[started(kinds=("simulated",))]]
    for t in range(60):
        rewards = (rng.random((16, 8)) < 0.6).astype(float) if t < 20 or t > 40 else np.full((16, 8), 0.5)
        steps.append([batch(rewards.tolist()), memory(0.3), step(loss=math.nan if t == 30 else 0.1)])
    steps.append([KnobChanged(path="microbatch_tokens", before=4096, after=8192, actor="agent:a", effective_step=60)])
    steps.append([RunEnded(outcome="completed")])
    return numbered(steps)


def test_a_replay_of_the_written_lines_equals_the_live_records() -> None:
    events = eventful()
    engine = Engine()
    live = [record for event in events for record in engine.observe(event)]
    lines = [event.model_dump_json(exclude_none=True) for event in events]
    again = list(replay((read(EVENT, line) for line in lines), Engine()))
    assert [record.model_dump_json() for record in again] == [record.model_dump_json() for record in live]
    assert {"RWD001", "POL015", "SYS001"} <= {record.code for record in live if record.record == "diagnostic"}


def test_an_event_of_a_newer_version_passes_through() -> None:
    event = read(EVENT, '{"type": "moon_phase_observed", "seq": 1, "run_id": "r", "phase": "full"}')
    records = list(replay([event], Engine()))
    assert [record.record for record in records] == ["coverage"]
