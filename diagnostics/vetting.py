"""What is asked of a rule of another package: of its declaration once, and of each of its answers.

Rules of ours are proved by tests. Those of others come unseen, so what could stop the engine, or pass for something of
ours, is turned away here. A rule that is turned away says why and costs nobody else anything.
"""

import dataclasses
import inspect
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from tocsin.diagnostics.readings import metric
from tocsin.diagnostics.rule import Answer, Finding, Proof, Proposal, Rule, Timing, not_evaluated
from tocsin.schemas.actions import Patch, Verify
from tocsin.schemas.base import Model
from tocsin.schemas.config import describe_errors
from tocsin.schemas.diagnosis import Cause, Evidence, Kind, NotEvaluated
from tocsin.schemas.events import EVENT_TYPES
from tocsin.schemas.knobs import LIMITS, unknown_knob

LONGEST_TEXT: Final = 400
"""Characters of any text in a record."""
LONGEST_DOCUMENTATION: Final = 20_000
"""Characters of a docstring."""
MOST_ITEMS: Final = 50
"""Entries of any list in a record."""
LARGEST_INTEGER: Final = 2**63 - 1
"""Readers in other languages have no larger one."""
OURS: Final = ("labels", "value", "thresholds", "__post_init__")
"""What a rule must not override: the engine and every listing rely on it."""

AnyModel = TypeVar("AnyModel", bound=Model)


class Declaration(Model):
    """The class variables of a rule that another package adds."""

    code: Annotated[str, Field(pattern=r"^X[A-Z]{2}\d{3}$")]
    """`X`, two letters of the package's own, three digits: no code of ours begins with X."""
    name: Annotated[str, Field(pattern=r"^x-[a-z0-9][a-z0-9-]*$", max_length=60)]
    """`x-` and what is wrong in words: no name of ours begins so."""
    title: Annotated[str, Field(min_length=1, max_length=120)]
    kind: Kind
    proof: Proof
    """The word of the package's author, shown with the name of the package."""
    where: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=60)]
    reads: Annotated[tuple[str, ...], Field(min_length=1)]
    timing: Timing
    rising: tuple[tuple[str, ...], ...]
    causes: Annotated[tuple[Cause, ...], Field(min_length=1)]


class DeclaredThreshold(Model):
    """What `threshold(...)` says about a field."""

    default: FiniteFloat
    text: str
    low: FiniteFloat
    high: float
    unit: str


def declared(kind: type[Rule], taken: Mapping[str, str]) -> Rule:
    """The rule of a class, once what it declares is found to be right. `taken` has codes and names in use with whose
    they are.

    Raises `ValueError`, one line; whatever else the class raises, it raises itself.
    """
    own = {name: getattr(kind, name) for name in Declaration.model_fields if hasattr(kind, name)}
    found = _validated(Declaration, own, kind.__name__)
    for position, cause in enumerate(found.causes):
        _validated(Cause, vars(cause), f"{kind.__name__}.causes.{position}")
    _fit(vars(found))
    for path in found.reads:
        metric(path)
    trigger = getattr(kind, "trigger", None)
    if trigger not in EVENT_TYPES.values():
        raise ValueError(f"`trigger` must be a class of `tocsin.schemas.events.EVENTS`, got {trigger!r}")
    for name in OURS:
        if inspect.getattr_static(kind, name) is not inspect.getattr_static(Rule, name):
            raise ValueError(f"`{name}` must be left as `Rule` has it")
    _check_documentation(kind)
    _check_thresholds(kind, found.rising)
    for word in (found.code, found.name):
        if word in taken:
            raise ValueError(f"`{word}` is taken by {taken[word]}")
    return kind()


def _check_documentation(kind: type[Rule]) -> None:
    text = kind.__doc__
    # Without one, a dataclass says its signature.
    if not isinstance(text, str) or not text.strip() or text.startswith((f"{kind.__name__}(", "(")):
        raise ValueError("must have a docstring, which is what `tocsin explain` prints")
    lines = inspect.cleandoc(text).split("\n")
    if len(text) > LONGEST_DOCUMENTATION or not all(map(_is_visible, lines)):
        raise ValueError(
            f"must have a docstring of at most {LONGEST_DOCUMENTATION} characters without control characters"
        )


