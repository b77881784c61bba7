"""The two shell scripts on one live run: one reports what the other changes."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.agents_examples.wasteful import CURE, EXAMPLES, FINDING, following, states, until_state, wasteful
from tests.trainer.tiny import TinyPolicy
from tocsin.diagnostics.control import look_at

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(shutil.which("jq") is None, reason="the scripts need jq"),
]


def test_poll_reports_and_act_applies_and_waits_for_the_verdict(tiny_policy: TinyPolicy, tmp_path: Path):
    polled, acted = tmp_path / "polled.txt", tmp_path / "acted.txt"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with wasteful(tiny_policy, tmp_path) as run:
        poll_sh, act_sh = (["bash", str(EXAMPLES / name), str(run.folder)] for name in ("poll.sh", "act.sh"))
        with (
            following(poll_sh, polled, PATH=path, INTERVAL="0.5") as poll,
            following(act_sh, acted, PATH=path, AGENT="nightwatch") as act,
        ):
            until_state(run, CURE, "target_met")
            knobs = look_at(run.folder).situation.knobs
            run.until(lambda: "target_met" in acted.read_text())
            run.interrupt()
            run.wait()
            assert (poll.wait(60), act.wait(60)) == (1, 1), "SYS013, which nobody can answer, is open at the end"

    assert states(run.folder, CURE, "agent:nightwatch") == ["approved", "applied", "target_met"]
    assert knobs.microbatch_tokens == 256
    summary = "VRAM peaks at 18% of 1.3 GiB during forward_backward"
    assert f"firing warning SYS001 {summary}" in polled.read_text()
    assert "  try: raise microbatch_tokens 64 to 256 [review]" in polled.read_text()
    answered = acted.read_text()
    assert answered.startswith(summary)
    assert "\n  -> raise microbatch_tokens 64 to 256\n" in answered
    assert "applied at step" in answered
    assert FINDING in answered
