"""The sampler against the learner: the same log-probs on a probe, and weights that arrive.

    probe as it is -> disturbed weights -> probe -> learner's own weights again -> probe

A run proves the same two things at its first sync, with weights that it has to send anyway.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from tocsin.diagnostics.proposals import look
from tocsin.schemas.check import Gate
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.trainer.data import Floats, Ints
from tocsin.trainer.digest import digest_of
from tocsin.trainer.gates import fact, finding, gate
from tocsin.trainer.learner import Learner
from tocsin.trainer.messages import Sync, Synced
from tocsin.trainer.weights import Probe, WeightStore

SEED: Final = 20260101
FIRST_DISTURBANCE: Final = 0.05
"""Size of the first disturbance, as a share of the size of each tensor's values."""
DISTURBANCES: Final = 8
"""It is doubled as often, until the probe moves far enough to tell old weights from new ones."""
FAR: Final = 4.0
"""The disturbance must move the probe by this many times the gap that is tolerated."""
FOLLOWED: Final = 0.6
"""Share of the learner's movement that a sampler with new weights shows, as in OFF010."""


class ProbedSampler(Protocol):
    """What is asked of a sampler here, a part of `samplers.Sampler`. Raises `SamplerDied` when there is nobody left."""

    async def probe(self) -> dict[str, Floats]:
        """By process or server, log-probs of the probe under the weights held now."""

    async def sync(self, message: Sync) -> Synced:
        """Take over weights, then the probe."""


@dataclass(frozen=True)
class Proof:
    """Largest differences of log-probs on the probe, in nats."""

    tokens: int
    """Log-probs compared."""
    tolerance: float
    """Largest gap that different rounding explains."""
    at_start: float
    """Sampler as it was found, against the learner."""
    moved: float
    """How far the disturbance moved the learner."""
    followed: float
    """How far the sampler moved when it was sent the disturbed weights."""
    disturbed: float
    """Sampler against the learner, both disturbed."""
    restored: float
    """Sampler against the learner with its own weights again."""

    @property
    def differs(self) -> bool:
        """Whether new weights do arrive, and every comparison is off all the same: the two compute differently."""
        agrees = any(gap <= self.tolerance for gap in (self.at_start, self.disturbed, self.restored))
        return not agrees and self.followed >= FOLLOWED * self.moved


async def prove(sampler: ProbedSampler, learner: Learner, probe_ids: Ints, store: WeightStore) -> Proof:
    """Send weights there and back. The learner holds its own weights afterwards. Raises `SamplerDied`."""
    judge = Probe(learner.config.model.dtype)
    own = learner.probe(probe_ids)
    found = await sampler.probe()
    own_file = _file(learner, store, 0)
    try:
        moved = _disturb(learner, own, probe_ids, own_file.path, far=FAR * judge.ceiling)
        there = learner.probe(probe_ids)
        answer = await sampler.sync(_file(learner, store, 1))
    finally:
        _restore(learner, own_file.path)
    back = await sampler.sync(replace(own_file, version=2))
    return Proof(
        tokens=own.numel(),
        tolerance=judge.ceiling,
        at_start=_gap(own, found),
        moved=moved,
        followed=_moved(found, answer.probes),
        disturbed=_gap(there, answer.probes),
        restored=_gap(own, back.probes),
    )


def _file(learner: Learner, store: WeightStore, version: int) -> Sync:
    """The learner's weights on their way, as a run would send them."""
    is_remote = learner.config.sampler.kind == "vllm"
    path = store.write(version, learner.weights(is_aliased=is_remote))
    return Sync(version, path, digest_of(path) if is_remote else "")


def _gap(expected: Tensor, answers: Mapping[str, Floats]) -> float:
    """Largest difference over all processes or servers; NaN when one of them is not a number."""
    gaps = [float((expected - torch.from_numpy(answer)).abs().max()) for answer in answers.values()]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def _moved(before: Mapping[str, Floats], after: Mapping[str, Floats]) -> float:
    """How far that one moved that moved least."""
    return min(float(np.abs(after[name] - before[name]).max()) for name in before)


