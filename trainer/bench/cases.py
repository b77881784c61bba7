"""What is run: kinds of faults with their doses and the answers that are right, and healthy runs of many kinds.

What counts as a right answer was written before any result was seen. Tuning and test set have no task and no seed in
common, and the kinds of faults in `HELD_BACK` are not in the tuning set at all. Once the results of a test set have
been read, its seeds are spent: the next change of a threshold asks for new ones. Seeds 11 to 13 were read before 21 to
23 were chosen, and three kinds that were named badly there are in the tuning set since.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from tocsin.schemas.fault import FaultName
from tocsin.trainer.bench.material import Material

Split = Literal["tuning", "test"]
Changes = Mapping[str, Any]
"""Fields of the run configuration; a dictionary changes only what it names."""

STEPS: Final = 120
ONSETS: Final = (30, 50)
"""A fault begins at a random step from the first to the one before the second."""
TUNING: Final = (Material("sort", 1), Material("swap-halves", 2))
TEST: Final = (Material("reverse", 21), Material("complement", 22), Material("rotate", 23))
"""One material a seed."""

ROOM: Final[Changes] = {"knobs": {"max_completion_tokens": 24}}
REFERENCE: Final[Changes] = {"knobs": {"kl_beta": 0.02}}
DEVICE: Final[Changes] = {"steps": 180, "device": {"simulated_memory_gib": 12.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One planted fault, the doses it is planted in, and what names it."""

    name: FaultName
    family: str
    doses: tuple[float, ...]
    strict: frozenset[str]
    """Codes that name the fault itself."""
    lenient: frozenset[str] = frozenset()
    """Codes, besides, that name what it does at once and lead to the right place."""
    changes: Changes = field(default_factory=dict)
    """Of the run, with the fault and without."""
    always_harms: bool = False
    """Whether the harm is what the fault is: no measure of learning or speed shows it within a short run."""


def _kind(
    name: FaultName, family: str, doses: tuple[float, ...], strict: str, lenient: str = "", **more: Any
) -> FaultKind:
    return FaultKind(
        name=name,
        family=family,
        doses=doses,
        strict=frozenset(strict.split()),
        lenient=frozenset(lenient.split()),
        **more,
    )


FAULTS: Final[tuple[FaultKind, ...]] = (
    _kind("lr-too-high", "optimiser", (1, 3), "POL014", "POL008 POL010"),
    _kind("lr-spike", "optimiser", (1, 3), "POL010 POL008 POL014"),
    _kind("lr-too-low", "optimiser", (0.75, 1), "POL013", "POL012 RWD015"),
    _kind("frozen", "optimiser", (0.9, 1), "POL012", "POL013 RWD015"),
    _kind("entropy-bonus", "optimiser", (2, 3.3), "POL002", "POL009"),
    _kind("nan", "optimiser", (0.5, 1), "POL015"),
    _kind("constant-reward", "reward", (0.7, 1), "RWD001", "GEN012"),
    _kind("reward-outlier", "reward", (0.01, 1), "RWD012", "RWD013 RWD011"),
    _kind("noisy-reward", "reward", (1, 100), "RWD013", "RWD012"),
    _kind("proxy-reward", "reward", (1, 3), "RWD004 RWD011 GEN009", "GEN010"),
    _kind("length-reward", "reward", (1, 3), "GEN003 RWD004 RWD011", "GEN010 GEN009", changes=ROOM),
    _kind("short-reward", "reward", (1, 3), "GEN004 RWD004 RWD011", "GEN010 GEN009"),
    _kind("hard-prompts", "data", (0.75, 1.2), "RWD002", "RWD001 POL009"),
    _kind("truncated", "tokeniser", (0.6, 1), "GEN001"),
    _kind("eos-ignored", "tokeniser", (0.6, 1), "GEN002", "GEN001 GEN003", changes=ROOM),
    _kind("top-p", "sampler", (1, 2), "OFF006", "OFF004 OFF005"),
    _kind("logprob-noise", "sampler", (0.5, 1.5), "OFF004", "OFF005 POL003"),
    _kind("same-seed", "sampler", (1,), "RWD006", "RWD001"),
    _kind("slow-sampler", "sampler", (0.25, 0.6), "OFF016", "SYS008"),
    _kind("straggler", "sampler", (1, 3), "SYS005", "OFF016 SYS008"),
    _kind("stale-weights", "sync", (0.8, 1), "OFF010", "OFF004 OFF001"),
    _kind("slow-sync", "sync", (0.5, 1), "OFF012", "OFF016 SYS008"),
    _kind("slow-learner", "queue", (0.25, 0.6), "OFF017", "SYS008"),
    _kind("verifier-outage", "verifier", (0.6, 1.6), "GEN011"),
    _kind("slow-reward", "verifier", (0.5, 1.2), "GEN015", "OFF016 SYS008"),
    _kind("wrong-reference", "reference", (1, 5), "POL007 POL006", changes=REFERENCE),
    _kind("memory-leak", "memory", (1, 3), "SYS003 SYS002", changes=DEVICE, always_harms=True),
    _kind("disk-filling", "disk", (1, 4), "SYS010", always_harms=True),
    _kind("lost-events", "telemetry", (0.5, 1), "SYS012", always_harms=True),
    _kind("lost-optimizer", "checkpoint", (1,), "SYS014", "POL014 POL008", always_harms=True),
)

