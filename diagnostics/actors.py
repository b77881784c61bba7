"""Who asks at a control door: `person:ada`, `agent:nightwatch`."""

import getpass
import re
from typing import Final

ACTOR: Final = re.compile(r"(person|agent)(:[A-Za-z0-9._@-]{1,64})?")


def whoever_is_logged_in() -> str:
    """`person:<login>`, or `person` for a user id without a name, as in many containers."""
    try:
        login = re.sub(r"[^A-Za-z0-9._@-]", "-", getpass.getuser())[:64]
    except (OSError, KeyError):
        login = ""
    return f"person:{login}" if login else "person"


def check_actor(actor: str, option: str) -> str:
    """`actor` when it may ask. `option` is what a message calls it. Raises `ValueError`."""
    if not ACTOR.fullmatch(actor):
        raise ValueError(f"{option} must be agent:NAME or person:NAME, got `{actor}`; for instance agent:nightwatch")
    return actor
