"""`python -m tocsin.trainer.bench.autotune FOLDER`: whether a run that tunes itself is better off for it.

Three arms for each planted case and seed: the healthy run, the planted one, and the planted one with `autotune` on.
The fault is planted where a knob can answer it. The faults `slow-sampler` and `slow-learner` are not among the cases,
because none can: they add a fixed time to each batch of the sampler, whose size is `sampler.batch_groups` and fixed at
launch, and to each optimizer step. Beside them: healthy runs in which everything is allowed, of which none may be
changed; a rule that is wrong on purpose, whose changes must be taken back twice and then stop; and the sham arm,
actions that do nothing, of which at most one in ten may count as a success.

Every run is a folder below FOLDER with its `result.json`. What has one is not run again, so that the experiment can be
stopped at any moment and goes on where it was; a run that was cut off starts over. Runs go one after the other,
because throughput is compared. `--table` only prints what there is.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE, parse_record
from tocsin.diagnostics.modes import NAMES
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import list_runs
from tocsin.diagnostics.variables import environment_variables
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.autotune import ACTOR, AutotuneConfig
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import DeviceConfig, RunConfig
from tocsin.schemas.events import EvaluationCompleted, KnobChanged
from tocsin.schemas.fault import FaultConfig
from tocsin.schemas.knobs import LIMITS, KnobValue
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.bench import wrong_actions
from tocsin.trainer.demo import demo_config, prepare_demo
from tocsin.trainer.processes import thread_environment
from tocsin.trainer.progress import Progress

STEPS: Final = 300
LAST: Final = 120
"""Steps at the end of a run over which its throughput is taken: long enough for the moods of a shared machine, and
begun when the changes are made."""
NEAR: Final = 0.9
"""Share of the healthy run's result that a run must reach to count as well."""
EVERYTHING: Final = {code: list(LIMITS) for code in NAMES}
WRONG: Final = "wrong-rule"
HEALTHY: Final = "healthy"

Change = Callable[[RunConfig], RunConfig]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted fault and what may be done about it."""

    name: str
    what: str
    measure: str
    """`reward` (held-out, at the end) or `throughput` (tokens a second, near the end)."""
    plant: Change
    allow: dict[str, list[str]]
    base: Change = lambda config: config
    """The healthy run that it is compared with."""
    min_severity: str = "warning"


def with_knobs(config: RunConfig, **values: KnobValue) -> RunConfig:
    """`config` with other launch values."""
    knobs = config.knobs.model_copy(update=values)
    return RunConfig.model_validate({**config.model_dump(), "knobs": knobs.model_dump()})


def _even(config: RunConfig) -> RunConfig:
    """With the same work for the learner in every step.

    Groups without spread are left out by default, so that it has less and less to do as the policy gets better, and at
    the end of the run no token budget matters.
    """
    return with_knobs(config, skip_zero_spread=False)


def _simulated(config: RunConfig) -> RunConfig:
    # 16 GiB hold 3,700 of these tokens: all of a step, with room to spare.
    return _even(config).model_copy(
        update={"device": DeviceConfig(learner="cpu", sampler="cpu", simulated_memory_gib=16)}
    )


CASES: Final = (
    Case(
        name="lr-too-high",
        what="the learning rate rises ten-fold at step 60",
        measure="reward",
        plant=lambda config: config.model_copy(update={"fault": FaultConfig(name="lr-too-high", onset_step=60)}),
        allow={"POL014": ["learning_rate"]},
    ),
    Case(
        name="generator-bound",
        what="launched with 4 groups in flight: the sampler generates 4 at a time instead of 16",
        measure="throughput",
        plant=lambda config: with_knobs(config, in_flight_groups=4),
        allow={"OFF016": ["in_flight_groups", "max_staleness"]},
    ),
    Case(
        name="trainer-bound",
        what="launched with a budget of 64 tokens: the learner makes a forward pass for every few completions",
        measure="throughput",
        plant=lambda config: with_knobs(config, microbatch_tokens=64),
        allow={"OFF017": ["microbatch_tokens"]},
        base=_even,
    ),
    Case(
        name="staleness-too-high",
        what="launched with a staleness bound of 16, at a learning rate that fresh data bear",
        measure="reward",
        plant=lambda config: with_knobs(config, max_staleness=16),
        allow={"OFF001": ["max_staleness"], "OFF005": ["max_staleness"], "OFF019": ["max_staleness"]},
        base=lambda config: with_knobs(config, learning_rate=1.5e-3),
        min_severity="info",
    ),
    Case(
        name="memory-under-used",
        what="launched with a budget of 128 tokens on a pretended device with room for 3,700",
        measure="throughput",
        plant=lambda config: with_knobs(config, microbatch_tokens=128),
        allow={"SYS001": ["microbatch_tokens"]},
        base=_simulated,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to."""

    reward: float
    """Held-out mean reward of the last weights."""
    throughput: float
    """Completion tokens a second: median over the last steps."""
    changes: list[str]
    """Knob changes of the auto-tuner: `learning_rate 0.003 -> 0.0003 @71`."""
    verdicts: list[str]
    """States of the actions of the auto-tuner, in order, without refusals."""


def read_result(folder: Path) -> Result:
    """The result of a finished run, from its files."""
    events = list(read_events(folder / EVENTS_FILE))
    steps = [event for event in events if isinstance(event, StepCompleted)][-LAST:]
    rates = [step.tokens / as_float(step.seconds["total"]) for step in steps]
    held_out = [as_float(event.reward_mean) for event in events if isinstance(event, EvaluationCompleted)]
    batches = [as_float(event.reward_mean) for event in events if isinstance(event, BatchConsumed)]
    lines = (folder / FEED_FILE).read_bytes().splitlines()
    records = [record for line in lines if isinstance(record := parse_record(line), ActionRecord)]
    return Result(
        reward=held_out[-1] if held_out else fmean(batches[-LAST:]),
        throughput=median(rates),
        changes=[_change(event) for event in events if isinstance(event, KnobChanged) and event.actor == ACTOR],
        verdicts=[r.state for r in records if r.actor == ACTOR and r.state not in ("approved", "rejected")],
    )


