"""Commands that change a running run: each is a dry run unless told `--yes`, and asks at the run's control door."""

import math
import re
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.actors import check_actor, whoever_is_logged_in
from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.answers import told, unanswered
from tocsin.diagnostics.control import (
    ANSWER_S,
    Asker,
    Look,
    NobodyReads,
    ask,
    ask_act,
    ask_set,
    ask_silence,
    await_verdict,
    carry_out,
    foresee,
    look_at,
)
from tocsin.diagnostics.errors import BAD_INPUT, CANNOT_TELL, CLEAR, OPEN, error_line
from tocsin.diagnostics.options import RUNS, Json, RunArgument, RunsDir
from tocsin.diagnostics.output import note, show, show_json
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import find_run
from tocsin.schemas.base import SCHEMA_VERSION, Model
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.knobs import LIMITS, KnobValue, unknown_knob

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, say what would happen and change nothing.")]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="WHO", help="Who asks: agent:NAME or person:NAME; by default person:<login>."),
]
Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="A second request with this key changes nothing."),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why, on one line; it is kept with the change.")]


class DryRun(Model):
    """What a command without `--yes` prints with `--json`."""

    record: Literal["dry_run"] = "dry_run"
    schema_version: str = SCHEMA_VERSION
    state: Literal["accepted", "refused"]
    reason: str
    """What would happen, or why nothing would."""
    request: ControlRequest


@app.command()
def act(  # noqa: PLR0913 one parameter per option is how typer declares them
    run: RunArgument,
    action_id: Annotated[str, typer.Argument(metavar="ACTION_ID", help="Id of an action of an open diagnostic.")],
    *,
    yes: Yes = False,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="KNOB=VALUE", help="Value that a placeholder leaves open; repeatable."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the verdict on the action.")] = False,
    actor: As = None,
    idempotency_key: Key = None,
    remark: Note = "",
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Apply an action that a diagnostic proposes.

    Exit code 0: accepted, or would be; 2: refused; 3: cannot tell, because the run is dead or over or gave no answer.
    With --wait, 0 means that the target was met and 1 any other verdict.

    \b
    Example:
      tocsin act latest zero-std-groups/trainer#1/raise-group-size --yes
    """
    look = look_at(find_run(run, runs_dir))
    chosen = parse_values(values or [], "--value")
    request = ask_act(look, _asker(actor, idempotency_key, remark), action_id, chosen)
    _carry_out(look, request, yes=yes, json=json, wait=wait)


@app.command("set")
def set_knobs(  # noqa: PLR0913
    run: RunArgument,
    settings: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE", help="New values: all of them or none.")],
    *,
    yes: Yes = False,
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="KNOB=OLD", help="Refuse unless this is in force; by default what is now."),
    ] = None,
    actor: As = None,
    idempotency_key: Key = None,
    remark: Note = "",
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Change knobs while the run goes on, at its next step barrier.

    `tocsin knobs` lists them with their bounds. Exit codes as for `tocsin act`.

    \b
    Example:
      tocsin set latest learning_rate=5e-5 --yes --note "reward fell"
    """
    look = look_at(find_run(run, runs_dir))
    changes, expected = parse_values(settings, "KNOB=VALUE"), parse_values(expect or [], "--expect")
    if unused := ", ".join(expected.keys() - changes.keys()):
        raise ValueError(f"--expect must name a knob that is set, got {unused}")
    request = ask_set(look, _asker(actor, idempotency_key, remark), changes, expected)
    _carry_out(look, request, yes=yes, json=json)


@app.command()
def silence(  # noqa: PLR0913
    run: RunArgument,
    code: Annotated[str, typer.Argument(metavar="CODE", help="Code of a rule.")],
    *,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=0, help="For how long; 0 ends a silence.")],
    yes: Yes = False,
    actor: As = None,
    idempotency_key: Key = None,
    remark: Note = "",
    runs_dir: RunsDir = RUNS,
    json: Json = False,
) -> None:
    """Hold back the records of one rule for some steps. Exit codes as for `tocsin act`.

    \b
    Example:
      tocsin silence latest RWD001 --steps 100 --yes
    """
    look = look_at(find_run(run, runs_dir))
    request = ask_silence(look, _asker(actor, idempotency_key, remark), code.upper(), steps)
    _carry_out(look, request, yes=yes, json=json)


