"""From a command line to a running attempt: everything that can be refused is refused before torch is imported."""

import os
import signal
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from rich.console import Console

from tocsin.diagnostics.added_rules import added, engine_for
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.runs import find_run, new_run_id, read_manifest
from tocsin.schemas.autotune import AutotuneConfig, AutotuneMode
from tocsin.schemas.config import RunConfig, describe_errors
from tocsin.schemas.knobs import LIMITS, Knobs, unknown_knob
from tocsin.trainer.checkpoint import read_latest
from tocsin.trainer.preflight import check_inputs
from tocsin.trainer.processes import thread_environment
from tocsin.trainer.run_folder import begin_manifest, continue_manifest, note_cost, remove_unstarted
from tocsin.trainer.signals import StopFlag
from tocsin.trainer.tuner import make_policy

KnobSetting = bool | int | float

COMPLETED: Final = 0
FAILED: Final = 1


class ConfigError(ValueError):
    """The configuration cannot be used; one line per fault."""


def read_config(path: Path, settings: list[str]) -> RunConfig:
    """The configuration in a TOML file, with `--set` applied. Raises `ConfigError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"CONFIG must be a readable TOML file, got `{path}`: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: must be TOML: {error}") from error
    knobs = document.setdefault("knobs", {})
    if isinstance(knobs, dict):
        knobs.update(parse_settings(settings))
    try:
        # Strict: TOML has types, and "10" or true where a number belongs is a mistake and not a spelling of it.
        config = RunConfig.model_validate(document, strict=True)
    except ValidationError as error:
        raise ConfigError(describe_errors(error.errors(), source=str(path))) from error
    check_diagnostics(config)
    return config


def check_diagnostics(config: RunConfig) -> None:
    """Raises `ConfigError` for a rule, threshold or policy that does not exist, before hours are spent."""
    try:
        engine_for(config.diagnostics, added())
    except ValueError as error:
        raise ConfigError(f"`diagnostics`: {error}") from error
    try:
        if config.autotune is not None:
            make_policy(config.autotune)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def with_autotune(config: RunConfig, mode: AutotuneMode | None) -> RunConfig:
    """`config` with the mode of `--autotune`; as it is without one. Raises `ConfigError`."""
    if mode is None:
        return config
    section = {} if config.autotune is None else config.autotune.model_dump()
    try:
        changed = AutotuneConfig.model_validate({**section, "mode": mode})
    except ValidationError as error:
        raise ConfigError(describe_errors(error.errors(), source="--autotune")) from error
    return config.model_copy(update={"autotune": changed})


def parse_settings(settings: list[str]) -> dict[str, KnobSetting]:
    """`["learning_rate=1e-4"]` as a dictionary. Raises `ConfigError` for what no knob can take."""
    result: dict[str, KnobSetting] = {}
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign or not text:
            raise ConfigError(f"--set must be `knob=value`, got `{setting}`; for instance --set learning_rate=1e-4")
        if path.strip() not in LIMITS:
            raise ConfigError(f"--set: {unknown_knob(path.strip())}")
        try:
            parsed = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            parsed = {}
        # More than one key: the text was more than a value.
        value = parsed["value"] if len(parsed) == 1 else None
        if not isinstance(value, bool | int | float):
            raise ConfigError(f"--set: `{path}` must be a number or true/false, got `{text}`")
        limits = LIMITS[path.strip()]
        if not isinstance(value, bool) and not limits.low <= value <= limits.high:
            raise ConfigError(f"--set: `{path}` must be between {limits.low:g} and {limits.high:g}, got {text}")
        result[path.strip()] = value
    return result


def new_run(config: RunConfig, runs_dir: Path, name: str, prepare: Callable[[Path, Any], RunConfig] | None) -> int:
    """Start a new run below `runs_dir`; returns the exit code.

    `prepare(folder, progress)` may fill the folder and returns the final configuration (the demo trains its model
    there). Raises `ValueError` for bad input; the folder is removed when nothing was recorded.
    """
    if prepare is None:
        check_inputs(config)
    run_id = new_run_id(name)
    folder = runs_dir / run_id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--runs-dir must be a folder that can be written, got `{runs_dir}`: {error}") from error
    with RunWriter(folder, run_id) as writer:
        begin_manifest(folder, run_id, config)
        return _attempt(writer, config, prepare, attempt=1, overrides=None)


def resume_run(
    run: str,
    runs_dir: Path,
    settings: list[str],
    from_step: int | None = None,
    autotune: AutotuneMode | None = None,
) -> int:
    """Take up a run at its newest checkpoint, or the newest one at or before `from_step`; returns the exit code.

    `autotune` is a mode for this attempt and those after it. Raises `ValueError` for bad input.
    """
    folder = find_run(run, runs_dir)
    manifest = read_manifest(folder)
    config = with_autotune(manifest.config, autotune)
    with RunWriter(folder, manifest.run_id) as writer:
        _, state = read_latest(folder, from_step)
        if state.step >= config.steps:
            raise ConfigError(f"`{manifest.run_id}` must have steps left to resume, and all {state.step} are done")
        overrides = parse_settings(settings)
        try:
            Knobs.model_validate({**state.knobs.model_dump(), **overrides}, strict=True)
        except ValidationError as error:
            raise ConfigError(describe_errors(error.errors(), source="--set")) from error
        check_inputs(config)
        check_diagnostics(config)
        continued = continue_manifest(folder, state.step, config)
        attempt = len(continued.attempts)
        return _attempt(writer, config, None, attempt=attempt, overrides=overrides, from_step=from_step)


def _attempt(
    writer: RunWriter,
    config: RunConfig,
    prepare: Callable[[Path, Any], RunConfig] | None,
    *,
    attempt: int,
    overrides: dict[str, KnobSetting] | None,
    from_step: int | None = None,
) -> int:
    os.environ.update(thread_environment(config.device.threads))
    # Started first, so that the imports of its sampler overlap with ours.
    from tocsin.trainer.rollout_client import RolloutClient  # noqa: PLC0415

    began = time.monotonic()
    with StopFlag() as stop:
        rollout = RolloutClient(config)
        try:
            with ExitStack() as stack:
                stack.callback(rollout.stop)  # before its folder may be removed
                requires = rollout.wait_until_ready().requires
                from tocsin.trainer.models import silence_transformers  # noqa: PLC0415
                from tocsin.trainer.progress import Progress  # noqa: PLC0415
                from tocsin.trainer.run import Run  # noqa: PLC0415
                from tocsin.trainer.start import Plan  # noqa: PLC0415
                from tocsin.trainer.summary import cost_per_step, summarise  # noqa: PLC0415

                silence_transformers()
                with Progress(steps=config.steps) as progress:
                    progress.note(f"run {writer.run_id} in {writer.folder}")
                    if prepare is not None:
                        config = prepare(writer.folder, progress)
                        begin_manifest(writer.folder, writer.run_id, config)
                    resume = overrides is not None
                    plan = Plan(
                        config, writer.folder, writer.run_id, attempt, resume, overrides or {}, from_step, requires
                    )
                    ending = Run(plan, writer, rollout, progress).execute(stop)
        except KeyboardInterrupt:
            remove_unstarted(writer)
            return 128 + (stop.signal or signal.SIGINT)
        except (ValueError, OSError):
            remove_unstarted(writer)
            raise
    wall_s = time.monotonic() - began
    cost = cost_per_step(progress.history, ending.cost)
    if cost is not None:
        # A disk that is full, or a folder that is gone, was reported where it mattered.
        with suppress(OSError, ValueError):
            note_cost(writer.folder, cost)
    Console(stderr=True).print(summarise(progress.history, writer.folder, ending.outcome, ending.cost, wall_s))
    if ending.outcome == "interrupted":
        assert stop.signal is not None
        return 128 + stop.signal
    return COMPLETED if ending.outcome == "completed" else FAILED
