"""Which finding explains which: the allow-list of direct causes, and the links between what is open.

Only pairs in `PAIRS` hide anything, and only while the cause itself fires as a fault of at least a warning and began
no later than its consequence. A chain holds link by link: each of its findings must be firing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.diagnostics.evaluation import Watch
from tocsin.diagnostics.lifecycle import graver
from tocsin.diagnostics.rule import Rule
from tocsin.schemas.diagnosis import Reason, Relation, Severity

ONSET_TOLERANCE: Final = 20
"""Optimizer steps by which a cause may seem to begin after its consequence: windows see an onset late."""
WAIT: Final = 8
"""Evaluations for which a finding waits for a cause that is pending, so that the cause is reported first."""
GRACE: Final = 20
"""Evaluations for which a finding may outlast its cause, whose window may be the shorter one."""
NEVER_HIDDEN: Final = frozenset({"POL009", "POL015", "SYS002", "OFF010"})
"""Reward collapse, non-finite numbers, memory near its end, weights that did not arrive."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A direct cause of a consequence."""

    cause: str
    consequence: str
    why: str
    must_precede: bool = False
    """Whether the cause must have been reported before the consequence began: for pairs whose findings may also begin
    together without one being the cause of the other."""


PAIRS: Final[tuple[Pair, ...]] = (
    Pair("OFF010", "OFF001", "a sampler that keeps old weights makes samples that grow older with each step"),
    Pair("OFF010", "OFF004", "sampler and learner compute with different weights"),
    Pair("OFF010", "POL009", "the learner is steered by a policy that no longer is its own"),
    Pair("OFF001", "OFF004", "old weights give other log-probs than the learner's"),
    Pair("OFF001", "POL003", "the older a sample, the further its ratio is from one"),
    Pair("OFF004", "POL003", "a ratio that begins away from one meets the clip sooner"),
    Pair("OFF004", "POL010", "a wrong ratio scales the gradient of its token"),
    Pair("OFF004", "POL009", "biased ratios push the policy in a direction that no reward asked for"),
    Pair("POL014", "POL003", "updates that are too large carry the ratio out of the trust region"),
    Pair("POL014", "POL001", "updates that are too large put all mass on a few tokens"),
    Pair("POL014", "POL009", "updates that are too large destroy what the policy knew"),
    Pair("POL014", "RWD001", "a policy that updates destroyed fails every prompt, so its groups have no spread"),
    Pair("POL014", "GEN001", "a policy that dissolves (POL002, without a rule) no longer ends its completions"),
    Pair("POL010", "POL015", "a gradient that explodes overflows"),
    Pair("POL010", "POL009", "one huge update undoes many good ones"),
    Pair("POL015", "POL003", "ratios of a model with non-finite values mean nothing"),
    Pair("POL015", "POL009", "a model with non-finite values samples noise"),
    Pair("POL003", "POL001", "a clip that cuts rises only keeps unlikely tokens unlikely"),
    Pair("POL001", "RWD001", "completions without variety get the same reward"),
    Pair("GEN001", "RWD001", "cut completions all fail the same way"),
    Pair("POL009", "RWD001", "a policy that has collapsed fails whole groups", must_precede=True),
    Pair("GEN001", "POL009", "an answer that is cut off earns nothing"),
)
"""Direct edges between built-in faults; lint and efficiency findings explain nothing and are left out."""


def in_causal_order(rules: Sequence[Rule]) -> list[Rule]:
    """`rules` with every cause before its consequences, otherwise in the order given.

    Raises `ValueError` for pairs that form a circle.
    """
    missing = {rule.code: {p.cause for p in PAIRS if p.consequence == rule.code} for rule in rules}
    left, ordered = list(rules), list[Rule]()
    while left:
        waiting = {rule.code for rule in left}
        ready = next((rule for rule in left if not missing[rule.code] & waiting), None)
        if ready is None:
            raise ValueError(f"pairs of cause and consequence must form no circle, got one among {sorted(waiting)}")
        left.remove(ready)
        ordered.append(ready)
    return ordered


