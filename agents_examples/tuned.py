#!/usr/bin/env python3
"""Trains the demo with a planted fault and lets the run act on its own findings, by a policy of yours.

    python agents_examples/tuned.py              # the policy below
    python agents_examples/tuned.py --builtin    # the policy of Tocsin

A configuration names the policy by its import path; `tocsin train` looks in the folder that it is started in as well:

    [autotune]
    mode = "on"
    policy = "agents_examples.tuned:NightShift"
    allow.POL014 = ["learning_rate"]

Exit code, as of `tocsin demo`: 0 completed, 1 failed, 2 bad input.
"""

import argparse
import sys
from pathlib import Path

from tocsin.diagnostics.autotune import Autotune, Now
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.render import line
from tocsin.diagnostics.runs import is_run
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.config import DeviceConfig, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.fault import FaultConfig
from tocsin.trainer.demo import TUNED, demo_config, prepare_demo
from tocsin.trainer.launch import new_run
from tocsin.trainer.progress import Progress


class NightShift(Autotune):
    """Nobody is there to look: a knob may be lowered, and whatever raises one is left for the morning.

    What it inherits stays: one change on trial at a time, cooldowns, waiting for causes, and taking back what harmed.
    A class without a base needs `observe(record)` and `decide(now)`; see `tocsin.diagnostics.autotune`.
    """

    def objection(self, finding: Diagnostic, action: Action, now: Now) -> str | None:
        """What speaks against taking `action` now: a text that stays the same from step to step, or None."""
        if any(patch.to is not None and patch.to > patch.expect for patch in action.patches):
            return "the night shift raises no knob"
        return super().objection(finding, action, now)


def main(arguments: list[str]) -> int:
    """The exit code of the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--builtin", action="store_true", help="the policy of Tocsin instead of the one here")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    options = parser.parse_args(arguments)
    # Started as a program, this file is the module `tuned`, in a folder where Python looks.
    policy = None if options.builtin else f"{Path(__file__).stem}:{NightShift.__name__}"
    tuner = AutotuneConfig(mode="on", policy=policy, allow=TUNED)
    own: list[Path] = []

    def prepare(folder: Path, progress: Progress) -> RunConfig:
        own.append(folder)  # the newest run may be another one by the time that this one is over
        prepare_demo(folder, progress, seed=0)
        return configured(folder)

    def configured(folder: Path) -> RunConfig:
        fault = FaultConfig(name="lr-too-high", onset_step=30)
        config = demo_config(folder, seed=0, steps=options.steps, fault=fault)
        # A budget that leaves most of a pretended device unused, so that there is something to raise as well.
        knobs = config.knobs.model_copy(update={"microbatch_tokens": 256})
        device = DeviceConfig(learner="cpu", sampler="cpu", simulated_memory_gib=16)
        return config.model_copy(update={"autotune": tuner, "knobs": knobs, "device": device})

    try:
        code = new_run(configured(Path()), options.runs_dir, "tuned", prepare)
    except ValueError as error:
        print(f"tuned: {error}", file=sys.stderr)
        return 2
    for folder in filter(is_run, own):  # none when it was interrupted before it began
        for record in FeedReader(folder).page(limit=10_000).records:
            if isinstance(record, ActionRecord):
                print(line(record))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
