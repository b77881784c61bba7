"""Base models and the number type that every record uses.

Writers are strict: a model built in code forbids unknown fields.
Readers are lenient: `read(adapter, line)` ignores them, so that a 1.0 reader reads a 1.9 file.
"""

import math
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    model_validator,
)

SCHEMA_VERSION: Final = "1.0.0"
"""Semantic version of every schema in this package. Minor releases only add."""

T = TypeVar("T")


class Model(BaseModel):
    """Frozen and strict; field docstrings become descriptions in the JSON Schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )


class NonFinite(Model):
    """A measured value that is not a finite number. It is information, so it is never dropped."""

    nonfinite: Literal["nan", "inf", "-inf"]

    @model_validator(mode="before")
    @classmethod
    def _from_float(cls, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            name = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
            return {"nonfinite": name}
        return value


Number = Annotated[FiniteFloat | NonFinite, Field(union_mode="left_to_right")]
"""A measured field. Construct it from any float; NaN and infinities become `NonFinite`."""

Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]
"""A share between 0 and 1."""

Count = Annotated[int, Field(ge=0)]
"""A number of things."""

Seconds = Annotated[FiniteFloat, Field(ge=0)]
"""A duration from the monotonic clock."""

PositiveSeconds = Annotated[FiniteFloat, Field(gt=0)]
"""A limit or an interval of the configuration."""

Timestamp = Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z)?$")]
"""UTC, fixed width, `2026-01-31T12:00:00.000Z`: the order of the text is the order of time."""


def is_finite(value: "Number | None") -> bool:
    """Whether `value` was measured and is a finite number."""
    return isinstance(value, float | int)


def as_float(value: "Number | None") -> float:
    """`value` as a float: NaN when it was not measured, the non-finite float when it was not finite."""
    if value is None:
        return math.nan
    if isinstance(value, NonFinite):
        return float(value.nonfinite)
    return value


def read(adapter: TypeAdapter[T], line: str | bytes) -> T:
    """Parse one JSON record as a lenient reader: unknown fields are ignored.

    Raises `pydantic.ValidationError` when the line is not JSON or a known field has a wrong type.
    """
    return adapter.validate_json(line, extra="ignore")
