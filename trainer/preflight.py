"""What can be refused before a run begins: most of it within a second, before torch is imported."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tocsin.diagnostics.outlets import check_alerts
from tocsin.schemas.config import ModelConfig, RunConfig
from tocsin.trainer.data import Prompt
from tocsin.trainer.sources import DataError, check_source

MODEL_FILE: Final = "config.json"
"""What every transformers model folder holds."""


def check_inputs(config: RunConfig) -> None:
    """Raises `ValueError`, one line per fault: data and models that are not there, alerts that cannot be delivered."""
    problems = [_model_problem(config.model), *check_alerts(config.alerts)]
    for source in (config.data.train, config.data.evaluation):
        try:
            if source is not None:
                check_source(source, column=config.data.prompt_column)
        except DataError as error:
            problems.append(str(error))
    if found := [problem for problem in problems if problem]:
        raise ValueError("\n".join(dict.fromkeys(found)))


def check_arguments(requires: Mapping[str, frozenset[str]], prompts: Sequence[Prompt]) -> None:
    """Raises `ValueError` for a reward function that must get an argument which no row of the data has.

    `requires` has the arguments without a default, by reward label. A column that only some rows lack costs those
    rows. Without a prompt nothing is known.
    """
    columns = sorted({name for prompt in prompts for name in prompt.columns})
    for label, names in requires.items() if prompts else ():
        unknown = sorted(names - {"completions", "prompts", *columns})
        if unknown:
            form = ", ".join(["completions", "prompts", *filter(str.isidentifier, columns), "**kwargs"])
            raise ValueError(
                f"reward function `{label}` must take `completions`, `prompts` and columns of the data by name, got "
                f"{', '.join(f'`{name}`' for name in unknown)}; write it as `def {label}({form}) -> list[float]`"
            )


def _model_problem(config: ModelConfig) -> str:
    """Why `model.path` cannot be a model; empty when it may be one, hub ids included."""
    path = Path(config.path)
    rule = f"`model.path` must be a model folder or hub id, got `{config.path}`"
    if path.is_dir():
        return "" if (path / MODEL_FILE).is_file() else f"{rule}, a folder without {MODEL_FILE}; correct the path"
    is_id = config.path.count("/") <= 1 and not path.exists() and not config.path.startswith((".", "/", "~"))
    if is_id and ("/" in config.path or _is_cached(config.path)):
        return ""
    return f"{rule}, which is no folder; correct the path, or write a hub id as `owner/name`"


def _is_cached(name: str) -> bool:
    """Whether a hub id without an owner, as some old ones are, was fetched before. Asks no network."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  needed for such names only
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        return isinstance(try_to_load_from_cache(name, MODEL_FILE), str)
    except HFValidationError:
        return False
