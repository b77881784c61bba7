"""One run of the auto-tuning experiment in a process of its own: `python -m tocsin.trainer.bench.attempt FOLDER`.

FOLDER holds `config.json`; the run goes to `FOLDER/runs`.
"""

import sys
from pathlib import Path

from tocsin.diagnostics import added_rules
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.config import RunConfig
from tocsin.trainer.bench.wrong_actions import WRONG_CODE, WrongOnPurpose
from tocsin.trainer.launch import new_run


def main(arguments: list[str]) -> int:
    """The exit code of the run."""
    folder = Path(arguments[0])
    config = RunConfig.model_validate_json((folder / "config.json").read_text())
    if "--wrong-rule" in arguments:
        # No package can take the place of our rules, on purpose. This process exists to see what a wrong one leads to.
        others = [rule for rule in ALL_RULES if rule.code != WRONG_CODE]
        vars(added_rules)["ALL_RULES"] = (*others, WrongOnPurpose())
    return new_run(config, folder / "runs", "bench", None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
