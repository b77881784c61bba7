"""Pages that are generated and committed: written by `make generate`, compared by `make check`."""

import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(path: Path, render: Callable[[], str], arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it. Exit code 1 when it is not fresh, 2 for anything else given."""
    if arguments not in ([], ["--check"]):
        print(f"arguments must be none or `--check`, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not path.parent.is_dir():
        print(f"{path.parent} must be a folder; run this in a checkout of the repository", file=sys.stderr)
        return 2
    text = render()
    if not arguments:
        path.write_text(text, encoding="utf-8")
        return 0
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        print(f"{path} is not fresh; run `make generate`", file=sys.stderr)
        return 1
    return 0
