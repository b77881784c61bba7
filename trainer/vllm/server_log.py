"""What a server's log says in one line: how far a start is, and why one failed.

vLLM writes a traceback per process of its tree, each behind `(Worker pid=8559) ERROR 11-29 21:04:45 [file.py:953] `,
and the last of them usually says no more than that another process failed.
"""

import re
from typing import Final

PREFIX: Final = re.compile(
    r"^(?:\(\w+ pid=\d+\) )?(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +)?"
    r"(?:\d\d-\d\d [\d:]+ )?(?:\[[\w.]+:\d+\] ?)?"
)
EXCEPTION: Final = re.compile(r"^(?:\w+\.)*(?P<name>\w*(?:Error|Exception|Exit|Interrupt))(?:: (?P<text>.*))?$")
USAGE: Final = re.compile(r"^[\w.]+: error: (?P<text>.+)$")
ELSEWHERE: Final = re.compile(r"[Ss]ee (?:root cause above|stack trace)|Failed core proc")
"""In an exception that only says that another process had one."""
CHAINED: Final = ("The above exception was the direct cause", "During handling of the above exception")
MAX_REASON: Final = 400
MAX_STAGE: Final = 90


def reason(log: str) -> str:
    """Why the server ended: its usage error or exception, else how it ended, else its last line; one line."""
    lines = log.splitlines()
    usage = [found["text"] for line in lines if (found := USAGE.match(_text(line)))]
    if usage:
        return _short(usage[-1], MAX_REASON)
    exceptions = _exceptions(lines)
    own = [text for text, _ in exceptions if not ELSEWHERE.search(text)]
    if own:
        is_elsewhere = ELSEWHERE.search(exceptions[-1][0]) is not None
        logged = [text for text, level in exceptions if level == "ERROR" and not ELSEWHERE.search(text)]
        # The process that failed first logs it as an error; those that miss it fail later.
        return _short((logged or own)[0] if is_elsewhere else own[-1], MAX_REASON)
    spoken = [line for line in lines if line.strip()]
    return _short(_text(spoken[-1]).removeprefix("[tocsin] "), MAX_REASON) if spoken else "it said nothing"


def stage(log: str) -> str:
    """What the server did last, as it says itself; empty when it has not said anything yet."""
    for line in reversed(log.splitlines()):
        found = PREFIX.match(line)
        assert found is not None, "every part of the prefix is optional"
        text = line[found.end() :]
        if found["level"] == "INFO" and re.match(r"[A-Z][a-z]", text):
            return _short(text, MAX_STAGE)
    return ""


def _exceptions(lines: list[str]) -> list[tuple[str, str | None]]:
    """`Name: text` and level of the last exception of every traceback; a chain of exceptions counts as one."""
    found: list[tuple[str, str | None]] = []
    is_chained = False
    for index, line in enumerate(lines):
        text = _text(line)
        match = EXCEPTION.match(text)
        if match is None:
            is_chained = is_chained or text.startswith(CHAINED)
            continue
        if is_chained and found:
            found.pop()
        is_chained = False
        prefix = PREFIX.match(line)
        assert prefix is not None, "every part of the prefix is optional"
        found.append((_message(match, lines[index + 1 : index + 2]), prefix["level"]))
    return found


def _message(match: re.Match[str], following: list[str]) -> str:
    """pydantic says on the line below what is wrong."""
    if match["name"] == "ValidationError" and following:
        return _text(following[0]).strip().removeprefix("Value error, ").partition(" [type=")[0]
    return match.group(0)


def _text(line: str) -> str:
    """`line` without process, level, time and place."""
    return PREFIX.sub("", line, count=1)


def _short(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
