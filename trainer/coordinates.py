"""A few thousand coordinates of the parameters, always the same ones, that stand for all of them.

Looking at all would be another pass over memory as large as the model. The cosine of two gradients on n coordinates
chosen at random differs from that on all of them by about 1 / sqrt(n): 1/64 for 4,096.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

NUM: Final = 4096
EPS_EVERY: Final = 50
"""Updates between two looks at the optimizer's state, which changes slowly."""


class Coordinates:
    """Chosen once, by seed, from all parameters together."""

    def __init__(self, parameters: Sequence[Tensor], seed: int):
        sizes = np.array([parameter.numel() for parameter in parameters])
        total = int(sizes.sum())
        rng = np.random.default_rng([seed, total])
        # With replacement, so that the cost does not depend on the size of the model.
        chosen = np.unique(rng.integers(total, size=NUM))
        ends = np.cumsum(sizes)
        owners = np.searchsorted(ends, chosen, side="right")
        self._places = {
            int(owner): torch.from_numpy(chosen[owners == owner] - (ends - sizes)[owner]).to(parameters[owner].device)
            for owner in np.unique(owners)
        }
        """By number of the parameter, positions within it."""

    def of(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Values at the coordinates of `tensors`, one for each parameter and of its shape; 0 for one that is absent."""
        parts = []
        for owner, places in self._places.items():
            tensor = tensors[owner]
            parts.append(torch.zeros(len(places), device=places.device) if tensor is None else _at(tensor, places))
        return torch.cat(parts)


def _at(tensor: Tensor, places: Tensor) -> Tensor:
    return tensor.detach().flatten()[places].float()


def cosine(one: Tensor, other: Tensor) -> float | None:
    """Cosine of the angle between two vectors; None when one of them is zero or not finite."""
    norms = float(torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other))
    return float(one @ other) / norms if norms > 0 and math.isfinite(norms) else None


class UpdateWatch:
    """What the chosen coordinates say about the updates of AdamW, under the names of `StepCompleted`."""

    def __init__(self, parameters: Sequence[Tensor], optimizer: torch.optim.AdamW, seed: int):
        self._parameters = parameters
        self._optimizer = optimizer
        self._coordinates = Coordinates(parameters, seed)
        self._gradient: Tensor | None = None
        self.previous: Tensor | None = None
        """Gradient of the last update at the coordinates; part of a checkpoint."""

    def before(self) -> None:
        """Note the gradient, before it is clipped."""
        self._gradient = self._coordinates.of([parameter.grad for parameter in self._parameters])

    def after(self) -> dict[str, float | None]:
        """Compare with the update before, once the noted gradient was applied."""
        assert self._gradient is not None, "`before` comes first"
        previous, self.previous = self.previous, self._gradient
        return {
            "grad_cosine": None if previous is None else cosine(self._gradient, previous),
            "adam_eps_frac": self._eps_share(),
        }

    def _eps_share(self) -> float | None:
        """Share of the coordinates where eps outweighs the root of the mean square; None except now and then."""
        (settings,) = self._optimizer.param_groups
        states = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters]
        count = max(float(state["step"]) for state in states if state)
        if count % EPS_EVERY:
            return None
        square = self._coordinates.of([state.get("exp_avg_sq") for state in states])
        # Where there never was a gradient, such as in rows of tokens that never occur, nothing is updated.
        square = square[square > 0] / (1 - settings["betas"][1] ** count)
        return float((square.sqrt() < settings["eps"]).float().mean()) if len(square) else None
