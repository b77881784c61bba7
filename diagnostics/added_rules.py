"""Rules that other packages add through the entry-point group `tocsin.rules`, and the engine of a run.

    [project.entry-points."tocsin.rules"]
    short-answers = "my_rules:ShortAnswers"

An entry point names a class derived from `Rule` that needs no arguments. `docs/custom_rules.md` says what it must
declare; `vetting` holds it to that. A rule that cannot be loaded is left out, and coverage says so: it never stops a
run. Packages are looked for once per process, when somebody first asks for their rules, never in the engine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.render import clean
from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import OF_OTHERS, tuned
from tocsin.diagnostics.vetting import declared
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.diagnosis import NotEvaluated

GROUP: Final = "tocsin.rules"
LONGEST_REASON: Final = 300
"""Characters of the line that says why a rule is left out."""


@dataclass(frozen=True)
class Added:
    """What other packages add. Without arguments: nothing."""

    rules: tuple[Rule, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    """Name and version of the package by rule code."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """What was left out, as `package:entry point`, and why, in one line."""

    def lines(self) -> list[str]:
        """One line for people about each rule that was left out."""
        return [f"rule {name} is left out: {reason}" for name, reason in self.refused.items()]


@cache
def added() -> Added:
    """What the packages of this environment add."""
    return collect(entry_points(group=GROUP))


def collect(points: Iterable[EntryPoint]) -> Added:
    """The rules behind entry points, in the order of their packages and names, and what was left out."""
    rules, packages, refused, taken = list[Rule](), dict[str, str](), dict[str, str](), dict[str, str]()
    for point in sorted(points, key=lambda point: (_package(point), point.name)):
        try:
            rule = declared(_class(point), taken)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # protects the run and every command from a package of somebody else
            refused[clean(f"{_package(point)}:{point.name}")] = _reason(point, error)
            continue
        rules.append(rule)
        packages[rule.code] = clean(f"{_package(point)} {point.dist.version}" if point.dist else _package(point))
        taken |= dict.fromkeys((rule.code, rule.name), f"`{point.value}` of {packages[rule.code]}")
    return Added(tuple(rules), packages, refused)


def engine_for(config: DiagnosticsConfig, extra: Added) -> Engine:
    """The engine that a configuration asks for. Raises `ValueError` for a rule or threshold that does not exist."""
    left_out = {
        name: NotEvaluated(reason="error", detail="the rule cannot be loaded; `tocsin rules` says why")
        for name in extra.refused
    }
    rules = (*ALL_RULES, *extra.rules)
    return Engine(rules, disable=config.disable, thresholds=config.thresholds, left_out=left_out)


def without_absent(config: DiagnosticsConfig, extra: Added) -> DiagnosticsConfig:
    """`config` without settings that no added rule takes here: a run can be read where its packages are missing, or are
    of another version, whose thresholds may have other names and ranges."""
    here = {word.lower(): rule for rule in extra.rules for word in (rule.code, rule.name)}

    def is_of_others(word: str) -> bool:
        return OF_OTHERS.fullmatch(word.strip()) is not None

    disable = [word for word in config.disable if not is_of_others(word) or word.strip().lower() in here]
    thresholds = {word: values for word, values in config.thresholds.items() if not is_of_others(word)}
    theirs = dict[str, dict[str, float]]()
    for word in filter(is_of_others, config.thresholds):
        rule = here.get(word.strip().lower())
        if rule is not None:
            known = {name: value for name, value in config.thresholds[word].items() if name in rule.thresholds()}
            theirs.setdefault(rule.code, {}).update(known)
    thresholds |= {rule.code: theirs[rule.code] for rule in extra.rules if _takes(rule, theirs.get(rule.code))}
    return config.model_copy(update={"disable": disable, "thresholds": thresholds})


def _takes(rule: Rule, values: Mapping[str, float] | None) -> bool:
    """Whether there are values and the rule can be evaluated with all of them."""
    try:
        return bool(values) and tuned(rule, values or {}) is not None
    except ValueError:
        return False


def _class(point: EntryPoint) -> type[Rule]:
    loaded: Any = point.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Rule)):
        raise ValueError(f"`{point.value}` must be a class derived from `tocsin.diagnostics.rule.Rule`")
    return loaded


def _reason(point: EntryPoint, error: BaseException) -> str:
    """Why a rule is left out, in one line of bounded length that a terminal can show."""
    try:
        said = str(error)
    except Exception:  # protects the run from an error of somebody else that cannot say what it is
        said = "(no message)"
    text = said if type(error) is ValueError else f"`{point.value}` raised {type(error).__name__}: {said}"
    line = clean(" ".join(text[: 10 * LONGEST_REASON].split()))
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."


def _package(point: EntryPoint) -> str:
    return (point.dist.name if point.dist else None) or "unknown"