def _simple(verb: Literal["pause", "resume", "checkpoint", "stop"], help: str) -> None:
    """Add the command for a verb that needs nothing but a run."""

    def command(  # noqa: PLR0913
        run: RunArgument,
        *,
        yes: Yes = False,
        actor: As = None,
        idempotency_key: Key = None,
        remark: Note = "",
        runs_dir: RunsDir = RUNS,
        json: Json = False,
    ) -> None:
        look = look_at(find_run(run, runs_dir))
        _carry_out(look, ask(look, _asker(actor, idempotency_key, remark), verb), yes=yes, json=json)

    example = f"\b\nExample:\n  tocsin {verb} latest --yes"
    app.command(verb, help=f"{help}\n\nExit codes as for `tocsin act`.\n\n{example}")(command)


_simple("pause", "Stand still from the next step barrier on.")
_simple("resume", "Go on after `tocsin pause`. A run that ended goes on with `tocsin train --resume`.")
_simple("checkpoint", "Write a checkpoint at the next step barrier.")
_simple("stop", "Write a checkpoint and end the run. Its exit code is that of SIGTERM.")


def parse_values(settings: list[str], option: str) -> dict[str, KnobValue]:
    """`["learning_rate=1e-4"]` as a dictionary. Raises `ValueError` for an unknown knob, no value, or a repetition."""
    found: dict[str, KnobValue] = {}
    for setting in settings:
        path, _, text = (part.strip() for part in setting.partition("="))
        number = _number(text)
        if number is None:
            raise ValueError(f"{option} must be `knob=value` with a number or true/false, got `{setting}`")
        if path not in LIMITS:
            raise ValueError(unknown_knob(path))
        if path in found:
            raise ValueError(f"{option} must name each knob once, got `{path}` twice")
        found[path] = number
    return found


def _number(text: str) -> KnobValue | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else _finite(float(text))
    except ValueError:
        return None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _asker(actor: str | None, key: str | None, remark: str) -> Asker:
    actor = whoever_is_logged_in() if actor is None else check_actor(actor, "--as")
    return Asker(actor=actor, idempotency_key=key, note=remark)


def _carry_out(look: Look, request: ControlRequest, *, yes: bool, json: bool, wait: bool = False) -> NoReturn:
    """Foresee the answer, or ask and wait for it. Raises `typer.Exit`."""
    if not yes:
        _foretell(look, request, json=json)
    cursor = FeedReader(look.folder).page(limit=1).next_cursor
    try:
        outcome = carry_out(look, request, timeout_s=ANSWER_S)
    except Refused as error:
        _refuse(str(error), CANNOT_TELL if isinstance(error, NobodyReads) else BAD_INPUT)
    if json:
        show_json(*([outcome.answer] if outcome.answer else []), *outcome.effects)
    if outcome.answer is None:
        _refuse(unanswered(ANSWER_S), CANNOT_TELL)
    reason = outcome.answer.reason
    if outcome.state == "refused":
        _refuse(f"refused: {reason}", BAD_INPUT)
    if not json:
        show(*map(Text, told(outcome)))
    if not wait or outcome.state == "duplicate":
        raise typer.Exit(CLEAR)
    _await_verdict(look, request, cursor, json=json)


def _foretell(look: Look, request: ControlRequest, *, json: bool) -> NoReturn:
    try:
        effect = foresee(look, request).effect
    except Refused as error:
        if json:
            show_json(DryRun(state="refused", reason=str(error), request=request))
        _refuse(f"would be refused: {error}", CANNOT_TELL if isinstance(error, NobodyReads) else BAD_INPUT)
    if json:
        show_json(DryRun(state="accepted", reason=effect, request=request))
    else:
        show(Text(f"would be accepted: {effect}"))
    note("dry run, nothing was changed; add --yes to do it")
    raise typer.Exit(CLEAR)


def _refuse(message: str, code: int) -> NoReturn:
    note(error_line(message))
    raise typer.Exit(code)


def _await_verdict(look: Look, request: ControlRequest, cursor: str, *, json: bool) -> NoReturn:
    assert request.action_id is not None
    verdict = await_verdict(look.folder, request.action_id, cursor)
    if verdict is None:
        _refuse(f"the run is over without a verdict on `{request.action_id}`", CANNOT_TELL)
    _print(verdict, json=json)
    raise typer.Exit(CLEAR if verdict.state == "target_met" else OPEN)


def _print(record: Any, *, json: bool) -> None:
    if json:
        show_json(record)
    else:
        show(render.styled(record))
