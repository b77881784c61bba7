"""Where a receiver is. The configuration names environment variables; their values stay in here and are never shown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tocsin.schemas.alerts import AlertConfig, address_problem


@dataclass(frozen=True, slots=True)
class Address:
    """Where to post, and with which headers."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    where: str
    """`webhook at http://127.0.0.1:8080`: what may be shown."""


def resolve(config: AlertConfig, environment: Mapping[str, str]) -> Address:
    """The address of a receiver. Raises `ValueError` that names the variable, not its value."""
    for name in config.secrets:
        if not environment.get(name, "").strip():
            raise ValueError(f"`alerts`: the environment variable `{name}` must be set, and is not")
    source = f"environment variable `{config.url_env}`" if config.url_env else "`url`"
    url = environment[config.url_env].strip() if config.url_env else str(config.url)
    problem = address_problem(url)
    if problem:
        raise ValueError(f"`alerts`: {source} {problem}")
    headers = {header: environment[name].strip() for header, name in config.headers.items()}
    for header, value in headers.items():
        if not re.fullmatch(r"[\x20-\x7e]+", value):
            raise ValueError(f"`alerts`: `{config.headers[header]}` must be one line of printable ASCII")
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return Address(url, headers, f"{config.kind} at {parts.scheme}://{host}{port}")
