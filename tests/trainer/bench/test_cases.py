import json
from dataclasses import replace
from typing import get_args

import pytest

from tocsin.diagnostics.modes import NAMES
from tocsin.diagnostics.rule import MAY_WARN
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.trainer.bench.cases import FAULTS, HELD_BACK, STEPS, Split, cases
from tocsin.trainer.bench.judge import HORIZON
from tocsin.trainer.bench.material import DIGITS, TASKS, Material
from tocsin.trainer.bench.trial import configuration, finished, toml_of

TUNING, TEST = cases("tuning"), cases("test")
INFORM_ONLY = {"POL006", "POL010"}
"""Strict answers of rules that are held to info, which is never counted: they wait for a proof."""


def test_tuning_and_test_share_no_task_and_no_seed_and_differ_in_five_kinds_of_faults():
    assert not {case.material.task for case in TUNING} & {case.material.task for case in TEST}
    assert not {case.material.seed for case in TUNING} & {case.material.seed for case in TEST}
    kinds = {case.kind.name for case in TEST if case.kind} - {case.kind.name for case in TUNING if case.kind}
    assert kinds == HELD_BACK
    assert len(kinds) >= 5


def test_the_test_set_is_large_enough_to_say_something():
    planted = [case for case in TEST if case.kind]
    assert len({case.kind.name for case in planted if case.kind}) >= 20
    assert sum(len(kind.doses) >= 2 for kind in FAULTS) >= 20
    assert len({case.material.seed for case in planted}) == 3
    assert len(TEST) - len(planted) >= 30
    assert len({case.onset for case in planted}) > 10


@pytest.mark.parametrize("split", get_args(Split))
def test_every_case_has_a_name_of_its_own_a_valid_configuration_and_a_twin(split: Split, tmp_path):
    found = cases(split)
    names = [case.name for case in found]
    assert len(set(names)) == len(names)
    for case in found:
        config = configuration(case, tmp_path)
        assert config.seed == case.material.seed
        if case.kind is None:
            assert config.fault is None
            continue
        assert config.fault is not None
        assert (config.fault.name, config.fault.onset_step, config.fault.dose) == (
            case.kind.name,
            case.onset,
            case.dose,
        )
        twin = next(other for other in found if other.name == case.twin)
        assert configuration(twin, tmp_path) == config.model_copy(update={"fault": None})


def test_what_counts_as_right_is_a_rule_that_may_warn_or_says_so():
    may_warn = {rule.code for rule in ALL_RULES if rule.proof in MAY_WARN}
    for kind in FAULTS:
        assert kind.strict & may_warn, f"{kind.name} can never be named"
        assert kind.strict <= may_warn | INFORM_ONLY, kind.name
        assert kind.lenient <= NAMES.keys(), kind.name
        assert not kind.strict & kind.lenient, kind.name
    assert not INFORM_ONLY & may_warn


def test_a_run_counts_as_done_with_the_configuration_that_its_case_has_today(tmp_path):
    case = TEST[0]
    material = tmp_path / "material" / case.material.name
    document = configuration(case, material).model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    place = tmp_path / case.split / case.name.replace("/", "-")
    place.mkdir(parents=True)
    (place / "done.json").write_text(json.dumps({"run": "r", "code": 0, "seconds": 1.0}))
    (place / "run.toml").write_text(toml_of(document))
    assert finished(case, tmp_path) is not None
    moved = tmp_path / "elsewhere"
    (moved / case.split).mkdir(parents=True)
    place.rename(moved / case.split / place.name)
    assert finished(case, moved) is not None
    assert finished(replace(case, changes={**case.changes, "steps": 7}), moved) is None


def test_a_fault_begins_early_enough_to_be_judged():
    assert all(case.onset + HORIZON <= STEPS for case in TEST)


def test_a_material_is_a_function_of_its_name():
    rows, held_out = Material("reverse", 3).rows()
    assert (rows, held_out) == Material("reverse", 3).rows()
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in held_out}
    assert all(row["answer"] == row["prompt"][-2::-1] for row in rows)


def test_lengths_vary_where_they_should():
    tail = [len(row["answer"]) for row in Material("rotate", 3, lengths="long-tail").rows()[0]]
    assert min(tail) == 4
    assert max(tail) > 2 * sorted(tail)[len(tail) // 2]
    rising = [len(row["answer"]) for row in Material("rotate", 3, lengths="rising").rows()[0]]
    assert rising == sorted(rising)
    assert set(rising) == {DIGITS - 1, DIGITS + 1}


def test_every_task_keeps_the_length_and_the_alphabet():
    for task in TASKS.values():
        answer = task("402917")
        assert len(answer) == 6
        assert answer.isdigit()
