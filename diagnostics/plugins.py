"""Commands that other packages add to `tocsin` through the entry-point group `tocsin.commands`.

An entry point is a plain function with typer annotations, or a `typer.Typer` with commands of its own. It is imported
when its command is invoked and at no other time, so that `tocsin --help` and the reading commands never import a
machine-learning library.
"""

import importlib.util
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

GROUP: Final = "tocsin.commands"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What is known about a command of ours without importing it."""

    help: str
    """One sentence for the list of commands."""
    extra: str
    """Extra of the distribution that brings its libraries."""
    needs: tuple[str, ...]
    """Top-level modules without which the command cannot start."""


TRAINING: Final = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow")
SERVING: Final = ("mcp", "starlette", "uvicorn", "sse_starlette")

EXTENSIONS: Final = {
    "train": Extension(help="Train a language model by asynchronous GRPO.", extra="train", needs=TRAINING),
    "check": Extension(
        help="Check a configuration before compute hours are spent on it.",
        extra="train",
        needs=TRAINING,
    ),
    "demo": Extension(
        help="Watch a small model learn in two minutes.",
        extra="train",
        needs=TRAINING,
    ),
    "bench": Extension(
        help="Measure the diagnostics: detection of planted faults, and cost.",
        extra="train",
        needs=TRAINING,
    ),
    "vllm": Extension(help="Start vLLM servers for runs.", extra="train", needs=("httpx",)),
    "serve": Extension(
        help="Serve runs over HTTP and MCP.",
        extra="serve",
        needs=SERVING,
    ),
    "mcp": Extension(
        help="Speak MCP on standard input and output.",
        extra="serve",
        needs=SERVING,
    ),
}


def installed() -> dict[str, EntryPoint]:
    """Entry points by command name, our own first."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: found[name] for name in (*EXTENSIONS, *sorted(found.keys() - EXTENSIONS.keys())) if name in found}


def summary(point: EntryPoint) -> str:
    """One sentence about a command that has not been imported."""
    if point.name in EXTENSIONS:
        return EXTENSIONS[point.name].help
    return f"From the package {point.dist.name}." if point.dist else "From another package."


def load(point: EntryPoint) -> Any:
    """The command behind `point`, imported. Raises `ValueError` that says what to install."""
    known = EXTENSIONS.get(point.name)
    if known is not None:
        missing = [name for name in known.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(
                f"{point.name}: needs {', '.join(missing)}, which this environment lacks; "
                f"install with: pip install 'tocsin[{known.extra}]'"
            )
    try:
        loaded = point.load()
    except ImportError as error:  # the boundary to other packages: what they lack is for their user to install
        raise ValueError(f"{point.name}: `{point.value}` cannot be imported: {error}; reinstall its package") from error
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(point.name)(loaded)
    return typer.main.get_command(app)


class LazyGroup(TyperGroup):
    """The commands of this package, and those of entry points, which are imported when they are invoked.

    Listing shows a stub with the static summary. Parameters are `Any` because typer exports no names for them.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in installed() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        points = {} if own is not None else installed()
        return stub(points[cmd_name]) if cmd_name in points else own

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        points = {} if args[0] in self.commands else installed()
        if args[0] in points:
            return args[0], load(points[args[0]]), args[1:]
        return super().resolve_command(ctx, args)


def stub(point: EntryPoint) -> Any:
    """A command that can be listed and not run."""

    def listed() -> None:
        raise AssertionError("a stub is replaced before it runs")

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(point.name, help=summary(point))(listed)
    return typer.main.get_command(app)
