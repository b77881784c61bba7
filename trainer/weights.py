"""New weights on their way to the sampler, and the proof that they arrived.

Weights travel as a safetensors file in shared memory. A version number that comes back proves nothing, so both sides
take the log-probs of one probe under the weights they hold, and these must agree.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor

from tocsin.trainer.data import Ints, Prompt

SHARED_MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "tocsin-weights-"
PROBE_TOKENS: Final = 16
PROBE_ROWS: Final = 2
TOLERANCE_FLOOR: Final = 1e-4
"""Two float32 forward passes of one model agree to about 1e-6; an optimizer step moves the probe by far more."""
TOLERANCE_CEILING: Final = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1}
"""A gap above this at the very first sync means different weights and not different rounding."""


class WeightStore:
    """Folder with the newest weights. Files are written aside and renamed."""

    def __init__(self, base: Path | None = None) -> None:
        """Make the folder below `base`, by default in shared memory. Raises `OSError` when it cannot be made."""
        if base is None:
            base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _remove_orphans(base)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
        self._files: dict[int, Path] = {}

    def write(self, version: int, weights: dict[str, Tensor]) -> Path:
        """Write one version; returns its file."""
        path = self.folder / f"{version}.safetensors"
        aside = path.with_suffix(".partial")
        save_file(weights, aside)
        aside.rename(path)
        self._files[version] = path
        return path

    def acknowledged(self, version: int) -> None:
        """The sampler holds `version`: older files are not needed, not even to start another sampler."""
        for old in [v for v in self._files if v < version]:
            self._files.pop(old).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_orphans(base: Path) -> None:
    """Remove what runs left behind that were killed; memory is at stake."""
    for folder in base.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def probe_tokens(prompts: list[Prompt], vocab_size: int, seed: int, *, limit: int) -> Ints:
    """[rows, L] the end of a prompt, then arbitrary tokens: unlikely ones move most when weights do."""
    rng = np.random.default_rng([seed, 3])
    shortest = min(len(prompt.token_ids) for prompt in prompts[:PROBE_ROWS])
    width = min(shortest, max(1, limit - PROBE_TOKENS))
    tail = min(PROBE_TOKENS, limit - width)
    rows = [
        np.concatenate([prompt.token_ids[-width:], rng.integers(0, vocab_size, size=tail)])
        for prompt in prompts[:PROBE_ROWS]
    ]
    return np.stack(rows).astype(np.int32)


class Probe:
    """The learner's side of the proof: log-probs by version, and a tolerance calibrated at the first sync."""

    def __init__(self, dtype: str, tolerance: float | None = None):
        self.ceiling = TOLERANCE_CEILING[dtype]
        self.tolerance = tolerance
        """None until the first sync."""
        self._expected: dict[int, Tensor] = {}
        self._last: Tensor | None = None

    def expect(self, version: int, logprobs: Tensor) -> None:
        """Remember what the learner computes under the weights of `version`."""
        self._expected[version] = logprobs

    def compare(self, version: int, answers: Iterable[np.ndarray]) -> tuple[float, float]:
        """Largest gap to the sampler's answers, and how far the learner's own values moved since the previous sync.

        Both are largest absolute differences in nats. `answers` has one array [rows, L - 1] per process or server.
        The first call calibrates `tolerance`.
        """
        expected = self._expected[version]
        # The same version may be answered twice: a sampler that was started again loads it once more.
        self._expected = {v: logprobs for v, logprobs in self._expected.items() if v >= version}
        gaps = [float((expected - torch.from_numpy(answer)).abs().max()) for answer in answers]
        gap = max(gaps, key=lambda value: (math.isnan(value), value))
        moved = 0.0 if self._last is None else float((expected - self._last).abs().max())
        self._last = expected
        if self.tolerance is None:
            # The order matters: a gap of NaN must not become the tolerance.
            self.tolerance = min(self.ceiling, max(TOLERANCE_FLOOR, 5 * gap))
        return gap, moved
