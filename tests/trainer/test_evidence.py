"""Why each rule may warn: its fault was planted in a run, and the rule named it.

A rule says so itself, as its `proof`; here is what that word stands for. Most faults are kinds of the benchmark, whose
strict codes are those that name the fault. All others stand in `PLANTED`.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tocsin.diagnostics.rule import MAY_WARN
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.trainer.bench.cases import FAULTS

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault in a run of the tests."""

    by: str
    """What plants it: a fault of `[fault]`, or the configuration."""
    file: str
    test: str
    """The test that trains with it and asks for the rule."""


PLANTED: Final[dict[str, Planted]] = {
    "RWD010": Planted(
        "data whose answers the pattern of a second verifier never matches",
        "test_run_evidence.py",
        "test_a_reward_function_that_gives_nothing_any_more_is_named",
    ),
    "POL005": Planted("recomputed-logprobs", "test_run_evidence.py", "test_recomputed_log_probs_are_named"),
    "POL009": Planted("truncated", "test_run_evidence.py", "test_a_reward_that_is_gone_is_named"),
    "OFF011": Planted("hung-sync", "test_run_faults.py", "test_a_sync_that_hangs_is_named_by_the_clock"),
    "OFF018": Planted("hung-sampler", "test_run_evidence.py", "test_a_sampler_that_hangs_is_named_by_the_clock"),
    "GEN010": Planted(
        "proxy-reward", "test_run_evidence.py", "test_a_reward_that_is_gamed_parts_from_the_held_out_score"
    ),
    "GEN012": Planted(
        "data whose answers the pattern of a second verifier never matches",
        "test_run_evidence.py",
        "test_answers_that_a_verifier_cannot_read_are_named",
    ),
    "GEN014": Planted(
        "a `model.max_length` that some prompts do not fit",
        "test_run_evidence.py",
        "test_prompts_that_do_not_fit_are_named_at_the_start",
    ),
    "SYS001": Planted(
        "a small `microbatch_tokens` on a pretended device",
        "test_run_autotune.py",
        "test_the_feed_reads_cause_warning_change_effect",
    ),
    "SYS008": Planted("slow-sync", "test_run_evidence.py", "test_syncs_that_became_slow_cost_tokens_per_second"),
    "SYS009": Planted(
        "short rows beside a long one in every step",
        "test_run_evidence.py",
        "test_short_rows_beside_a_long_one_are_padding",
    ),
}
"""By code. Codes that the benchmark counts as right leniently are here as well: they only follow from its faults."""


def test_every_rule_that_may_warn_had_its_fault_planted_in_a_run() -> None:
    in_the_benchmark = {code for kind in FAULTS for code in kind.strict}
    may_warn = {rule.code for rule in ALL_RULES if rule.proof in MAY_WARN}
    assert may_warn - in_the_benchmark - PLANTED.keys() == set(), "plant the fault, or lower `proof`"
    assert PLANTED.keys() - may_warn == set(), "in `PLANTED` and not allowed to warn"


@pytest.mark.parametrize("code", PLANTED)
def test_what_is_named_as_evidence_trains_and_asks_for_the_rule(code: str) -> None:
    planted = PLANTED[code]
    module = ast.parse((FOLDER / planted.file).read_text())
    assert "pytestmark = pytest.mark.training" in map(ast.unparse, module.body), "trains nothing"
    tests = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    assert planted.test in tests, f"{planted.file} has no such test"
    test = tests[planted.test]
    assert test.decorator_list == [], "may be skipped"
    asserted = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    assert code in asserted, f"does not ask for {code}"