HELD_BACK: Final[frozenset[str]] = frozenset(
    {
        "lr-spike",
        "frozen",
        "hard-prompts",
        "eos-ignored",
        "slow-reward",
        "disk-filling",
    }
)
"""Kinds that only the test set has."""

AT_A_RESUME: Final[frozenset[str]] = frozenset({"lost-optimizer"})
"""Faults that show when the run is stopped and resumed, which is at their onset."""

FROM_THE_START: Final[frozenset[str]] = frozenset({"wrong-reference"})
"""Faults that are there before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the benchmark."""

    name: str
    split: Split
    material: Material
    kind: FaultKind | None = None
    """None: nothing is wrong."""
    dose: float = 0.0
    onset: int = 0
    changes: Changes = field(default_factory=dict)
    stop_at: int | None = None
    """Step at which the run is stopped, to be resumed."""
    twin: str | None = None
    """Name of the case with the same seed and configuration and without the fault."""


AWKWARD: Final[dict[str, Changes]] = {
    "lr-low": {"knobs": {"learning_rate": 1e-4}},
    "lr-double": {"knobs": {"learning_rate": 6e-4}},
    "on-policy": {"knobs": {"max_staleness": 0}},
    "staleness-3": {"knobs": {"max_staleness": 3, "in_flight_groups": 64}},
    "sync-every-2": {"knobs": {"weight_sync_every": 2, "max_staleness": 2}},
    "small-groups": {"knobs": {"group_size": 4}},
    "large-groups": {"knobs": {"group_size": 16, "groups_per_step": 8}},
    "tiny-batches": {"knobs": {"groups_per_step": 4}},
    "large-batches": {"knobs": {"groups_per_step": 32}},
    "cool": {"knobs": {"temperature": 0.8}},
    "warm": {"knobs": {"temperature": 1.2}},
    "scaled-up": {"rewards": [{"function": "exact", "weight": 100.0}]},
    "scaled-down": {"rewards": [{"function": "exact", "weight": 0.01}]},
    "penalty": {"rewards": [{"function": "exact"}, {"function": "regex", "pattern": r"^\d{6}$", "weight": 0.2}]},
    "warm-up": {"optimizer": {"warmup_steps": 50}},
    "cosine": {"optimizer": {"schedule": "cosine"}},
    "grpo": {"loss": {"variant": "grpo"}},
    "dr-grpo": {"loss": {"variant": "dr_grpo"}},
    "cispo": {"loss": {"variant": "cispo"}},
    "gspo": {"loss": {"variant": "gspo"}},
    "no-clip-of-gradients": {"knobs": {"grad_clip": 100.0}},
    "small-microbatches": {"knobs": {"microbatch_tokens": 256}},
    "entropy": {"knobs": {"entropy_coef": 0.002}},
}
"""Healthy runs by name, each one a change of the plain run."""

