"""Trains a healthy run for real and keeps the part of its events in which nothing drifts.

`python -m tests.diagnostics.recordings.record NAME...` makes recordings anew, about a minute each on two cores. Each is
`NAME.jsonl.xz`: the header of `events.jsonl`, `run_started`, then every event of the kept steps as it was written.
"""

import lzma
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tocsin.schemas.config import OptimizerConfig, RewardConfig, RunConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, RunStarted

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """How a recording is made."""

    seed: int
    first: int
    """Optimizer steps finished when the recording begins: what the policy does has settled by then."""
    last: int
    """Optimizer steps finished when it ends."""
    steps: int
    """Length of the run; a schedule ends with it."""
    knobs: dict[str, float] = field(default_factory=dict)
    """Changes to the knobs of the demo."""
    rewards: tuple[dict[str, Any], ...] = ({"function": "exact"},)
    schedule: str = "constant"

    def config(self, folder: Path) -> RunConfig:
        """The configuration: that of the demo with the changes."""
        from tocsin.trainer.demo import demo_config  # noqa: PLC0415  the tests that read recordings need no trainer

        demo = demo_config(folder, seed=self.seed, steps=self.steps, fault=None)
        changes = {
            "knobs": demo.knobs.model_copy(update=self.knobs),
            "rewards": [RewardConfig.model_validate(reward) for reward in self.rewards],
            "optimizer": OptimizerConfig.model_validate({"schedule": self.schedule, "warmup_steps": 10}),
        }
        return demo.model_copy(update=changes)


SORTED: Final = "tests.diagnostics.recordings.record:ascending"

RECIPES: Final = {
    # The demo as it ships, which ends near the ceiling; the rate decays throughout.
    "demo": Recipe(seed=0, first=100, last=260, steps=300, schedule="linear"),
    # Small groups of a hot sampler, four steps old.
    "small-groups": Recipe(
        seed=2,
        first=110,
        last=230,
        steps=231,
        knobs={"group_size": 4, "groups_per_step": 32, "temperature": 1.2, "max_staleness": 4, "learning_rate": 1e-4},
    ),
    # On-policy, large groups of a cool sampler, with a reference.
    "on-policy": Recipe(
        seed=3,
        first=110,
        last=230,
        steps=231,
        knobs={
            "group_size": 16,
            "groups_per_step": 8,
            "temperature": 0.8,
            "max_staleness": 0,
            "learning_rate": 1e-4,
            "kl_beta": 0.01,
        },
    ),
    # Half of the completions pass, and go on passing: a policy that learns slowly, from two reward functions.
    "two-rewards": Recipe(
        seed=4,
        first=100,
        last=200,
        steps=201,
        knobs={"learning_rate": 1e-5, "max_completion_tokens": 10},
        rewards=({"function": "exact"}, {"function": SORTED, "weight": 0.2, "range": [0, 1], "passes": False}),
    ),
}


def ascending(completions: list[str]) -> list[float]:
    """Share of neighbouring digits that are in order: a side reward."""
    pairs = [list(pairwise(text)) for text in completions]
    return [sum(a <= b for a, b in found) / len(found) if found else 0.0 for found in pairs]


def keep(events: Path, recipe: Recipe, target: Path) -> None:
    """Write the head and the kept steps of `events` to `target`."""
    header, *lines = events.read_text().splitlines()
    kept = [line for line in lines if _is_kept(EVENT.validate_json(line), recipe)]
    target.write_bytes(lzma.compress("\n".join([header, *kept, ""]).encode(), preset=9))


def _is_kept(event: BaseEvent, recipe: Recipe) -> bool:
    return isinstance(event, RunStarted) or recipe.first <= event.step <= recipe.last


def main(names: list[str]) -> int:
    """Make the recordings of these names, one after the other. Exit code 2 for an unknown one."""
    if not names or set(names) - set(RECIPES):
        print(f"arguments must be among {', '.join(RECIPES)}, got {' '.join(names) or 'none'}", file=sys.stderr)
        return 2
    from tocsin.trainer.demo import prepare_demo  # noqa: PLC0415
    from tocsin.trainer.launch import new_run  # noqa: PLC0415

    for name in names:
        recipe = RECIPES[name]

        def prepare(folder: Path, progress: Any, recipe: Recipe = recipe) -> RunConfig:
            prepare_demo(folder, progress, seed=recipe.seed)
            return recipe.config(folder)

        with tempfile.TemporaryDirectory() as runs:
            code = new_run(recipe.config(Path(".")), Path(runs), name, prepare)
            if code:
                return code
            (folder,) = Path(runs).iterdir()
            keep(folder / "events.jsonl", recipe, FOLDER / f"{name}.jsonl.xz")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
