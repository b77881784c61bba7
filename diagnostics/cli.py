"""The `tocsin` command: reading side. Data goes to standard output, everything else to standard error.

`train` and `demo` join through entry points (`plugins`); nothing here imports the trainer.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from json import dumps
from typing import Annotated, Literal

import typer
from rich.markdown import Markdown
from rich.text import Text

from tocsin.diagnostics import cli_control, cli_send, cli_skill, display, render
from tocsin.diagnostics.added_rules import added
from tocsin.diagnostics.catalogue import describe, document, entries, find_entry, package_of
from tocsin.diagnostics.errors import BAD_INPUT, CANNOT_TELL, CLEAR, OPEN, error_line, judge
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.follow import follow, page_line
from tocsin.diagnostics.options import RUNS, Json, RunArgument, RunsDir
from tocsin.diagnostics.output import StdoutConsole, flush, note, show, show_json
from tocsin.diagnostics.plugins import LazyGroup
from tocsin.diagnostics.reader import OPEN_STATES, FeedReader
from tocsin.diagnostics.recording import events_file, judge_again, recorded_events
from tocsin.diagnostics.runs import RunNotFound, find_run
from tocsin.diagnostics.snapshot import around, grid
from tocsin.diagnostics.status import gather, metrics, recent
from tocsin.diagnostics.watch import watch as watch_run
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.feed import Page
from tocsin.schemas.knobs import KNOBS

app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_control.app)
app.add_typer(cli_send.app)
app.add_typer(cli_skill.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tocsin {version('tocsin')}")
        raise typer.Exit


@app.callback()
def tocsin(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Asynchronous GRPO, and what a run is doing wrong.

    \b
    Exit codes:
      0  clear
      1  something is open, or the run failed
      2  usage or bad input
      3  cannot tell: no such run, a dead writer, nothing evaluated,
         or a stalled writer and nothing open

    \b
    Example:
      tocsin status latest
    """


