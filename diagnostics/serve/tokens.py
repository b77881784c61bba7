"""Who may change a run over the network: tokens, each with the actor that it stands for.

A token is kept as its hash, is compared in constant time, and appears in no message.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.diagnostics.actors import ACTOR, check_actor, whoever_is_logged_in

VARIABLE: Final = "TOCSIN_TOKENS"
"""Environment variable with the lines of a token file."""
SHORTEST: Final = 16
"""Characters: a shorter token can be guessed."""
MAX_FILE_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    actor: str


class Tokens:
    """The tokens of one server."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        """`entries` are pairs of actor and token. Raises `ValueError`, which quotes no token."""
        self._entries: list[_Entry] = []
        for actor, token in entries:
            _check(actor, token)
            digest = _digest(token)
            if any(entry.digest == digest for entry in self._entries):
                raise ValueError(f"every actor must have a token of its own, and `{actor}` has that of another line")
            self._entries.append(_Entry(digest, actor))

    def actor(self, token: str | None) -> str | None:
        """Whom `token` stands for; None for a wrong one. Takes the same time whichever it is."""
        digest = _digest(token or "")
        found = None
        for entry in self._entries:
            found = entry.actor if hmac.compare_digest(entry.digest, digest) else found
        return found


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization` header."""
    found = re.fullmatch(r"(?i:bearer) +([\x21-\x7e]+)", (header or "").strip())
    return found[1] if found else None


def parse_tokens(text: str, source: str) -> Tokens:
    """Lines of `agent:nightwatch: TOKEN`; empty ones and those that begin with `#` are left out.

    Raises `ValueError`, which names the line and quotes nothing of it.
    """
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 2:
            raise ValueError(f"{source}: line {number} must be `actor: token`, got {len(parts)} words")
        actor = parts[0].removesuffix(":")
        if not ACTOR.fullmatch(actor):
            raise ValueError(f"{source}: line {number} must begin with an actor, agent:NAME or person:NAME")
        entries.append((actor, parts[1]))
    if not entries:
        raise ValueError(f"{source}: must hold a line `actor: token`, got none")
    try:
        return Tokens(entries)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def read_tokens(path: Path) -> Tokens:
    """The tokens of a file that nobody else may read. Raises `ValueError` and `OSError`."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ValueError(f"`{path}` must be readable by its owner alone, got mode {mode:03o}; chmod 600 {path}")
        return parse_tokens(file.read(MAX_FILE_BYTES).decode(errors="replace"), str(path))


def new_token() -> tuple[Tokens, str, str]:
    """A token that nobody can guess, for the person who starts the server; with the actor and the token itself."""
    actor, token = whoever_is_logged_in(), secrets.token_urlsafe(24)
    return Tokens([(actor, token)]), actor, token


def _check(actor: str, token: str) -> None:
    check_actor(actor, "an actor")
    if len(token) < SHORTEST:
        raise ValueError(
            f"the token of `{actor}` must have at least {SHORTEST} characters, got {len(token)}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
