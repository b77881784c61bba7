"""Packages with rules, installed in a folder of the test: a module and a `dist-info`, as an installer leaves them."""

import textwrap
from pathlib import Path

RULE = '''
from dataclasses import dataclass
from tocsin.diagnostics.proposals import look, measured
from tocsin.diagnostics.rule import Finding, Rule, Timing, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause

@dataclass(frozen=True, kw_only=True)
class Long(Rule):
    """Completions are longer than somebody pays for.

    ## What to do
    Pay more.
    """
    code, name, title = "XAC001", "x-long", "Longer than paid for"
    kind, proof, where = "fault", "injected", "sampler"
    reads, trigger = ("batch_consumed.length",), BatchConsumed
    timing = Timing(unit="steps", window=1, warm_up=0, persistence=2, clear_persistence=2)
    causes = (Cause(text="nobody said stop", weight=0.5, check="ask"),)
    fire: float = threshold(6, "Tokens", unit="tokens")

    def check(self, features, *, is_open):
        mean = features.event.length.mean
        if mean <= self.fire:
            return None
        evidence = measured(self.reads[0], mean, ">", self.fire, unit="tokens", over=(1, "steps"))
        return Finding(severity="warning", summary=f"{mean:.1f} tokens", evidence=(evidence,), proposals=())
'''
"""A sound rule, which fires on the recorded demo, whose completions have seven tokens."""


def package(folder: Path, name: str, points: dict[str, str], **modules: str) -> Path:
    """Install the distribution `name` 1.0 with entry points of the group `tocsin.rules` below `folder`."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {target}" for point, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[tocsin.rules]", *lines, ""]))
    for module, body in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(body))
    return folder
