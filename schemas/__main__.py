"""`python -m tocsin.schemas [--check]`: write the JSON Schemas, or fail when they are not fresh."""

import sys

from tocsin.schemas.export import stale, write


def main(arguments: list[str]) -> int:
    """Exit code 1 when `--check` finds a stale file."""
    if arguments == ["--check"]:
        for path in stale():
            print(f"{path} is not fresh; run `make generate`", file=sys.stderr)
        return 1 if stale() else 0
    for path in write():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
