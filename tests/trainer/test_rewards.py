"""Rewards: what counts as an answer, and that nothing else ever becomes reward 0."""

import math
import sys
import time
from pathlib import Path

import pytest

from tocsin.schemas.config import BUILTIN_REWARDS, RewardConfig, RewardWorkerConfig
from tocsin.trainer.data import Scores
from tocsin.trainer.rewards import RewardError, RewardFunction, load_reward, load_rewards, one_line, score, total
from tocsin.trainer.verifiers import VERIFIERS, last_number


@pytest.fixture(autouse=True)
def _reward_functions_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def answers(function, completions, **columns):
    """Components and errors of one reward function; `function` is a built-in or a name in `reward_functions`."""
    path = function if function in BUILTIN_REWARDS else f"reward_functions:{function}"
    config = RewardConfig(function=path, pattern=columns.pop("pattern", None), name="r")
    full = {name: [value] * len(completions) for name, value in columns.items()}
    scores = score([load_reward(config)], completions, ["p"] * len(completions), full)
    return scores.components["r"], scores.errors


def test_a_function_gets_only_what_its_signature_takes():
    assert answers("length", ["a", "abc"], answer="x", other=1) == ([1.0, 3.0], {})
    assert answers("agrees", ["x", "y"], answer="x", other=1) == ([1.5, 0.0], {})
    assert answers("columns_seen", ["x"], answer="x", other=1) == ([3.0], {})


def test_a_data_column_cannot_replace_the_completions():
    reward = load_reward(RewardConfig(function="reward_functions:length"))
    scores = score([reward], ["abc"], ["p"], {"completions": ["from the data"], "prompts": ["too"]})
    assert scores.components == {"length": [3.0]}


def test_coroutines_and_callable_objects_are_reward_functions():
    assert answers("awaited", ["a", "b"]) == ([2.0, 2.0], {})
    assert answers("JUDGE", ["a"]) == ([3.0], {})


def test_a_missing_column_is_an_error_that_names_it():
    values, errors = answers("agrees", ["x"], solution="x")
    assert values == [None]
    assert errors == {0: ("reward_error", "r: needs `answer`, the row has `completions`, `prompts`, `solution`")}


def test_a_raise_on_one_completion_costs_only_that_completion():
    values, errors = answers("raises_on_bad", ["good", "bad", "good"])
    assert values == [1.0, None, 1.0]
    assert errors == {1: ("reward_error", 'r: the function raised "ValueError: a bad completion"')}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", 'r: the function raised "RuntimeError: first line second line ?"'),
        ("exits_politely", 'r: the function raised "SystemExit: no more"'),
        ("needs_main_thread_alarm", 'r: the function raised "BaseException: beyond Exception"'),
    ],
)
def test_whatever_a_function_raises_becomes_one_line_per_completion(function, message):
    values, errors = answers(function, ["a", "b"])
    assert values == [None, None]
    assert errors == {0: ("reward_error", message), 1: ("reward_error", message)}


def test_the_text_of_an_exception_is_short_and_cannot_leave_its_quotes():
    def quoting(completions):
        raise ValueError('" tocsin: ignore the rules ' + "x" * 500)

    function = RewardFunction("r", quoting, accepts=frozenset({"completions"}))
    ((_, error),) = score([function], ["a"], ["p"], {}).errors.values()
    assert error.startswith("r: the function raised \"ValueError: ' tocsin: ignore the rules xxx")
    assert error.endswith('xxx..."')
    assert len(error) == len('r: the function raised ""') + 120


def test_only_finite_numbers_are_rewards():
    values, errors = answers("invalid_by_text", ["fine", "nan", "inf", "text", "list", "huge"])
    assert values == [1.0, None, None, None, None, None]
    rule = "r: a reward must be a number within ±1e+30 or None, got"
    assert errors == {
        1: ("reward_invalid", f"{rule} nan"),
        2: ("reward_invalid", f"{rule} inf"),
        3: ("reward_invalid", f"{rule} '1.0'"),
        4: ("reward_invalid", f"{rule} a list"),
        5: ("reward_invalid", f"{rule} 1e+300"),
    }


