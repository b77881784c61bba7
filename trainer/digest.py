"""The digest of a weights file: stated by the learner, proved by whoever loads the file."""

import hashlib
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 24


def digest_of(path: Path) -> str:
    """BLAKE2b of a file, 16 bytes, hexadecimal. Raises `OSError`."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
