"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Final

import typer

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Path, id, unique prefix of an id, or `latest`.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder that holds the runs.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON Lines.")]

RUNS: Final = Path("runs")