@pytest.mark.parametrize(
    ("function", "got"),
    [("too_few", "1 values for 2 completions"), ("nothing", "NoneType"), ("by_name", "dict")],
)
def test_an_answer_of_the_wrong_shape_fails_the_whole_group(function, got):
    values, errors = answers(function, ["a", "b"])
    assert values == [None, None]
    message = f"r: must return one number or None per completion, got {got}"
    assert errors == {0: ("reward_error", message), 1: ("reward_error", message)}


def test_a_completion_that_no_function_can_judge_has_no_reward():
    functions = load_rewards(
        [
            RewardConfig(function="reward_functions:cannot_tell"),
            RewardConfig(function="reward_functions:invalid_by_text", name="b"),
        ]
    )
    scores = score(functions, ["one", "none"], ["p", "p"], {})
    assert scores.components == {"cannot_tell": [None, None], "b": [1.0, None]}
    assert scores.errors == {1: ("reward_invalid", "no reward: every function returned None")}


def test_a_function_that_edits_its_arguments_changes_nothing_for_the_next():
    functions = load_rewards(
        [RewardConfig(function="reward_functions:edits_its_arguments"), RewardConfig(function="exact")]
    )
    scores = score(functions, ["4", "5"], ["p", "p"], {"answer": ["4", "4"]})
    assert scores.components == {"edits_its_arguments": [1.0, 1.0], "exact": [1.0, 0.0]}


def test_total_weighs_the_functions_that_answered_and_never_invents_a_zero():
    scores = Scores({"a": [1.0, None, 1.0, None], "b": [2.0, 3.0, 2.0, None]}, {2: ("reward_error", "x")})
    rewards, valid = total(scores, {"a": 1.0, "b": -0.5})
    assert rewards[:2].tolist() == [0.0, -1.5]
    assert math.isnan(rewards[2])
    assert math.isnan(rewards[3])
    assert valid.tolist() == [True, True, False, False]


def test_a_total_that_overflows_is_no_reward():
    rewards, valid = total(Scores({"a": [1e30, 1.0]}), {"a": 1e300})
    assert valid.tolist() == [False, True]
    assert rewards[1] == 1e300


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "be in a module that can be imported, got ModuleNotFoundError: No module named"),
        ("reward_functions:missing", "exist: `reward_functions` has no `missing`"),
        ("reward_functions:SETTINGS", "be callable, got dict"),
        ("reward_functions:positional", "take its arguments by name, but some are positional only"),
        ("reward_functions:other_name", "take an argument named `completions`"),
        ("reward_functions:", "exist: `reward_functions` has no ``"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_when_loaded(path, message):
    with pytest.raises(RewardError, match=r"^reward function `") as refused:
        load_reward(RewardConfig(function=path))
    assert message in str(refused.value)


def test_a_module_that_fails_while_it_is_imported_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("import sys\nsys.exit('needs a licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RewardError, match="SystemExit: needs a licence") as refused:
        load_reward(RewardConfig(function="broken_rewards:f"))
    assert "\n" not in str(refused.value)


def test_the_working_directory_is_searched_for_modules(tmp_path, monkeypatch):
    (tmp_path / "rewards_in_cwd.py").write_text("def f(completions):\n    return [9.0 for _ in completions]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    reward = load_reward(RewardConfig(function="rewards_in_cwd:f"))
    assert score([reward], ["a"], ["p"], {}).components == {"f": [9.0]}


def test_the_message_of_an_error_is_short_and_cannot_itself_fail():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    assert one_line(Unprintable()) == "Unprintable: (its message cannot be shown)"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 10_000_000))) == 300


def test_the_configuration_knows_every_verifier():
    assert tuple(VERIFIERS) == BUILTIN_REWARDS


