"""The micro-batch token budget: memory and speed, and nothing else."""

import torch

from tests.trainer.test_learner import WITH_SPREAD, make, rewarded, shifted
from tests.trainer.tiny import TinyPolicy, tiny_requests
from tocsin.trainer.advantages import samples
from tocsin.trainer.sampling import generate


def test_the_token_budget_changes_the_gradient_by_less_than_a_millionth(tiny_policy: TinyPolicy):
    first = make(tiny_policy)
    ends = {"eos_ids": first.eos_ids, "pad_id": first.pad_id}
    completions = generate(first.model, tiny_requests(tiny_policy, 4), seed=0, version=0, **ends)
    groups = shifted(rewarded(tiny_policy, completions, WITH_SPREAD), 0.1)
    gradients = {}
    for budget in (4096, 128, 64):
        learner = make(tiny_policy, knobs={"microbatch_tokens": budget})
        chosen = samples(groups, learner.config.loss, learner.config.knobs, step=0)
        found, _ = learner._fitting_gradient(chosen, learner.config.knobs, 0)
        assert found.microbatches is not None
        assert (found.microbatches.num > 1) == (budget < 4096)
        gradients[budget] = torch.cat([p.grad.flatten().double() for p in learner.parameters if p.grad is not None])
    assert all((cut - gradients[4096]).norm() < 1e-6 * gradients[4096].norm() for cut in gradients.values())
