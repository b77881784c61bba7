"""`tocsin vllm`: a vLLM server in the foreground, ready to be the sampler of a run."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tocsin.diagnostics.errors import BAD_INPUT, CLEAR, error_line
from tocsin.diagnostics.render import clean
from tocsin.trainer.vllm.interpreter import Interpreter, Unusable, find_interpreter
from tocsin.trainer.vllm.servers import PortInUse, ServerFailed, ServerSpec, VllmServer
from tocsin.trainer.vllm.transfer import FILE_BACKEND, NCCL_BACKEND, Backend

FAILED = 1

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def vllm() -> None:
    """Start vLLM servers for `[sampler] kind = "vllm"`."""


@app.command()
def serve(  # noqa: PLR0913 one parameter per option is how typer declares them
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or hub id, as in `model.path`.")],
    server_args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Further arguments of vLLM; they win over ours.")
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8000,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Interpreter that has vLLM; by default .venv-vllm/bin/python, else this one."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision, as in `model.dtype`.")
    ] = "float32",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, metavar="TOKENS", help="Longest prompt plus completion; by default the model's."),
    ] = None,
    memory_fraction: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Share of the device's memory; by default what suits it.")
    ] = None,
    weight_transfer: Annotated[
        Literal["auto", "nccl", "file"],
        typer.Option(help="How new weights come, as in `sampler.weight_transfer`; `auto` is nccl on a GPU."),
    ] = "auto",
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, metavar="SECONDS", help="For the start.")] = 600.0,
) -> None:
    """Serve a model to runs on this machine until Ctrl-C or SIGTERM.

    Prints what belongs into the configuration of the run once the server is healthy. Exit code 0: ended on request,
    1: the server ended or did not start, 2: bad input.

    \b
    Example:
        tocsin vllm serve models/policy --port 8000 -- --tensor-parallel-size 2
    """
    try:
        interpreter = find_interpreter(python)
    except Unusable as error:
        typer.echo(error_line(str(error)), err=True)
        raise typer.Exit(BAD_INPUT) from None
    spec = ServerSpec(
        name="vllm",
        interpreter=interpreter,
        model=model,
        dtype=dtype,
        port=port,
        log=Path(tempfile.mkdtemp(prefix="tocsin-vllm-")) / "vllm.log",
        max_model_len=max_model_len,
        weight_transfer=_backend(weight_transfer, interpreter),
        memory_fraction=memory_fraction,
        extra_args=tuple(server_args or ()),
    )
    raise typer.Exit(_run_to_its_end(VllmServer(spec), timeout_s))


def _backend(chosen: str, interpreter: Interpreter) -> Backend:
    if chosen == "auto":
        return NCCL_BACKEND if interpreter.device == "cuda" else FILE_BACKEND
    return NCCL_BACKEND if chosen == "nccl" else FILE_BACKEND


def _run_to_its_end(server: VllmServer, timeout_s: float) -> int:
    """The exit code of the command."""
    try:
        asyncio.run(_serve(server, timeout_s))
    except ServerFailed as error:
        typer.echo(error_line(str(error)), err=True)
        if not isinstance(error, PortInUse):
            return FAILED
        server.spec.log.parent.rmdir()  # nothing was started, so nothing was logged
        return BAD_INPUT
    return CLEAR


async def _serve(server: VllmServer, timeout_s: float) -> None:
    """Start, run until somebody asks to end, end. Raises `ServerFailed` when the server ends by itself."""
    running = asyncio.create_task(_run(server, timeout_s))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        typer.echo("[tocsin] ending the server", err=True)
    finally:
        await server.stop()


async def _run(server: VllmServer, timeout_s: float) -> None:
    spec, began = server.spec, time.monotonic()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    version, device = spec.interpreter.version, spec.interpreter.device
    server.start()
    console.print(f"[tocsin] starting vLLM {version} ({device}) with {spec.model}; log: {spec.log}", markup=False)
    with _progress(console) as show:
        await server.wait_until_healthy(timeout_s, show)
    waited_s = time.monotonic() - began
    console.print(f"[tocsin] {spec.url} is healthy after {waited_s:.0f} s. Ctrl-C ends it.", markup=False)
    typer.echo(_configuration(spec))
    await server.wait_until_ended()
    raise server.failure()


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], object]]:
    """Shows what the server does: in place, with the time, in a terminal, as lines anywhere else."""
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    if not console.is_terminal:
        yield lambda stage: console.print(f"[tocsin] {clean(stage)}", markup=False)
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda stage: progress.update(task, description=clean(stage))


def _configuration(spec: ServerSpec) -> str:
    """What a run needs to know, as TOML."""
    lines = ["[sampler]", 'kind = "vllm"', f'urls = ["{spec.url}"]']
    if spec.weight_transfer == FILE_BACKEND and spec.interpreter.device == "cuda":
        lines.append('weight_transfer = "file"')  # a run with a GPU would expect the other
    return "\n".join(lines)