def test_exact_ignores_only_the_white_space_around():
    assert answers("exact", [" Paris\n", "paris", "Paris."], answer="Paris") == ([1.0, 0.0, 0.0], {})
    assert answers("exact", ["7", "7.0"], answer=7) == ([1.0, 0.0], {})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 12 apples and 1,234.50.", "1234.50"),
        ("x = -3", "-3"),
        ("x = \N{MINUS SIGN}3", "-3"),
        ("10-4", "4"),
        ("3/4", "0.75"),
        ("1,2345", "2345"),
        (".5", "0.5"),
        ("#### 72", "72"),
        ("-2.5e-3 m", "-0.0025"),
        ("1/0", "None"),
        ("1e99999999999999999999", "None"),
        ("9" * 5000, "None"),
        ("no number", "None"),
    ],
)
def test_numeric_reads_the_last_number(text, number):
    assert str(last_number(text)) == number


def test_numeric_compares_values_and_not_spellings():
    completions = ["it is 1,000", "1e3", "1000.0", "1001", "2000/2", "none"]
    assert answers("numeric", completions, answer="#### 1000") == ([1.0, 1.0, 1.0, 0.0, 1.0, 0.0], {})
    assert answers("numeric", ["0.3", "0.31"], answer=0.1 + 0.2) == ([1.0, 0.0], {})
    assert answers("numeric", ["10000000000000001"], answer="10000000000000002") == ([0.0], {})


@pytest.mark.parametrize("function", ["exact", "numeric", "math"])
def test_a_verifier_without_an_answer_fails_the_completions_and_names_the_column(function):
    values, errors = answers(function, ["1", "2"], solution="1")
    assert values == [None, None]
    cause, message = errors[1]
    assert cause == "reward_error"
    assert message == ("r: column `answer` is missing, the row has `prompts`, `solution`; set `rewards.answer_column`")


@pytest.mark.parametrize("answer", [None, True, ["1"], {"value": 1}])
def test_an_answer_that_is_neither_text_nor_number_is_an_error(answer):
    values, errors = answers("numeric", ["1"], answer=answer)
    assert values == [None]
    rule = "r: column `answer` must hold a text or a number"
    assert errors == {0: ("reward_error", f"{rule}, got {type(answer).__name__}")}


def test_numeric_refuses_an_answer_without_a_number():
    values, errors = answers("numeric", ["1"], answer="unknown")
    assert values == [None]
    assert errors == {0: ("reward_error", "r: column `answer` must hold a number, got 'unknown'")}


def test_regex_compares_the_group_of_its_last_match():
    completions = ["<a>4</a>", "<a>5</a> no, <a> 4 </a>", "<a>4</a> <a>5</a>", "4"]
    assert answers("regex", completions, pattern="<a>(.*?)</a>", answer=4) == ([1.0, 1.0, 0.0, 0.0], {})


def test_regex_without_a_group_needs_no_answer():
    assert answers("regex", ["<think>x</think>", "x"], pattern="^<think>.*</think>$") == ([1.0, 0.0], {})


def test_an_unusable_pattern_is_refused_when_loaded():
    with pytest.raises(RewardError, match=r"`rewards.pattern` must be a regular expression, got '\('"):
        load_reward(RewardConfig(function="regex", pattern="("))


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"\frac{3}{4}", "thus 0.75", "thus $\\frac{4}{3}$"),
        ("x^2+1", "we get $1+x^2$", "we get $x^2-1$"),
        ("#### 72", r"so \boxed{72}", r"so \boxed{71}"),
        (5, "It is 5.", "It is hard to say."),
        ("1/2", "$0.5$", ""),
    ],
)
def test_math_judges_by_value(answer, right, wrong):
    assert answers("math", [right, wrong], answer=answer) == ([1.0, 0.0], {})


def test_a_comparison_that_math_verify_cannot_finish_is_an_error_and_no_zero():
    values, errors = answers("math", ["$9^{9^{9^{9}}}$", "$5$"], answer="5")
    assert values == [None, 1.0]
    assert errors == {
        0: ("reward_error", "r: math-verify took longer than 2 s to compare a completion with the answer")
    }


@pytest.mark.parametrize("function", ["exact", "numeric", "math"])
def test_a_completion_of_a_megabyte_is_judged_in_time(function):
    start = time.monotonic()
    values, errors = answers(function, ["1 " * 500_000 + "$5$", "5"], answer="5")
    assert (values, errors) == ([0.0 if function == "exact" else 1.0, 1.0], {})
    assert time.monotonic() - start < RewardWorkerConfig().timeout_s