class Links:
    """Who explains whom at present. Asked and told by the engine, once per evaluation."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        by_code = {watch.rule.code: watch for watch in watches}
        self._causes: dict[str, list[Watch]] = {code: [] for code in by_code}
        self._consequences: dict[str, list[Watch]] = {code: [] for code in by_code}
        self._preceding = {(pair.cause, pair.consequence) for pair in PAIRS if pair.must_precede}
        for pair in PAIRS:
            if pair.cause in by_code and pair.consequence in by_code:
                self._causes[pair.consequence].append(by_code[pair.cause])
                self._consequences[pair.cause].append(by_code[pair.consequence])

    def explainer(self, watch: Watch, onset: int) -> Watch | None:
        """The open cause that explains a finding which began at step `onset`.

        Among causes that began at about the same time it is the one that the rule ranks first.
        """
        causes = self._causes[watch.rule.code]
        found = [cause for cause in causes if _explains(cause) and self._began_in_time(cause, watch, onset)]
        if not found:
            return None
        first = min(map(_onset, found))
        weights = {cause.code: cause.weight for cause in watch.causes}
        together = [cause for cause in found if _onset(cause) <= first + ONSET_TOLERANCE]
        return min(together, key=lambda cause: (-weights.get(cause.rule.code, 0.0), _onset(cause)))

    def _began_in_time(self, cause: Watch, watch: Watch, onset: int) -> bool:
        """Whether an open cause is old enough to explain what began at step `onset`."""
        if (cause.rule.code, watch.rule.code) in self._preceding:
            return _fired(cause) <= onset
        return _onset(cause) <= onset + ONSET_TOLERANCE

    def waits(self, watch: Watch, onset: int) -> bool:
        """Whether `watch`, about to fire, should wait for a cause that is pending. Counts the evaluations."""
        if watch.rule.code in NEVER_HIDDEN or watch.waited >= WAIT:
            return False
        code = watch.rule.code
        causes = [cause for cause in self._causes[code] if (cause.rule.code, code) not in self._preceding]
        is_coming = any(_may_come(cause) and _onset(cause) <= onset + ONSET_TOLERANCE for cause in causes)
        watch.waited += is_coming
        return is_coming

    def fired(self, watch: Watch) -> list[tuple[Watch, Reason]]:
        """Links of a finding that fired or grew graver; the records that this makes due, its own first."""
        if watch.explainer is None:
            watch.explainer = self.explainer(watch, _onset(watch))
        due: list[tuple[Watch, Reason]] = []
        if _explains(watch):
            for other in self._consequences[watch.rule.code]:
                if other.track.is_open and other.explainer is None and self.explainer(other, _onset(other)) is watch:
                    other.explainer = watch
                    due.append((other, "explained"))
        return due

    def review(self, watch: Watch) -> Reason | None:
        """Whether an open finding that outlasts its cause is explained by another one, or by none any more."""
        if watch.explainer is None or not watch.track.is_open:
            return None
        if _explains(watch.explainer):
            watch.outlasted = 0
            return None
        watch.outlasted += 1
        other = self.explainer(watch, _onset(watch))
        if other is None and watch.outlasted < GRACE:
            return None
        watch.outlasted = 0
        watch.explainer = other
        return "unexplained" if other is None else "explained"

    def inherit(self, watch: Watch) -> list[Watch]:
        """Give the severity of `watch` to what explains it, link by link; who became graver by it."""
        raised = []
        while watch.explainer is not None and watch.explainer.track.is_open:
            above, below = watch.explainer.track.episode, watch.track.episode
            assert above is not None, "an open cause has an episode"
            assert below is not None, "an open consequence has an episode"
            if graver(above.severity, below.severity) != above.severity:
                watch.explainer.track.inherit(below.severity)
                raised.append(watch.explainer)
            watch = watch.explainer
        return raised

    def relations(self, watch: Watch) -> list[Relation]:
        """What explains `watch`, then what it explains."""
        found = [] if watch.explainer is None else [Relation(kind="explained_by", id=watch.explainer.id)]
        for other in self._consequences[watch.rule.code]:
            if other.explainer is watch and other.track.is_open:
                found.append(Relation(kind="explains", id=other.id))
        return found

    def is_suppressed(self, watch: Watch) -> bool:
        """Whether readers know of a cause that stands for `watch`: not while somebody silences it."""
        cause = watch.explainer
        if cause is None or watch.rule.code in NEVER_HIDDEN:
            return False
        is_told = cause.told is not None and cause.told.id == cause.id
        return is_told or self.is_suppressed(cause)


def _fired(watch: Watch) -> int:
    """Step at which what is open was first reported."""
    episode = watch.track.episode
    assert episode is not None, "asked only about findings that are open"
    assert episode.fired is not None, "what is open has fired"
    return episode.fired.step


def _onset(watch: Watch) -> int:
    """Step at which the condition of what is open, or else pending, first held."""
    episode = watch.track.episode if watch.track.is_open else watch.track.candidate
    assert episode is not None, "asked only about findings that hold"
    return episode.started.step


def _explains(cause: Watch) -> bool:
    episode = cause.track.episode
    return cause.track.is_open and episode is not None and _is_grave(cause, episode.severity)


def _may_come(cause: Watch) -> bool:
    candidate = cause.track.candidate
    return candidate is not None and _is_grave(cause, candidate.severity)


def _is_grave(cause: Watch, severity: Severity) -> bool:
    return cause.rule.kind == "fault" and severity != "info"
