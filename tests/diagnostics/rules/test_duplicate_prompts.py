"""RWD007: copies in the data, a broken order, and epochs without an end."""

from tests.diagnostics.rules.several_rewards import evaluated
from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.duplicate_prompts import DuplicatePrompts
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.setup import RunSetup

RULE = DuplicatePrompts()
MIXED = [[1.0, 0.0] * 4] * 16


def of(prompts: list[list[str]]) -> list[list[BaseEvent]]:
    """One step per element; the sequence of groups goes on from step to step."""
    steps: list[list[BaseEvent]] = []
    for number, ids in enumerate(prompts):
        index = list(range(16 * number, 16 * number + 16))
        steps.append([batch(MIXED, prompt_id=ids, group_index=index), step()])
    return steps


def prompts(steps: int, *, rows: int, copies: int = 1) -> list[list[str]]:
    """Rows in order, epoch after epoch; `copies` rows in a row have the same content."""
    numbers = [[(16 * t + i) % rows for i in range(16)] for t in range(steps)]
    return [[f"{row}-{row // copies:08x}" for row in step] for step in numbers]


def launched(rows: int) -> list[BaseEvent]:
    return [started(setup=RunSetup(train_prompts=rows), groups_per_step=16)]


def test_names_a_content_that_stands_in_several_rows() -> None:
    found = diagnostics(RULE, of(prompts(40, rows=4096, copies=4)))
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert found[0].summary == "128 of 128 different prompts stand in more than one row, 3-00000000 for instance"


def test_the_boundary_of_an_epoch_is_no_copy() -> None:
    assert transitions(RULE, [launched(200), *of(prompts(60, rows=200))]) == []


def test_one_copy_in_twenty_is_allowed_and_one_more_is_not() -> None:
    ids = [f"{row}-{row % 487 if row < 512 else row:08x}" for row in range(512)]  # 25 of 487 contents in two rows
    steps = [ids[16 * t : 16 * t + 16] for t in range(32)]
    assert [reason for _, reason in transitions(RULE, of([*steps, *steps]))] == ["fired"]
    assert transitions(DuplicatePrompts(fire=25 / 487), of([*steps, *steps])) == []


def test_names_an_order_that_takes_one_row_twice_in_a_step() -> None:
    ids = [[*step[:15], step[0]] for step in prompts(60, rows=4096)]
    found = diagnostics(RULE, [launched(4096), *of(ids)])
    assert found[0].summary.startswith("One row came twice within a step in ")
    # With few rows a step has to repeat some.
    assert transitions(RULE, [launched(60), *of([[*step[:15], step[0]] for step in prompts(60, rows=60)])]) == []


def test_more_than_ten_epochs_are_named_while_the_held_out_score_stands_still() -> None:
    flat: list[BaseEvent] = [evaluated(0.6)]
    run = [launched(32), *of(prompts(60, rows=32))]
    assert transitions(RULE, run) == []
    found = diagnostics(RULE, [run[0], flat, flat, *run[1:]])
    assert found[0].summary == "The run is in epoch 18 over 32 prompts, and the held-out score stands still"
    assert transitions(RULE, [run[0], [evaluated(0.6)], [evaluated(0.7)], *run[1:]]) == []


def test_resolves_when_the_rows_differ() -> None:
    later = [[f"{9000 + 16 * t + i}-{9000 + 16 * t + i:08x}" for i in range(16)] for t in range(90)]
    found = transitions(RULE, [launched(4096), *of([*prompts(40, rows=4096, copies=4), *later])])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_needs_512_groups_and_takes_foreign_ids_as_they_are() -> None:
    assert unevaluated(RULE, of(prompts(10, rows=4096))) == ("warm_up", "fewer than 512 groups were seen")
    assert transitions(RULE, of([[str(16 * t + i) for i in range(16)] for t in range(60)])) == []
