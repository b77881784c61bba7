"""A running run that is changed, paused, saved, stopped and killed through its control door."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.trainer.runs import LiveRun, Recording, start, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.control import Asker, Outcome, ask, ask_set, await_outcome, foresee, look_at, submit
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import CheckpointConfig, EvaluationConfig, RunConfig
from tocsin.schemas.events import (
    CheckpointSaved,
    ControlAnswered,
    KnobChanged,
    QueueSampled,
    RunContinued,
    RunEnded,
    RunPaused,
    RunResumed,
)
from tocsin.schemas.generation import SamplerSampled, WeightsSynced
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

AGENT = Asker(actor="agent:nightwatch", note="a test")
ANSWER_S = 60.0
SETTLED = 4
"""Steps after which a change has reached the groups that are consumed: the bound on staleness is at most 2."""


def endless(policy: TinyPolicy, *, every: int) -> RunConfig:
    """A run that ends only when it is told to, with a checkpoint every so many steps."""
    return tiny_config(
        policy,
        steps=100_000,
        knobs={"in_flight_groups": 4},
        checkpoint=CheckpointConfig(every=every),
        evaluation=EvaluationConfig(every=0, prompts=4),
    )


def change(run: LiveRun, values: Mapping[str, KnobValue], key: str | None = None) -> Outcome:
    """Ask for new knob values and wait until they are in force or refused."""
    look = look_at(run.folder)
    request = ask_set(look, Asker(actor=AGENT.actor, idempotency_key=key), values)
    return await_outcome(run.folder, request, submit(run.folder, request), timeout_s=ANSWER_S)


@dataclass
class Changed:
    """A run that went through every change below, one after the other, and was stopped by `tocsin stop`."""

    code: int
    stderr: str
    recording: Recording
    since: dict[str, int] = field(default_factory=dict)
    """By change: first step that uses it."""
    until: dict[str, int] = field(default_factory=dict)
    """By change: step at which the next change was asked for."""

    def steps(self, name: str) -> list[StepCompleted]:
        """Steps made under a change."""
        return [e for e in self.recording.of(StepCompleted) if self.since[name] < e.step <= self.until[name]]

    def batches(self, name: str) -> list[BatchConsumed]:
        """Batches of steps whose groups were opened under a change."""
        first = self.since[name] + SETTLED
        return [e for e in self.recording.of(BatchConsumed) if first <= e.step < self.until[name]]


CHANGES: dict[str, dict[str, KnobValue]] = {
    "spread": {"skip_zero_spread": False},
    "learner": {"learning_rate": 1.5e-4, "grad_clip": 0.5, "microbatch_tokens": 1024, "entropy_coef": 0.01},
    "sampler": {"temperature": 0.7, "max_completion_tokens": 4, "in_flight_groups": 2},
    "size": {"group_size": 8, "groups_per_step": 6},
    "stale": {"max_staleness": 2, "weight_sync_every": 2},
    "fresh": {"max_staleness": 1, "weight_sync_every": 1},
    "on-policy": {"max_staleness": 0},
}
"""The knobs that this run shows; `test_run_knobs` has those of the loss."""


@pytest.fixture(scope="module")
def changed(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changed]:
    """One run, all changes."""
    folder = tmp_path_factory.mktemp("control")
    config = write_config(endless(tiny_policy, every=0), folder / "run.toml")
    with start("train", config, runs_dir=folder / "runs") as run:
        run.until_step(2)
        seen = Changed(0, "", Recording(run.folder))
        for name, values in CHANGES.items():
            outcome = change(run, values)
            assert outcome.state == "applied", outcome.answer
            seen.since[name] = outcome.effects[-1].step
            run.until_step(seen.since[name] + 2 * SETTLED)
            seen.until[name] = look_at(run.folder).situation.step
        _pause_and_save(run, seen)
        assert tocsin("stop", run.folder, "--yes", "--as", "agent:nightwatch", "--note", "enough", cwd=folder).code == 0
        seen.code, seen.stderr, seen.recording = run.wait(), run.stderr, run.recording()
        yield seen


def _pause_and_save(run: LiveRun, seen: Changed) -> None:
    look = look_at(run.folder)
    for verb in ("pause", "checkpoint", "resume"):
        request = ask(look, AGENT, verb)
        outcome = await_outcome(run.folder, request, submit(run.folder, request), timeout_s=ANSWER_S)
        assert outcome.state == "applied", outcome.answer
        seen.since[verb] = outcome.effects[-1].step
        if verb == "pause":
            time.sleep(1.5)
            assert look_at(run.folder).situation.is_paused
            assert change(run, {"learning_rate": 3e-4}).state == "applied", "a paused run takes changes"
    run.until_step(seen.since["resume"] + 2)


def test_knobs_of_the_learner_are_used_from_the_next_step_on(changed: Changed) -> None:
    before = [e for e in changed.recording.of(StepCompleted) if e.step <= changed.since["learner"]]
    assert {(e.learning_rate, e.grad_clip) for e in before} == {(3e-4, 1.0)}
    steps = changed.steps("learner")
    assert len(steps) >= 2 * SETTLED
    assert {(e.learning_rate, e.grad_clip) for e in steps} == {(1.5e-4, 0.5)}
    assert {e.microbatches.token_budget for e in steps if e.microbatches} == {1024}


def test_groups_without_spread_go_through_the_forward_pass_from_the_next_step_on(changed: Changed) -> None:
    spread = {e.step: e.groups.zero_spread.count(False) for e in changed.recording.of(BatchConsumed)}
    before = [e for e in changed.recording.of(StepCompleted) if e.step <= changed.since["spread"]]
    assert all(e.groups_trained == spread[e.step - 1] for e in before)
    after = changed.steps("spread")
    assert all(e.groups_trained == e.groups == 4 for e in after)
    assert min(spread[e.step - 1] for e in [*before, *after]) < 4, "some group had no spread"


def test_no_more_groups_are_in_flight_than_the_cap_allows(changed: Changed) -> None:
    together = [e for e in changed.recording.of(SamplerSampled) if e.purpose == "train"]
    first, last = changed.since["sampler"] + SETTLED, changed.until["sampler"]
    assert max(e.groups for e in together if e.step <= changed.since["learner"]) == 4
    assert max(e.groups for e in together if first <= e.step < last) == 2


def test_knobs_of_the_sampler_are_used_by_what_it_generates_next(changed: Changed) -> None:
    first = changed.since["sampler"] + SETTLED
    rows = [row for row in changed.recording.rollouts() if first <= row["step"] < changed.until["sampler"]]
    assert {round(row["temperature"], 3) for row in rows} == {0.7}
    assert all(e.finish_reasons == {"length": 16} for e in changed.batches("sampler"))
    assert all(e.length.max == 4 for e in changed.batches("sampler"))


def test_group_size_and_groups_per_step_change_whole_steps_and_nothing_waits_for_ever(changed: Changed) -> None:
    sizes = [(len(e.groups.size), set(e.groups.size)) for e in changed.recording.of(BatchConsumed)]
    assert sizes[0] == (4, {4})
    assert {(num, *size) for num, size in sizes} == {(4, 4), (6, 8)}, "a step is opened with one shape and keeps it"
    assert all(len(e.groups.size) == 6 for e in changed.batches("size"))


def test_staleness_and_sync_interval_go_up_together_and_down_again_without_standing_still(changed: Changed) -> None:
    assert {e.max_staleness for e in changed.batches("stale")} == {2}
    assert max(max(e.groups.staleness) for e in changed.batches("stale")) == 2
    first, last = changed.since["stale"] + SETTLED, changed.until["stale"]
    versions = [e.version for e in changed.recording.of(WeightsSynced) if first <= e.version <= last]
    assert {after - before for before, after in pairwise(versions)} == {2}
    assert max(max(e.groups.staleness) for e in changed.batches("on-policy")) == 0


def test_groups_carry_the_config_generation_that_they_were_asked_for_under(changed: Changed) -> None:
    generation = next(e for e in changed.recording.of(KnobChanged) if e.path == "groups_per_step").config_generation
    assert {g for e in changed.batches("size") for g in e.groups.config_generation} == {generation}


def test_every_change_names_its_request_and_its_asker(changed: Changed) -> None:
    answers = {e.request_id: e for e in changed.recording.of(ControlAnswered) if e.verb == "set"}
    assert {e.state for e in answers.values()} == {"accepted"}
    changes = changed.recording.of(KnobChanged)
    assert {e.actor for e in changes} == {"agent:nightwatch"}
    assert [e.config_generation for e in changes] == list(range(1, len(changes) + 1))
    for event in changes:
        assert event.request_id is not None
        answer = answers[event.request_id]
        assert event.path in {patch.path for patch in answer.patches}
        assert answer.mono <= event.mono


def test_a_paused_run_makes_no_step_takes_changes_and_goes_on(changed: Changed) -> None:
    (paused,) = changed.recording.of(RunPaused)
    (went_on,) = changed.recording.of(RunContinued)
    assert paused.step == went_on.step == changed.since["pause"]
    assert went_on.paused_s > 1.5
    between = [e for e in changed.recording.events if paused.seq < e.seq < went_on.seq]
    assert not [e for e in between if isinstance(e, StepCompleted)]
    (taken,) = [e for e in between if isinstance(e, KnobChanged)]
    after = next(e for e in changed.recording.of(StepCompleted) if e.seq > went_on.seq)
    assert (taken.after, after.learning_rate) == (3e-4, 3e-4)
    assert after.seconds["total"] < went_on.paused_s, "a pause is not a part of a step"
    assert "paused by agent:nightwatch" in changed.stderr


def test_a_checkpoint_is_written_when_it_is_asked_for(changed: Changed) -> None:
    saved = changed.recording.of(CheckpointSaved)[0]
    assert saved.step == changed.since["checkpoint"] == changed.since["pause"]


def test_stop_ends_the_run_with_a_checkpoint_as_sigterm_does(changed: Changed) -> None:
    assert changed.code == 143
    ended = changed.recording.events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.error) == ("interrupted", None)
    assert changed.recording.of(CheckpointSaved)[-1].step == ended.step
    assert "agent:nightwatch asked to stop: enough" in changed.stderr


def test_no_group_went_missing_on_the_way(changed: Changed) -> None:
    assert {e.ledger.balance() for e in changed.recording.of(QueueSampled)} == {0}
    consumed = [index for e in changed.recording.of(BatchConsumed) for index in e.groups.group_index]
    assert consumed == list(range(len(consumed)))


def test_a_request_that_was_accepted_and_not_carried_out_when_the_run_was_killed_is_lost_and_can_be_repeated(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    config = endless(tiny_policy, every=2)
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        run.until_step(4)
        run.component("sampler").suspend()
        _until_it_stands_still(run)
        request = ask_set(look_at(run.folder), Asker(actor=AGENT.actor, idempotency_key="k"), {"grad_clip": 0.5})
        outcome = await_outcome(run.folder, request, submit(run.folder, request), timeout_s=2)
        assert outcome.state == "accepted"
        run.process.kill()
        run.wait()
        folder = run.folder
    with start("train", "--resume", folder, runs_dir=tmp_path / "runs") as again:
        again.until_event(lambda event: isinstance(event, RunResumed))
        again.until_event(lambda event: event.attempt == 2 and isinstance(event, StepCompleted))
        with pytest.raises(Refused, match="`attempt` must be 2, got 1"):
            foresee(look_at(folder), request)
        assert change(again, {"grad_clip": 0.5}, key="k").state == "applied"
        assert tocsin("stop", folder, "--yes", cwd=tmp_path).code == 0
        assert again.wait() == 143
    recording = Recording(folder)
    lost = [e for e in recording.of(ControlAnswered, attempt=2) if e.request_id == request.id]
    assert [(e.state, e.idempotency_key) for e in lost] == [("refused", "k")]
    assert lost[0].reason.startswith("lost: the run was killed before it was carried out")
    assert [e.attempt for e in recording.of(KnobChanged)] == [2]


def _until_it_stands_still(run: LiveRun) -> None:
    before = -1
    while (now := look_at(run.folder).situation.step) != before:
        before = now
        time.sleep(1)
