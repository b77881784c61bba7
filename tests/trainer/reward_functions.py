"""Reward functions that do everything reward functions do: well, badly, and never ending."""

import ctypes
import os
import subprocess
import sys
import time
from multiprocessing import Process

SETTINGS = {"limit": 3}


def length(completions):
    return [float(len(completion)) for completion in completions]


def agrees(completions, prompts, answer, bonus=0.5):
    rows = zip(completions, prompts, answer, strict=True)
    return [1.0 + bonus if completion == expected and prompt else 0.0 for completion, prompt, expected in rows]


def columns_seen(completions, **columns):
    return [float(len(columns)) for _ in completions]


async def awaited(completions):
    return [2.0 for _ in completions]


def raises(completions):
    raise RuntimeError("first line\nsecond line \ud800")


def raises_on_bad(completions):
    if "bad" in completions:
        raise ValueError("a bad completion")
    return [1.0 for _ in completions]


def exits_politely(completions):
    sys.exit("no more")


def needs_main_thread_alarm(completions):
    raise BaseException("beyond Exception")


def hangs_on_hang(completions):
    while "hang" in completions:
        time.sleep(60)
    return [1.0 for _ in completions]


def hangs_in_a_program(completions):
    subprocess.run(["sleep", completions[0]], check=True)
    return [1.0 for _ in completions]


def runs_a_process(completions):
    process = Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return [float(process.exitcode == 0) for _ in completions]


def exits_the_process(completions):
    if "die" in completions:
        os._exit(7)
    return [1.0 for _ in completions]


def crashes(completions):
    if "crash" in completions:
        ctypes.string_at(0)
    return [1.0 for _ in completions]


def invalid_by_text(completions):
    entries = {"nan": float("nan"), "inf": float("inf"), "text": "1.0", "list": [1.0], "huge": 1e300, "none": None}
    return [entries.get(completion, True) for completion in completions]


def too_few(completions):
    return [1.0]


def nothing(completions):
    return None


def by_name(completions):
    return {"reward": 1.0}


def cannot_tell(completions):
    return [None for _ in completions]


def edits_its_arguments(completions, answer):
    completions.clear()
    answer[0] = "changed"
    return [1.0, 1.0]


def prints(completions):
    print("to stdout from Python")
    os.write(1, b"to stdout from C\n")
    subprocess.run(["echo", "to stdout from a program"], check=True)
    return [1.0 for _ in completions]


def utf8_bytes(completions):
    return [float(len(completion.encode())) for completion in completions]


def threads(completions):
    return [float(os.environ["OMP_NUM_THREADS"] == "1" and os.environ["OMP_WAIT_POLICY"] == "PASSIVE")]


def positional(completions, /):
    return [1.0]


def other_name(samples):
    return [1.0]


class Judge:
    """A callable with state behind a dotted path."""

    def __call__(self, completions):
        return [3.0 for _ in completions]


JUDGE = Judge()
