import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.records import parse, violations
from tocsin.schemas.base import NonFinite, as_float, is_finite, read
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.events import EVENT, EvaluationCompleted, MetricsLogged


def logged(value: float) -> MetricsLogged:
    return MetricsLogged(source="test", metrics={"reward": value})


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_value_that_is_not_finite_is_written_as_its_name(value: float, name: str):
    assert parse(logged(value).model_dump_json())["metrics"] == {"reward": {"nonfinite": name}}


@given(st.floats())
def test_any_float_survives_json_without_becoming_a_nan_token_or_null(value: float):
    line = logged(value).model_dump_json(exclude_none=True)
    record = parse(line)
    assert record["metrics"]["reward"] is not None
    assert violations(record, "event") == []
    event = read(EVENT, line)
    assert isinstance(event, MetricsLogged)
    back = as_float(event.metrics["reward"])
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.lists(st.floats(), min_size=4, max_size=4))
def test_every_measured_field_of_a_nested_record_holds_what_was_measured(values: list[float]):
    mean, p50, p95, highest = values
    spread = Quantiles(mean=mean, p50=p50, p95=p95, max=highest)
    parsed = parse(spread.model_dump_json())
    for written, value in zip(parsed.values(), values, strict=True):
        assert (written == value) if math.isfinite(value) else (written["nonfinite"] == str(value))


def test_null_stands_for_not_measured_and_never_for_nan():
    event = EvaluationCompleted(
        name="held-out", version=0, n=0, failed=0, reward_mean=math.nan, reward_se=math.nan, pass_rate=math.nan
    )
    record = parse(event.model_dump_json())
    assert record["reward_mean"] == record["pass_rate"] == {"nonfinite": "nan"}
    assert record["pass_rate_se"] is None


def test_the_json_schema_refuses_null_in_a_field_that_is_always_measured():
    record = parse(logged(0.5).model_dump_json())
    record["metrics"]["reward"] = None
    assert len(violations(record, "event")) == 1


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_a_nan_token_is_no_json_and_a_lenient_reader_still_takes_it_for_what_it_means(token: str):
    line = logged(0.5).model_dump_json().replace("0.5", token)
    with pytest.raises(ValueError, match="is not a JSON number"):
        parse(line)
    event = read(EVENT, line)
    assert isinstance(event, MetricsLogged)
    assert isinstance(event.metrics["reward"], NonFinite)


def test_only_the_three_names_stand_for_a_number():
    with pytest.raises(ValidationError, match="nonfinite"):
        NonFinite.model_validate({"nonfinite": "NaN"})


def test_finite_means_measured_and_finite():
    assert [is_finite(value) for value in (0.0, 1, None, NonFinite(nonfinite="inf"))] == [True, True, False, False]


def test_a_number_as_a_float_is_nan_when_it_was_not_measured():
    assert math.isnan(as_float(None))
    assert math.isnan(as_float(NonFinite(nonfinite="nan")))
    assert as_float(NonFinite(nonfinite="-inf")) == -math.inf
    assert as_float(0.25) == 0.25
