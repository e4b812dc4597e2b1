"""The sampler of large vocabularies: the inverse of a cumulative distribution, in two levels."""

import pytest
import torch

from recipe.patches.cpu.sampler import BLOCK, inverse_sample


@pytest.mark.parametrize("size", [5, BLOCK, 3 * BLOCK + 7])
def test_it_inverts_the_cumulative_distribution(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    probs = torch.randn(64, size, generator=generator).mul(3).softmax(-1)
    uniform = torch.rand(64, generator=generator)
    ends = probs.double().cumsum(-1)
    wanted = (ends <= uniform.double()[:, None] * ends[:, -1:]).sum(-1)
    assert torch.equal(inverse_sample(probs, uniform), wanted)


def test_by_hand() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(5, 4)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75])
    assert inverse_sample(probs, uniform).tolist() == [0, 0, 2, 2, 3]


def test_a_token_of_probability_0_is_never_drawn() -> None:
    probs = torch.zeros(2, 2 * BLOCK)
    probs[0, 3], probs[1, BLOCK + 1] = 1e-30, 1e-30
    last = torch.full((2,), 1 - 2**-24)  # the largest number of torch.rand
    for uniform in (torch.zeros(2), last):
        assert inverse_sample(probs, uniform).tolist() == [3, BLOCK + 1]