def _change(event: KnobChanged) -> str:
    return f"{event.path} {event.before:g} -> {event.after:g} @{event.step}"


def arms(seeds: int, num_healthy: int) -> Iterator[tuple[str, RunConfig]]:
    """Every run of the experiment, by name. Models are named by seed and put in place later.

    The healthy run of a case is made between the two that are compared with it: machines are faster at some times.
    """
    for seed in range(seeds):
        for case in CASES:
            healthy = case.base(_demo(seed))
            planted = case.plant(healthy)
            tuner = AutotuneConfig.model_validate(
                {"mode": "on", "allow": case.allow, "min_severity": case.min_severity}
            )
            yield f"{case.name}-{seed}-off", planted
            yield f"{case.name}-{seed}-healthy", healthy
            yield f"{case.name}-{seed}-on", planted.model_copy(update={"autotune": tuner})
        wrong = AutotuneConfig(mode="on", allow={wrong_actions.WRONG_CODE: ["temperature"]})
        yield f"{WRONG}-{seed}-on", _demo(seed).model_copy(update={"autotune": wrong})
    for seed in range(num_healthy):
        allowed = AutotuneConfig(mode="on", allow=EVERYTHING)
        yield f"{HEALTHY}-{seed}-on", _demo(seed).model_copy(update={"autotune": allowed})


def _demo(seed: int) -> RunConfig:
    return demo_config(Path(f"models/{seed}"), seed=seed, steps=STEPS, fault=None)


def run(folder: Path, name: str, config: RunConfig) -> Result:
    """The result of one run, made now unless there is one. Raises `RuntimeError` when the run fails."""
    own = folder / name
    if (own / "result.json").exists():
        return Result(**json.loads((own / "result.json").read_text()))
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    made = _with_model(folder, config)
    (own / "config.json").write_text(made.model_dump_json(exclude_none=True, indent=1))
    command = [sys.executable, "-m", "tocsin.trainer.bench.attempt", str(own)]
    command += ["--wrong-rule"] if name.startswith(WRONG) else []
    with (own / "log.txt").open("wb") as log:
        code = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        raise RuntimeError(f"{name} ended with {code}; see {own / 'log.txt'}")
    (run_folder,) = list_runs(own / "runs")
    result = read_result(run_folder)
    (own / "result.json").write_text(json.dumps(asdict(result)))
    return result


def _with_model(folder: Path, config: RunConfig) -> RunConfig:
    """`config` with the pre-trained model of its seed, which is made when it is not there yet."""
    home = folder / config.model.path.removesuffix("/model")
    if not (home / "done").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        with environment_variables(thread_environment(1)), Progress(steps=STEPS) as progress:
            prepare_demo(home, progress, seed=config.seed)
        (home / "done").touch()
    data = config.data.model_copy(
        update={"train": str(home / "data" / "train.jsonl"), "evaluation": str(home / "data" / "held_out.jsonl")}
    )
    model = config.model.model_copy(update={"path": str(home / "model")})
    return config.model_copy(update={"data": data, "model": model})


def table(results: dict[str, Result], folder: Path) -> str:
    """What there is, as text."""
    lines = [f"{'case':20}{'seed':>5}{'healthy':>10}{'off':>10}{'on':>10}{'off/h':>7}{'on/h':>7}  changes"]
    for case in CASES:
        for seed in range(len(results)):
            healthy, off, on = (results.get(f"{case.name}-{seed}-{arm}") for arm in ("healthy", "off", "on"))
            if healthy is None or off is None or on is None:
                continue
            base, without, with_it = (getattr(item, case.measure) for item in (healthy, off, on))
            verdict = "ok" if with_it >= NEAR * base > without else "NOT SHOWN"
            lines.append(
                f"{case.name:20}{seed:>5}{base:>10.4g}{without:>10.4g}{with_it:>10.4g}{without / base:>7.2f}"
                f"{with_it / base:>7.2f}  {verdict}: {'; '.join(on.changes) or 'none'}"
            )
    for name, result in results.items():
        if name.startswith(WRONG):
            ends = result.verdicts.count("reverted") == 2 and result.verdicts[-1:] == ["proposed"]
            lines.append(f"{name}: {'ok' if ends else 'NOT SHOWN'}: {' '.join(result.verdicts)}")
    quiet = {name: result for name, result in results.items() if name.startswith(f"{HEALTHY}-")}
    changed = {name: result.changes for name, result in quiet.items() if result.changes}
    lines.append(f"healthy runs changed: {len(changed)} of {len(quiet)} {changed or ''}")
    if quiet:
        lines += wrong_actions.report([run for name in quiet for run in list_runs(folder / name / "runs")])
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="of each planted case")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs in which everything is allowed")
    parser.add_argument("--only", action="append", default=[], metavar="PREFIX", help="runs whose name begins so")
    parser.add_argument("--table", action="store_true", help="print what there is and run nothing")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    results: dict[str, Result] = {}
    for name, config in arms(options.seeds, options.healthy):
        wanted = not options.only or name.startswith(tuple(options.only))
        if (folder / name / "result.json").exists() or (wanted and not options.table):
            print(f"{name} ...", file=sys.stderr, flush=True)
            results[name] = run(folder, name, config)
    print(table(results, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