def _check_thresholds(kind: type[Rule], rising: Iterable[Iterable[str]]) -> None:
    if any(isinstance(item, dataclasses.Field) for item in vars(kind).values()):
        raise ValueError("must be decorated with `@dataclass(frozen=True, kw_only=True)`, or has no thresholds")
    items = {item.name: item for item in dataclasses.fields(kind)}
    for name, item in items.items():
        if not item.metadata:
            raise ValueError(f"field `{name}` must be made by `threshold(...)`")
        values = {"default": item.default, **item.metadata}
        said = _validated(DeclaredThreshold, values, f"{kind.__name__}.{name}")
        _fit({"text": said.text, "unit": said.unit})
    for name in (name for names in rising for name in names):
        if name not in items:
            raise ValueError(f"`rising` must have tuples of names of thresholds, got `{name}`")


_FINDING: Final = TypeAdapter(Finding)
_PROPOSAL: Final = TypeAdapter(Proposal)


def vetted(answer: Answer) -> Answer:
    """The answer of an added rule, fit for a record. An action of applicability `automatic` becomes `review`: only a
    trial on planted faults shows that one helps. Raises `ValueError` or `TypeError`, inside the boundary that protects
    the engine from the rule.
    """
    if answer is None:
        return None
    if isinstance(answer, NotEvaluated):
        why = not_evaluated(answer.reason, answer.detail)
        _fit(why)
        return why
    if not isinstance(answer, Finding):
        raise TypeError(f"answer must be a finding, `not_evaluated(...)` or None, got a {type(answer).__name__}")
    proposals = tuple(_vetted(proposal) for proposal in answer.proposals)
    if len({proposal.verb for proposal in proposals}) < len(proposals):
        raise ValueError("`verb` must differ between the proposals of a finding: it is the name of the action")
    found = _FINDING.validate_python({**vars(answer), "proposals": proposals})
    evidence = tuple(_again(Evidence, item) for item in found.evidence)
    causes = None if found.causes is None else tuple(_again(Cause, item) for item in found.causes)
    found = replace(found, evidence=evidence, causes=causes)
    _fit(found)
    return found


def _vetted(proposal: Proposal) -> Proposal:
    found = _PROPOSAL.validate_python(vars(proposal))
    patches = tuple(_again(Patch, patch) for patch in found.patches)
    verify = None if found.verify is None else _again(Verify, found.verify)
    if verify is not None:
        metric(verify.metric)
    for patch in patches:
        if patch.effective != "restart" and patch.path not in LIMITS:
            raise ValueError(unknown_knob(patch.path))
    found = replace(found, patches=patches, verify=verify)
    return replace(found, applicability="review") if found.applicability == "automatic" else found


def _again(kind: type[AnyModel], item: AnyModel) -> AnyModel:
    """`item`, validated whatever it was made by: `model_copy` and `model_construct` validate nothing."""
    return kind.model_validate(item.model_dump(warnings=False))


def _validated(kind: type[AnyModel], values: Mapping[str, Any], source: str) -> AnyModel:
    try:
        return kind.model_validate(values, strict=True)
    except ValidationError as error:
        lines = describe_errors(error.errors(), source=source)
        raise ValueError("; ".join(lines.splitlines())) from None


def _fit(item: object, where: str = "") -> None:
    """Raises `ValueError` for what a log, a terminal or a reader of JSON does not bear, at any depth. Types are right
    already."""
    fault = _fault(item)
    if fault is not None:
        raise ValueError(f"`{where}` must {fault}")
    for name, part in _parts(item):
        _fit(part, f"{where}.{name}".lstrip("."))


def _fault(item: object) -> str | None:
    if isinstance(item, str) and (len(item) > LONGEST_TEXT or not _is_visible(item)):
        return f"be one line of at most {LONGEST_TEXT} characters without control characters"
    if isinstance(item, float) and not math.isfinite(item):
        return f"be a finite number, got {item}"
    if isinstance(item, int) and abs(item) > LARGEST_INTEGER:
        return "be a number of 64 bits"
    if isinstance(item, tuple | list) and len(item) > MOST_ITEMS:
        return f"have at most {MOST_ITEMS} entries, got {len(item)}"
    return None


def _parts(item: object) -> Iterable[tuple[object, object]]:
    if isinstance(item, tuple | list):
        return enumerate(item)
    if item is None or isinstance(item, str | int | float):
        return ()
    return (item if isinstance(item, Mapping) else vars(item)).items()


def _is_visible(text: str) -> bool:
    """Whether a terminal shows `text` and obeys nothing in it; blanks of other scripts are fine."""
    return text.isprintable() or all(char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
