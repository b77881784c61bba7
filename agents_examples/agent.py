#!/usr/bin/env python3
"""Follows a run until it is over and answers its warnings: one action at a time, each at most once.

    python agents_examples/agent.py latest          # says what it would do
    python agents_examples/agent.py latest --yes    # does it, waits for the verdict, takes back what did not help

What another finding explains is left alone, and so is a run that has fallen silent. Exit code, as of `tocsin feed`:
0 nothing is open at the end, 1 something is, 2 bad input, 3 cannot tell: there is no such run, or it died.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.diagnostics.actors import check_actor
from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.control import (
    ANSWER_S,
    VERDICTS,
    Asker,
    NobodyReads,
    Outcome,
    ask_act,
    ask_revert,
    carry_out,
    foresee,
    look_at,
)
from tocsin.diagnostics.errors import BAD_INPUT, CANNOT_TELL, error_line, judge
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.render import clean, line, value
from tocsin.diagnostics.runs import RunNotFound, find_run
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.control import ControlRequest, KnobPatch
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.feed import Page
from tocsin.schemas.knobs import KnobValue

ALLOWED = {"automatic": ("automatic",), "review": ("automatic", "review")}
"""Applicabilities that it may apply, by the word of `--allow`."""
REMEMBERED = 10_000
"""Records of the feed that it looks through for changes of its own when it is started."""
OVERTAKEN = "ask again"
"""How the control door closes a refusal of what came too late: the same may be asked with a newer look."""


@dataclass
class Change:
    """A change of this agent that is on trial, or that must be taken back."""

    action_id: str
    request_id: str | None
    undo: dict[str, KnobPatch] = field(default_factory=dict)
    """What takes it back, by knob; empty until it is applied."""
    verdict: str | None = None
    """Why it must be taken back; None while it is on trial."""
    undo_id: str | None = None
    """The request that takes it back, when it was accepted and is not carried out yet."""
    is_overtaken: bool = False
    """Whether it was said that taking it back takes more than one attempt."""


class Agent:
    """Reads one run and, with `--yes`, changes it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.reader = FeedReader(folder)
        self.tried: set[str] = set()
        self.changes: dict[str, Change] = {}
        """By action: one at a time, unless an earlier life of this agent left more."""

    def follow(self) -> int:
        """Poll until nobody writes any more; returns the exit code."""
        self.remember()
        cursor = None
        while True:
            page = self.poll(cursor)
            cursor = page.next_cursor
            if page.writer.state == "alive" and not page.has_more:
                self.act()
            if not page.has_more and page.writer.state in ("ended", "dead"):
                return judge(page.active, page.writer, self.reader.coverage())
            time.sleep(0 if page.has_more else self.options.interval)

    def remember(self) -> None:
        """Take up what an earlier life of this agent applied and did not see through."""
        for record in self.reader.page(limit=REMEMBERED).records:
            if isinstance(record, ActionRecord):
                self.observe(record)

    def poll(self, cursor: str | None) -> Page:
        """Print what is new, and take it in."""
        page = self.reader.page(cursor)
        for record in page.records:
            if not isinstance(record, Coverage):
                print(line(record), flush=True)
            if isinstance(record, ActionRecord) and (text := self.observe(record)):
                say(text)
        return page

    def act(self) -> None:
        """Take back what failed; when nothing is left on trial, answer the next finding."""
        try:
            for change in [*self.changes.values()]:
                if change.verdict is not None and change.undo_id is None:
                    self.take_back(change)
            if not self.changes:
                self.answer_next()
        except Refused as error:
            say(f"refused: {error}")

    def answer_next(self) -> None:
        """Take the preferred action of the most urgent finding that is open now and that no other one explains."""
        for finding in self.reader.active():
            is_root = all(relation.kind != "explained_by" for relation in finding.relations)
            if not is_root or finding.state != "firing" or finding.severity == "info":
                continue
            for action in finding.actions:
                is_ready = action.preferred and action.disabled is None and action.id not in self.tried
                if is_ready and action.applicability in ALLOWED[self.options.allow]:
                    self.tried.add(action.id)
                    return self.answer(finding, action)

    def answer(self, finding: Diagnostic, action: Action) -> None:
        """Explain, try, and apply. Raises `Refused`."""
        for cause in finding.causes[:2]:
            say(f"{finding.code} perhaps because {cause.text}; it shows in this: {cause.check}")
        look = look_at(self.folder)
        # The key makes a repetition harmless: this program may be killed and started again at any moment.
        asker = Asker(actor=self.options.actor, idempotency_key=action.id[-128:], note=f"answers {finding.id}"[:200])
        request = ask_act(look, asker, action.id)
        say(f"try {clean(action.title)} [{action.applicability}]: {foresee(look, request).effect}")
        if not self.options.yes:
            return say("dry run, nothing was changed; --yes does it")
        if self.ask(request).state == "duplicate":
            return say("it was asked for before, and is not done twice")
        self.changes[action.id] = Change(action.id, request.id)

    def ask(self, request: ControlRequest) -> Outcome:
        """Hand the request in; returns what became of it. Raises `Refused`."""
        outcome = carry_out(look_at(self.folder), request, timeout_s=ANSWER_S)
        if outcome.answer is None:
            raise Refused(f"no answer, so it was withdrawn: {OVERTAKEN}")
        if outcome.state == "refused":
            raise Refused(outcome.answer.reason)
        return outcome

    def observe(self, record: ActionRecord) -> str | None:
        """Take one record in; returns what there is to say. The newest counts, so that one may be seen twice."""
        if record.state in ("applied", "reverted"):
            return self.moved(record)
        change = self.changes.get(record.action_id)
        if change is None:
            return None
        if change.undo_id is not None and record.request_id == change.undo_id:
            is_refused = record.state == "rejected"
            change.undo_id = None if record.state in ("rejected", "expired") else change.undo_id
            return self.not_taken_back(change, record.note) if is_refused else None
        if record.request_id != change.request_id:
            return None
        if record.state in ("rejected", "expired"):
            del self.changes[record.action_id]
            return f"{record.state}: {clean(record.note)}"
        return self.judged(change, record) if record.state in VERDICTS else None

    def moved(self, record: ActionRecord) -> str | None:
        """A knob has another value: a change of ours is in force, was taken back, or has been overwritten."""
        if record.actor == "learner":  # resumed before the change, which may be tried anew
            self.tried.discard(record.action_id)
        mine = self.changes.get(record.action_id)
        back = mine.undo.get(record.path or "") if mine is not None else None
        is_back = record.state == "reverted" or (back is not None and back.to == record.after)
        if mine is not None and (is_back or mine.request_id != record.request_id):
            del self.changes[record.action_id]
        others = [c for c in self.changes.values() if c.action_id != record.action_id and record.path in c.undo]
        for change in others:
            del self.changes[change.action_id]
        is_own = record.actor == self.options.actor and record.diagnostic_id is not None
        if is_own and not is_back and None not in (record.path, record.before, record.after):
            self.tried.add(record.action_id)
            change = self.changes.setdefault(record.action_id, Change(record.action_id, record.request_id))
            undo = {"path": record.path, "expect": record.after, "to": record.before}
            change.undo[str(record.path)] = KnobPatch.model_validate(undo)
        return f"{record.path} was changed by {clean(record.actor)}: a person has to decide" if others else None

    def judged(self, change: Change, record: ActionRecord) -> str | None:
        """See what came of a change: one that harmed, or did nothing, must be taken back."""
        findings = [r for r in self.reader.history(record.diagnostic_id or "") if isinstance(r, Diagnostic)]
        actions = [action for finding in findings for action in finding.actions if action.id == record.action_id]
        is_undone = not actions or actions[-1].on_failure == "revert"
        if record.state == "harmed" or (record.state == "no_effect" and is_undone):
            change.verdict = record.state
            return None
        del self.changes[change.action_id]
        return f"verdict {record.state}: nothing to take back"

    def take_back(self, change: Change) -> None:
        """Ask for the values from before the change. It stays on the list until that is done or cannot be done."""
        look = look_at(self.folder)
        knobs = look.situation.knobs.model_dump()
        patches = [*change.undo.values()]
        if not self.options.yes:
            del self.changes[change.action_id]
            return say(f"verdict {change.verdict}: with --yes it would be taken back: {shown(patches)}")
        if other := [p.path for p in patches if not is_same(knobs.get(p.path), p.expect)]:
            del self.changes[change.action_id]
            return say(f"verdict {change.verdict}, and {', '.join(other)} has another value by now: left as it is")
        note = f"verdict {change.verdict}: the knob goes back, the weights keep what they learned meanwhile"
        request = ask_revert(look, Asker(actor=self.options.actor, note=note), change.action_id, patches)
        try:
            outcome = self.ask(request)
        except NobodyReads:
            return None  # whoever follows the run when it is resumed takes this up
        except Refused as error:
            text = self.not_taken_back(change, str(error))
            return say(text) if text else None
        if outcome.state == "accepted":
            change.undo_id = request.id  # in a long step: the feed will say what became of it
            return None
        del self.changes[change.action_id]
        say(f"verdict {change.verdict}, so it was taken back: {shown(patches)}")

    def not_taken_back(self, change: Change, reason: str) -> str | None:
        """What there is to say about a refusal. Of one that came too late that is little: it is asked again."""
        if OVERTAKEN not in reason:
            del self.changes[change.action_id]
            return f"verdict {change.verdict}, and it cannot be taken back: {clean(reason)}; a person has to decide"
        is_said, change.is_overtaken = change.is_overtaken, True
        return None if is_said else f"verdict {change.verdict}, and it is asked for until it is taken back: {reason}"


def is_same(one: KnobValue | None, other: KnobValue | None) -> bool:
    """Whether two values are one, which may lack the last bits where it was written down again."""
    return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9)


def shown(patches: Iterable[KnobPatch]) -> str:
    """What moves."""
    return ", ".join(f"{patch.path} {value(patch.expect)} -> {value(patch.to)}" for patch in patches)


def say(text: str) -> None:
    """One line about what this program does, apart from those of the feed."""
    print(f"  agent: {text}", flush=True)


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", nargs="?", default="latest", help="folder, id, prefix of one, or `latest`")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--yes", action="store_true", help="do it; otherwise say what would happen")
    parser.add_argument(
        "--allow", choices=ALLOWED, default="review", help="`review`, the default, includes `automatic`"
    )
    parser.add_argument("--as", dest="actor", default="agent:agent.py", help="the name that the run will show")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between polls")
    options = parser.parse_args(arguments)
    try:
        check_actor(options.actor, "--as")
        return Agent(find_run(options.run, options.runs_dir), options).follow()
    except (ValueError, OSError) as error:
        print(error_line(str(error)), file=sys.stderr)
        return CANNOT_TELL if isinstance(error, RunNotFound) else BAD_INPUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
