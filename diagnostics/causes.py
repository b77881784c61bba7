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
    Pair("OFF010", "POL008", "the distance to a sampler that stands still grows with each step"),
    Pair("OFF010", "POL009", "the learner is steered by a policy that no longer is its own"),
    Pair("OFF018", "OFF011", "a sampler that hangs in its batch takes no weights"),
    Pair("OFF018", "OFF016", "nothing is generated for the learner while a worker hangs"),
    Pair("OFF018", "SYS011", "a run that stands still reaches no checkpoint"),
    Pair("OFF011", "SYS011", "a run that waits for a weight sync reaches no checkpoint"),
    Pair("SYS003", "SYS002", "memory that is kept or cut into pieces is missing for the next step"),
    Pair("SYS010", "SYS011", "a checkpoint that does not fit is not written"),
    Pair("SYS014", "OFF010", "a resume that sends other weights leaves the sampler with them"),
    Pair("SYS014", "POL002", "without its moments the optimizer takes steps that scatter the mass over all tokens"),
    Pair("SYS014", "POL014", "without its moments the optimizer takes steps several times too large"),
    Pair("OFF011", "OFF016", "a sampler that waits for weights generates nothing for the learner"),
    Pair("OFF013", "OFF004", "keys and values of old weights give other log-probs than the learner's"),
    Pair(
        "OFF014", "OFF001", "the oldest token of a completion that spans many versions is as old as the span at least"
    ),
    Pair("SYS004", "OFF016", "a server that computes its work twice delivers it late"),
    Pair("SYS006", "OFF016", "every step waits for the slowest server"),
    Pair("OFF001", "OFF004", "old weights give other log-probs than the learner's"),
    Pair("OFF001", "POL003", "the older a sample, the further its ratio is from one"),
    Pair("OFF004", "POL003", "a ratio that begins away from one meets the clip sooner"),
    Pair("OFF004", "POL010", "a wrong ratio scales the gradient of its token"),
    Pair("OFF004", "POL009", "biased ratios push the policy in a direction that no reward asked for"),
    Pair("POL014", "POL003", "updates that are too large carry the ratio out of the trust region"),
    Pair("POL014", "POL001", "updates that are too large put all mass on a few tokens"),
    Pair("POL014", "POL009", "updates that are too large destroy what the policy knew"),
    Pair("POL014", "RWD001", "a policy that updates destroyed fails every prompt, so its groups have no spread"),
    Pair("POL014", "GEN001", "updates that are too large leave a policy that no longer ends its completions"),
    Pair("POL014", "POL002", "updates that are too large scatter the mass over all tokens"),
    Pair("POL014", "POL006", "updates that are too large leave the reference behind"),
    Pair("POL014", "POL008", "an update that is too large moves the policy too far at once"),
    Pair("OFF001", "POL002", "updates from old data push mass to tokens that nothing supports any more"),
    Pair("OFF004", "POL002", "biased ratios push mass to tokens that no reward asked for"),
    Pair("OFF010", "POL002", "the learner follows samples of a policy that no longer is its own"),
    Pair("POL006", "POL002", "a policy far from its reference has lost what kept its language together"),
    Pair("POL008", "POL002", "one step too far leaves the region in which the policy knows anything"),
    Pair("POL008", "POL009", "one step too far undoes many good ones"),
    Pair("POL015", "POL005", "updates that are skipped leave every ratio where it was"),
    Pair("POL002", "GEN001", "a policy that dissolves no longer ends its completions"),
    Pair("POL002", "GEN005", "a policy that dissolves writes noise"),
    Pair("POL002", "POL009", "a policy that dissolves earns nothing"),
    Pair("POL007", "POL006", "a reference that is another model is far away from the start"),
    Pair("OFF004", "POL006", "biased updates lead away from everything, the reference included"),
    Pair("POL006", "GEN010", "a policy far from its reference fits what is trained on and nothing else"),
    Pair("RWD013", "POL008", "advantages of full size for a spread that is noise make the step too long"),
    Pair("OFF001", "POL008", "the older the data, the more updates lie between them and the weights"),
    Pair("POL012", "RWD015", "without a gradient nothing is learned"),
    Pair("RWD012", "POL011", "rewards out of scale make gradients that are always clipped"),
    Pair("OFF010", "OFF005", "ratios to weights that never arrive scatter more with every step"),
    Pair("OFF001", "OFF005", "the older the tokens, the more their ratios scatter"),
    Pair("OFF004", "OFF005", "a mismatch scatters the ratios of all tokens"),
    Pair("OFF006", "OFF005", "ratios that were cut differ by what the filters took away"),
    Pair("OFF006", "RWD006", "a filter that leaves one likely token at each place makes copies"),
    Pair("OFF006", "OFF004", "a filter on one side gives the same tokens other log-probs"),
    Pair("OFF001", "OFF019", "batches of one old policy ask for the same change again"),
    Pair("OFF019", "POL010", "changes that are asked for twice add up to more than either wanted"),
    Pair("OFF019", "POL009", "changes that are asked for twice carry the policy past what earns a reward"),
    Pair("OFF005", "POL010", "a few tokens with enormous ratios make the gradient"),
    Pair("OFF005", "POL009", "an update that a few tokens decide goes where no reward asked for"),
    Pair("POL010", "POL015", "a gradient that explodes overflows"),
    Pair("POL010", "POL009", "one huge update undoes many good ones"),
    Pair("POL015", "POL003", "ratios of a model with non-finite values mean nothing"),
    Pair("POL015", "POL009", "a model with non-finite values samples noise"),
    Pair("POL003", "POL001", "a clip that cuts rises only keeps unlikely tokens unlikely"),
    Pair("POL001", "RWD001", "completions without variety get the same reward"),
    Pair("GEN001", "RWD001", "cut completions all fail the same way"),
    Pair("RWD002", "RWD001", "groups that fail as a whole have no spread"),
    Pair("RWD002", "RWD004", "where nothing passes, side rewards are all that differs"),
    Pair("RWD002", "POL009", "prompts that cannot be solved earn nothing"),
    Pair("RWD006", "RWD001", "copies of one completion get one reward"),
    Pair("RWD010", "GEN009", "a function that always answers the same leaves the decision to the others"),
    Pair("RWD011", "RWD004", "a side reward that outweighs the rest teaches in groups without a pass, too"),
    Pair("RWD011", "RWD002", "a policy that is trained on something else no longer passes"),
    Pair("RWD011", "RWD010", "a policy that is trained on something else never earns what it gave up"),
    Pair("RWD011", "GEN009", "the policy is trained on what makes its advantages"),
    Pair("RWD011", "GEN001", "a side reward that pays for more text lets completions run into the limit"),
    Pair("RWD011", "GEN003", "a side reward that counts tokens makes completions longer"),
    Pair("RWD011", "GEN004", "a side reward that counts tokens makes completions shorter"),
    Pair("RWD011", "POL009", "a policy that is trained on something else loses what the task paid for"),
    Pair("RWD011", "GEN010", "a side reward is earned in training and counts for nothing on held-out prompts"),
    Pair("RWD004", "GEN009", "groups without a right answer teach everything but the answer"),
    Pair("RWD004", "GEN010", "what is learned without right answers does not carry over"),
    Pair("RWD012", "POL010", "one reward out of scale makes the gradient of its step"),
    Pair("RWD012", "RWD013", "one reward out of scale makes the spread of all other groups look tiny"),
    Pair("RWD012", "POL009", "a best window that holds a reward out of scale is never reached again"),
    Pair("RWD013", "POL009", "noise at full strength moves the policy away from what it knew"),
    Pair("RWD013", "POL010", "noise at full strength adds to the gradient of every group"),
    Pair("GEN001", "RWD002", "completions that are cut off before the answer do not pass"),
    Pair("GEN001", "GEN012", "what is cut off before the answer holds none"),
    Pair("GEN012", "RWD001", "an answer that nobody can read earns what every other such answer earns"),
    Pair("GEN012", "RWD002", "an answer that nobody can read does not pass"),
    Pair("GEN012", "RWD010", "a verifier that finds no answer gives nothing to any completion"),
    Pair("GEN009", "GEN010", "form that is learned in place of content does not help on held-out prompts"),
    Pair("POL009", "RWD010", "a policy that has collapsed scores nothing with any function", must_precede=True),
    Pair("POL009", "RWD001", "a policy that has collapsed fails whole groups", must_precede=True),
    Pair("GEN001", "POL009", "an answer that is cut off earns nothing"),
    Pair("OFF010", "GEN002", "a sampler with other weights than it claims may run with other settings, too"),
    Pair("GEN002", "GEN001", "what does not stop at its end runs into the limit"),
    Pair("GEN002", "GEN003", "what does not stop at its end grows to the limit"),
    Pair("GEN003", "GEN001", "completions that grow reach the limit"),
    Pair("GEN003", "SYS002", "longer completions need more memory"),
    Pair("GEN004", "POL009", "a policy that says nothing earns nothing"),
    Pair("GEN004", "RWD002", "an answer that was not given passes no prompt"),
    Pair("GEN004", "GEN009", "what is left of a short completion is its form"),
    Pair("POL014", "GEN004", "updates that are too large leave a policy that ends at once"),
    Pair("OFF010", "GEN005", "the learner follows samples of a policy that no longer is its own into noise"),
    Pair("POL015", "GEN005", "a model with non-finite values writes noise"),
    Pair("GEN002", "GEN005", "after its end a model repeats itself"),
    Pair("GEN005", "GEN001", "a loop ends at the limit only"),
    Pair("GEN005", "POL009", "a policy that loops earns nothing"),
    Pair("POL002", "GEN006", "a policy that dissolves mixes scripts"),
    Pair("POL006", "GEN006", "a policy far from its reference forgets in which language to answer"),
    Pair("GEN011", "RWD005", "completions without a reward leave smaller groups"),
    Pair("GEN011", "RWD001", "groups that lost completions have less spread"),
    Pair("GEN011", "GEN015", "a reward function that runs out of time is waited for"),
    Pair("GEN011", "OFF016", "for what is lost, the learner waits until it is generated again"),
    Pair("RWD001", "RWD015", "groups without spread teach nothing"),
    Pair("RWD010", "RWD015", "a reward that answers the same to everything teaches nothing"),
    Pair("OFF010", "RWD015", "a sampler that keeps its weights shows nothing of what is learned"),
    Pair("POL001", "RWD015", "a policy that no longer explores finds nothing better"),
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
