"""The torch network and its NumPy twin give the same logits."""

import numpy as np
import pytest
import torch

from policies.placement.scorer import random_weights, score, weight_sizes
from trainers.network import MASKED, Scorer


@pytest.mark.parametrize("widths", [(8,), (16, 8), (8, 16, 4)])
def test_numpy_twin(widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = Scorer(3, 5, 2, widths)
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    assert {name: array.shape for name, array in weights.items()} == weight_sizes(3, 5, 2, widths)
    job, candidates, cluster = torch.randn(4, 3), torch.randn(4, 7, 5), torch.randn(4, 2)
    mask = torch.rand(4, 7) < 0.6
    mask[:, 0] = True
    with torch.no_grad():
        logits, value = network(job, candidates, cluster, mask)
    assert value.shape == (4,)
    for b in range(4):
        rows = candidates[b][mask[b]].numpy()
        np.testing.assert_allclose(score(weights, job[b].numpy(), rows, cluster[b].numpy()), logits[b][mask[b]], atol=1e-6)
        assert (logits[b][~mask[b]] == MASKED).all()


def test_masked_rows_count_for_nothing() -> None:
    torch.manual_seed(0)
    network = Scorer(3, 5, 2)
    job, candidates, cluster = torch.randn(1, 3), torch.randn(1, 4, 5), torch.randn(1, 2)
    mask = torch.tensor([[True, True, False, False]])
    more = torch.cat([candidates[:, :2], 100 * torch.randn(1, 9, 5)], dim=1)
    logits, value = network(job, candidates, cluster, mask)
    others, same = network(job, more, cluster, torch.tensor([[True, True, *[False] * 9]]))
    assert torch.allclose(logits[:, :2], others[:, :2]) and torch.allclose(value, same)


def test_random_weights_load_into_the_network() -> None:
    Scorer(3, 5, 2, (8, 4)).load_state_dict(
        {name: torch.from_numpy(array) for name, array in random_weights(3, 5, 2, (8, 4), seed=1).items()}
    )
