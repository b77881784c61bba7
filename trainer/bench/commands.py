"""`tocsin bench`: how well faults are detected, and what the diagnostics cost."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from tocsin.diagnostics.errors import BAD_INPUT, error_line

app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console(stderr=True)


@app.callback()
def bench() -> None:
    """Measure the diagnostics: detection on planted faults, and cost."""


@app.command()
def detect(  # noqa: PLR0913 one parameter per option is how typer declares them
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the runs; what is there is not run again.")
    ] = Path("bench"),
    split: Annotated[
        Literal["tuning", "test"], typer.Option("--set", help="Set of runs: thresholds may follow `tuning` only.")
    ] = "test",
    only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Cases to run and judge, by name.")] = None,
    rivals: Annotated[
        bool, typer.Option(help="Judge other detectors on the same runs; needs the extra `bench`.")
    ] = True,
    judge_only: Annotated[bool, typer.Option("--judge-only", help="Train nothing; judge what is there.")] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Markdown file with the marks that the table goes between.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Markdown file for the table of all faults.")
    ] = None,
) -> None:
    """Plant faults in real training and count what is named, when and first. About an hour on two cores.

    \b
    Example:
        tocsin bench detect --set tuning --only 'healthy/*' --no-rivals
    """
    from tocsin.trainer.bench import detect as work  # noqa: PLC0415  imports numpy and the rules
    from tocsin.trainer.bench.cases import cases  # noqa: PLC0415
    from tocsin.trainer.bench.report import check_marks, detection_page, misses, summary_lines, write_between  # noqa: PLC0415
    from tocsin.trainer.bench.score import score  # noqa: PLC0415

    chosen = [case for case in cases(split) if not only or any(fnmatch(case.name, pattern) for pattern in only)]
    if not chosen:
        _refuse(f"--only must match a case of the set `{split}`, got {', '.join(only or [])}")
    _check_folder(out)
    try:
        if write is not None:
            check_marks(write)
        others = work.all_rivals() if rivals else []
        with console.status("") as status:
            if not judge_only:
                work.run_missing(chosen, out, lambda n, name: status.update(f"run {n + 1} of {len(chosen)}: {name}"))
            results = work.judge_all(chosen, out, others, lambda n, name: status.update(f"judging {name}"))
        ours = results.runs["tocsin"]
        if not ours:
            raise ValueError(f"--judge-only needs finished runs in `{out}`, and there are none: run without it first")
        summary = summary_lines([score(name, runs) for name, runs in results.runs.items()], ours, results.shams)
        for line in misses(ours):
            console.print(f"[dim]{escape(line)}[/dim]", soft_wrap=True)
        print("\n".join(summary))
        if write is not None:
            write_between(write, summary)
        if page is not None:
            page.write_text("\n".join(detection_page(summary, ours)) + "\n", encoding="utf-8")
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        _refuse(str(error))


@app.command()
def overhead(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the runs; what is there is not run again.")
    ] = Path("bench"),
    steps: Annotated[
        int, typer.Option(min=20_000, help="Steps of the endless run whose memory is watched; 0.7 ms each.")
    ] = 50_000,
) -> None:
    """Measure what the diagnostics cost a step, how fast a replay is, and whether memory stays flat.

    \b
    Example:
        tocsin bench overhead --steps 1000000
    """
    from tocsin.diagnostics.reader import read_events  # noqa: PLC0415
    from tocsin.trainer.bench import overhead as work  # noqa: PLC0415  imports the rules
    from tocsin.trainer.bench.trial import finished  # noqa: PLC0415

    _check_folder(out)
    try:
        with console.status("") as status:
            for found in work.measure_sizes(out, status.update):
                cost = found.cost
                parts = {"rules": cost.rules_s, "events": cost.events_s, "emit": cost.emit_s}
                shown = ", ".join(f"{name} {s * 1e3:.2f} ms ({s / cost.step_s:.2%})" for name, s in parts.items())
                print(f"{found.size}: step {cost.step_s * 1e3:.0f} ms; {shown}; together {found.share:.2%}")
                print(
                    f"  replay {found.replayed_steps_s:,.0f} steps/s, rules {found.rules_us:.0f} µs a step with warm "
                    f"caches; {found.events_per_step:.1f} events and {found.bytes_per_step / 1024:.1f} KiB a step"
                )
            trial = finished(next(iter(work.SIZES.values())), out)
            assert trial is not None, "it was run above"
            first, last = work.memory_mib(list(read_events(trial.events_path)), steps, status.update)
        print(f"resident memory: {first:.1f} MiB after {work.WARM:,} steps, {last:.1f} MiB after {steps:,}")
    except (ValueError, OSError, RuntimeError) as error:
        _refuse(str(error))


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        _refuse(f"--out must be a folder, got the file `{out}`")


def _refuse(message: str) -> NoReturn:
    typer.echo(error_line(message), err=True)
    raise typer.Exit(BAD_INPUT)
