"""Coordinates that stand for all parameters, and what they say about updates."""

import math

import pytest
import torch
from torch import Tensor

from tocsin.trainer.coordinates import EPS_EVERY, NUM, Coordinates, UpdateWatch, cosine


def test_coordinates_are_the_same_for_a_seed_and_spread_over_all_parameters():
    parameters = [torch.arange(30_000.0), torch.arange(30_000.0, 60_000.0).reshape(300, 100)]
    chosen = Coordinates(parameters, seed=3).of(parameters)
    assert torch.equal(chosen, Coordinates(parameters, seed=3).of(parameters))
    assert not torch.equal(chosen, Coordinates(parameters, seed=4).of(parameters)[: len(chosen)])
    assert 0.9 * NUM < len(chosen) <= NUM
    assert len(chosen.unique()) == len(chosen)
    assert 0.45 < float((chosen >= 30_000).float().mean()) < 0.55


def test_a_small_model_is_looked_at_as_a_whole():
    parameters = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    assert Coordinates(parameters, seed=0).of(parameters).tolist() == [1.0, 2.0, 3.0]


def test_an_absent_tensor_counts_as_zeros():
    parameters = [torch.ones(2), torch.ones(1)]
    assert Coordinates(parameters, seed=0).of([None, torch.ones(1)]).tolist() == [0.0, 0.0, 1.0]


def test_the_cosine_on_the_coordinates_is_near_that_on_everything():
    torch.manual_seed(0)
    one, noise = torch.randn(200_000), torch.randn(200_000)
    other = 0.3 * one + math.sqrt(1 - 0.09) * noise
    coordinates = Coordinates([one], seed=0)
    assert cosine(coordinates.of([one]), coordinates.of([other])) == pytest.approx(0.3, abs=3 / 64)


def test_the_angle_to_a_zero_vector_is_not_measured():
    assert cosine(torch.zeros(3), torch.ones(3)) is None
    assert cosine(torch.full((3,), math.inf), torch.ones(3)) is None


def watched(eps: float = 1e-8) -> tuple[torch.nn.Parameter, torch.optim.AdamW, UpdateWatch]:
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([parameter], eps=eps)
    return parameter, optimizer, UpdateWatch([parameter], optimizer, seed=0)


def update(watch: UpdateWatch, optimizer: torch.optim.AdamW, gradient: Tensor) -> dict[str, float | None]:
    optimizer.param_groups[0]["params"][0].grad = gradient
    watch.before()
    optimizer.step()
    return watch.after()


def test_each_update_is_compared_with_the_one_before_it():
    _, optimizer, watch = watched()
    assert update(watch, optimizer, torch.tensor([1.0, 0.0, 0.0, 0.0]))["grad_cosine"] is None
    assert update(watch, optimizer, torch.tensor([3.0, 0.0, 0.0, 0.0]))["grad_cosine"] == pytest.approx(1.0)
    assert update(watch, optimizer, torch.tensor([-2.0, 0.0, 0.0, 0.0]))["grad_cosine"] == pytest.approx(-1.0)
    assert update(watch, optimizer, torch.tensor([0.0, 1.0, 0.0, 0.0]))["grad_cosine"] == pytest.approx(0.0)


def test_a_gradient_that_was_not_applied_is_nobodys_predecessor():
    parameter, optimizer, watch = watched()
    update(watch, optimizer, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    parameter.grad = torch.tensor([0.0, 1.0, 0.0, 0.0])
    watch.before()
    assert update(watch, optimizer, torch.tensor([1.0, 0.0, 0.0, 0.0]))["grad_cosine"] == pytest.approx(1.0)


def test_eps_is_weighed_now_and_then_against_coordinates_that_have_had_a_gradient():
    _, optimizer, watch = watched(eps=1e-2)
    # Root mean squares 1, 1e-3 and 1e-4 against an eps of 1e-2; the last coordinate never has a gradient.
    gradient = torch.tensor([1.0, 1e-3, 1e-4, 0.0])
    shares = [update(watch, optimizer, gradient.clone())["adam_eps_frac"] for _ in range(EPS_EVERY)]
    assert shares == [None] * (EPS_EVERY - 1) + [pytest.approx(2 / 3)]