PLAIN: Final[Changes] = {
    "steps": STEPS,
    "rewards": [{"function": "exact"}],
    "knobs": {
        "learning_rate": 3e-4,
        "groups_per_step": 16,
        "group_size": 8,
        "max_completion_tokens": 8,
        "max_staleness": 1,
    },
    "optimizer": {"schedule": "constant", "warmup_steps": 10},
    "evaluation": {"every": 40, "prompts": 256},
    "checkpoint": {"every": 50, "keep": 1},
    "sampler": {"on_mismatch": "continue"},
}


def merged(*layers: Changes) -> dict[str, Any]:
    """Configurations on top of each other, dictionaries key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = result.get(key)
            result[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def cases(split: Split) -> list[Case]:
    """Every run of a set, seed by seed, the healthy ones first: what was interrupted is a smaller benchmark."""
    materials = TUNING if split == "tuning" else TEST
    found = [*_twins(split, materials), *_awkward(split, materials), *_faults(split, materials)]
    seeds = [material.seed for material in materials]
    return sorted(found, key=lambda case: seeds.index(case.material.seed))


def _variants() -> dict[str, Changes]:
    """The configurations that faults are planted in, by name."""
    return {"plain": {}, "room": ROOM, "reference": REFERENCE, "device": DEVICE}


def _variant(kind: FaultKind) -> str:
    return next(name for name, changes in _variants().items() if changes == kind.changes)


def _twins(split: Split, materials: tuple[Material, ...]) -> Iterator[Case]:
    for material in materials:
        for name, changes in _variants().items():
            yield Case(name=f"healthy/{name}/{material.seed}", split=split, material=material, changes=changes)


def _awkward(split: Split, materials: tuple[Material, ...]) -> Iterator[Case]:
    wanted = list(AWKWARD.items()) if split == "test" else list(AWKWARD.items())[::3]
    for number, (name, changes) in enumerate(wanted):
        material = materials[-1 - number % (len(materials) - (split == "tuning"))]
        yield Case(name=f"healthy/{name}/{material.seed}", split=split, material=material, changes=changes)
    material = materials[0]
    seed = material.seed
    plain = Case(name="", split=split, material=material)
    near_the_top = replace(material, accuracy=0.9)
    small = {"knobs": {"group_size": 4}}
    yield replace(plain, name=f"healthy/pass-rate-0.9/{seed}", material=near_the_top, changes=small)
    room = {"knobs": {"max_completion_tokens": 20}}
    yield replace(
        plain, name=f"healthy/long-tail/{seed}", material=replace(material, lengths="long-tail"), changes=room
    )
    in_order = merged(room, {"data": {"shuffle": False}})
    yield replace(
        plain, name=f"healthy/curriculum/{seed}", material=replace(material, lengths="rising"), changes=in_order
    )
    yield replace(plain, name=f"healthy/resumed/{seed}", stop_at=60)


def _faults(split: Split, materials: tuple[Material, ...]) -> Iterator[Case]:
    for number, kind in enumerate(FAULTS):
        if split == "tuning" and kind.name in HELD_BACK:
            continue
        for dose in kind.doses:
            for material in materials:
                rng = np.random.default_rng([material.seed, number, round(1000 * dose)])
                onset = 0 if kind.name in FROM_THE_START else int(rng.integers(*ONSETS))
                yield Case(
                    name=f"{kind.name}/{dose:g}/{material.seed}",
                    split=split,
                    material=material,
                    kind=kind,
                    dose=dose,
                    onset=onset,
                    changes=kind.changes,
                    stop_at=onset if kind.name in AT_A_RESUME else None,
                    twin=f"healthy/{_variant(kind)}/{material.seed}",
                )