@torch.no_grad()
def _disturb(learner: Learner, own: Tensor, probe_ids: Ints, path: Path, *, far: float) -> float:
    """Move every weight, so that a tensor that does not arrive shows; returns how far the probe moved, in nats."""
    for attempt in range(DISTURBANCES):
        if attempt:
            _restore(learner, path)
        share = FIRST_DISTURBANCE * 2**attempt
        generator = torch.Generator().manual_seed(SEED)
        for parameter in learner.parameters:
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(noise * parameter.abs().mean(), alpha=share)
        moved = float((learner.probe(probe_ids) - own).abs().max())
        if moved >= far:
            break
    return moved


@torch.no_grad()
def _restore(learner: Learner, path: Path) -> None:
    saved = load_file(path)
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(saved[name])


def agreement_gate(proof: Proof) -> Gate:
    """The same weights give the same log-probs on both sides."""
    gap = min(proof.at_start, proof.restored)
    found = []
    summary = f"largest gap {gap:.2g} nats on {proof.tokens} tokens"
    if not gap <= proof.tolerance:
        found.append(
            finding(
                "OFF004",
                "critical",
                f"Log-probs of learner and sampler differ by {gap:.3g} nats on one set of weights",
                fact("largest gap on the probe", gap, ">", proof.tolerance, unit="nats", n=proof.tokens),
                look("align-engines", "use one model.dtype and one attention, and the same model on both sides"),
                where="sampler",
            )
        )
    elif not proof.at_start <= proof.tolerance:
        summary += f", but {proof.at_start:.2g} before weights were sent"
        found.append(
            finding(
                "OFF004",
                "warning",
                f"The sampler held other weights than model.path: a gap of {proof.at_start:.3g} nats until it was sent "
                "these",
                fact("gap before any sync", proof.at_start, ">", proof.tolerance, unit="nats", n=proof.tokens),
                look("same-model", "start the sampler with the model of the learner; a run replaces weights, not more"),
                where="sampler",
            )
        )
    measured = {"gap_nats": gap, "gap_at_start_nats": proof.at_start, "tolerance_nats": proof.tolerance}
    return gate("log-probs", f"{summary}, at most {proof.tolerance:g} allowed", found, measured=measured)


def round_trip_gate(proof: Proof) -> Gate:
    """Disturbed weights arrive, and the learner's own arrive again."""
    summary = (
        f"disturbed weights moved the probe by {proof.moved:.2g} nats and arrived within {proof.disturbed:.2g}, "
        f"restored within {proof.restored:.2g}"
    )
    measured = {
        "moved_nats": proof.moved,
        "followed_nats": proof.followed,
        "gap_disturbed_nats": proof.disturbed,
        "gap_restored_nats": proof.restored,
        "tolerance_nats": proof.tolerance,
    }
    if proof.differs:
        unproved = "cannot be proved while log-probs differ on one set of weights"
        return gate("weights", unproved, measured=measured, evaluated=False)
    return gate("weights", summary, list(_not_arrived(proof)), measured=measured)


def _not_arrived(proof: Proof) -> Iterator[Diagnostic]:
    worst = proof.disturbed if not proof.disturbed <= proof.tolerance else proof.restored
    if not worst <= proof.tolerance:
        yield finding(
            "OFF010",
            "critical",
            f"New weights did not arrive: they moved the learner by {proof.moved:.3g} nats and the sampler by "
            f"{proof.followed:.3g}",
            fact("gap after new weights", worst, ">", proof.tolerance, unit="nats", n=proof.tokens),
            look(
                "find-missing-weights",
                "compare tensors by name: tied embeddings, adapters, names unknown to the sampler",
            ),
            where="sampler",
        )


def unreachable(error: Exception) -> Gate:
    """What is left to say when the sampler died or did not answer."""
    found = finding(
        "CHK003",
        "critical",
        "The sampler did not survive to answer its probe",
        fact("answers of the sampler", 0, "<", 1),
        look("read-sampler-log", "read its messages above: memory, device, or a model that it cannot load"),
        where="sampler",
    )
    return gate("log-probs", str(error), [found])