@app.command()
def status(
    run: RunArgument,
    pending: Annotated[
        bool, typer.Option("--pending", help="Also show what has held for too short a time to be reported.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Show the writer, the newest metrics, and what is open.

    A dead writer is exit code 3 whatever is on record; a run that ended is judged by what was open at its end. Once
    a run is over its events are judged again: a feed that lost something is exit code 3. With --json: one line of
    kind `status`, every open diagnostic, then the coverage record.

    \b
    Example:
      tocsin status latest
    """
    folder = find_run(run, runs_dir)
    replayed = judge_again(folder / EVENTS_FILE) if pending else None
    seen = gather(folder, replayed=replayed)
    if json:
        show_json(seen.line(), *seen.active, *(seen.pending or []), *([seen.coverage] if seen.coverage else []))
    else:
        show(display.status_view(seen))
    raise typer.Exit(seen.exit_code)


@app.command()
def feed(  # noqa: PLR0913 one parameter per option is how typer declares them
    run: RunArgument,
    *,
    since: Annotated[
        str | None, typer.Option("--since", metavar="CURSOR", help="Go on after this cursor of an earlier page.")
    ] = None,
    following: Annotated[bool, typer.Option("--follow", help="Go on until the run ends or is dead.")] = False,
    min_severity: Annotated[
        Literal["info", "warning", "critical"] | None,
        typer.Option("--min-severity", help="Leave out diagnostics that are milder."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Most records of one page.")] = 20,
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Print diagnostics, actions and coverage, oldest first.

    Without --since: what is open, and the tail. With --json the last line of every page is
    `{"record": "page", "next_cursor": ..., "has_more": ..., "reset": ..., "active": ..., "writer": ...}`;
    pass its next_cursor as --since to go on. --follow prints such a line after every batch of records.

    \b
    Example:
      tocsin feed latest --min-severity warning

    \b
    Polling from a shell:
      page=$(tocsin feed latest --json --since "$cursor")
      cursor=$(echo "$page" | tail -n 1 | jq -r .next_cursor)
    """
    folder = find_run(run, runs_dir)
    reader = FeedReader(folder)
    page = reader.page(since, limit=limit, min_severity=min_severity)
    _show_page(page, json=json)
    for later in follow(reader, page, limit=limit, min_severity=min_severity) if following else ():
        page = later
        _show_page(page, json=json)
    if not json:
        note(f"next: tocsin feed {run} --since {page.next_cursor}{' (there is more)' if page.has_more else ''}")
    ended = metrics(recent(folder / EVENTS_FILE), page.writer)
    raise typer.Exit(judge(page.active, page.writer, reader.coverage(), failed=ended.outcome == "failed"))


def _show_page(page: Page, *, json: bool) -> None:
    if page.reset:
        note("the feed was replaced since this cursor was made; reading starts over")
    if json:
        show_json(*page.records, page_line(page))
    else:
        show(*map(render.styled, page.records))


@app.command()
def watch(run: RunArgument, runs_dir: RunsDir = RUNS) -> None:
    """Watch a run live, from its files alone, until it ends or is dead.

    Exit code as for `status`. Ctrl-C leaves the run alone.

    \b
    Example:
      tocsin watch latest
    """
    folder = find_run(run, runs_dir)
    watch_run(folder, StdoutConsole())
    raise typer.Exit(gather(folder).exit_code)


@app.command()
def get(
    run: RunArgument,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a diagnostic or of an action; or a rule, for its newest finding.")
    ],
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Print one diagnostic in full, with its history.

    Exit code 1 while it is open. With --json: every record about it, oldest first, so that the last diagnostic line
    is its state now.

    \b
    Example:
      tocsin get latest zero-std-groups/trainer#1
    """
    reader = FeedReader(find_run(run, runs_dir))
    writer = reader.writer_state()
    records = reader.history(reader.known_id(id))
    newest = [record for record in records if isinstance(record, Diagnostic)][-1:]
    if json:
        show_json(*records)
    else:
        show(*map(display.diagnostic_view, newest), Text(), *map(render.styled, records))
    is_open = [record for record in newest if record.state in OPEN_STATES]
    raise typer.Exit(CANNOT_TELL if writer.state == "dead" else OPEN if is_open else CLEAR)


@app.command()
def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="Code or name of a failure mode.")],
    json: Json = False,
) -> None:
    """Print the documentation of a rule, or why a failure mode has none.

    \b
    Example:
      tocsin explain RWD001
    """
    entry = find_entry(code)
    if json:
        show_json(dumps(describe(entry)))
    else:
        show(Markdown(document(entry)) if sys.stdout.isatty() else Text(document(entry)))


@app.command()
def rules(json: Json = False) -> None:
    """List all failure modes, with their rules or why they have none, and the rules of other packages.

    With --json: one object per mode; one without a rule has `not_evaluated` with `reason` and `detail`, and a rule of
    another package has `package`.

    \b
    Example:
      tocsin rules
    """
    if json:
        show_json(*(dumps(describe(entry)) for entry in entries()))
    else:
        show(display.rule_table(entries(), package_of))
    _note_left_out()


def _note_left_out() -> None:
    for line in added().lines():
        note(render.clean(line))


@app.command()
def snapshot(
    run: RunArgument,
    around_step: Annotated[int, typer.Option("--around", metavar="STEP", min=0, help="Optimizer step in the middle.")],
    window: Annotated[int, typer.Option("--window", metavar="W", min=0, max=1000, help="Steps on each side.")] = 2,
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Print every metric of every event around a step.

    Columns over groups are reduced to min, mean and max. With --json: one line per event.

    \b
    Example:
      tocsin snapshot latest --around 120 --window 3
    """
    seen = around(recorded_events(events_file(run, runs_dir)), step=around_step, width=window)
    if json:
        show_json(*(row.json() for row in seen.rows))
    else:
        show(display.grid_table(grid(seen), around=around_step))


@app.command()
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run as elsewhere, or path of an events.jsonl.")],
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Run every rule over a recorded run and print what they say.

    The run is not touched. The rules are those that are installed here, of other packages as well, switched and tuned
    as its manifest says. Exit code 1 when something is open at the end of the recording, 3 when no rule could be
    evaluated.

    \b
    Example:
      tocsin replay latest
    """
    verdict = judge_again(events_file(run, runs_dir))
    if json:
        show_json(*verdict.records)
    else:
        show(*map(render.styled, verdict.records))
    _note_left_out()
    coverage = verdict.engine.coverage
    evaluated = coverage is not None and coverage.evaluated
    raise typer.Exit(OPEN if verdict.engine.active() else CLEAR if evaluated else CANNOT_TELL)


@app.command()
def knobs(json: Json = False) -> None:
    """List what can be changed while a run goes on.

    \b
    Example:
      tocsin knobs
    """
    if json:
        show_json(*KNOBS)
    else:
        show(display.knob_table(KNOBS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. An error becomes one line on standard error.

    This is the boundary that a person meets: what is wrong with an argument, a file or an environment is a
    `ValueError` or an `OSError` by convention; anything else is a bug and shows its traceback.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = typer.main.get_command(app).main(given or ["--help"], prog_name="tocsin", standalone_mode=False)
        flush()
    except typer.Exit as closed:
        return closed.exit_code
    except typer.TyperException as error:
        return _refuse(f"{error.format_message().rstrip('.')}; see `{_help_command(given)}`", BAD_INPUT)
    except RunNotFound as error:
        return _refuse(str(error), CANNOT_TELL)
    except (ValueError, OSError) as error:
        return _refuse(str(error), BAD_INPUT)
    if not given:
        return BAD_INPUT
    return result if isinstance(result, int) else CLEAR


def _refuse(message: str, code: int) -> int:
    print(error_line(message), file=sys.stderr)
    return code


def _help_command(given: Sequence[str]) -> str:
    """The command whose help explains a usage error."""
    group = typer.main.get_group(app)
    known = given[:1] if set(given[:1]) <= set(group.list_commands(typer.Context(group))) else []
    return " ".join(["tocsin", *known, "--help"])


if __name__ == "__main__":
    sys.exit(main())
