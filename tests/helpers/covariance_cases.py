"""The batches that the tests of covariances and of their weights share."""

import math

import torch

from recipe.algorithms.covariance import covariance_of
from recipe.algorithms.tokens import validated

X = math.nan  # at padding; must never matter

# Two groups. The first: responses of 2 and 1 tokens; the second: one response.
LOGPROBS = [[-1.0, -3.0], [-5.0, X], [-1.0, -1.0]]
ADVANTAGES = [[1.0, 1.0], [-1.0, X], [0.5, 0.5]]
MASK = [[1, 1], [1, 0], [1, 1]]
GROUP = [4, 4, 9]


def token_covariance(
    *batch: object, centre: str = "group", advantage_centre: str = "responses"
) -> torch.Tensor:
    """c of a batch: log-probabilities, advantages, mask, groups; defaults of CW-GRPO's preset."""
    tokens = validated(*batch)  # type: ignore[arg-type]
    return covariance_of(tokens, centre=centre, advantage_centre=advantage_centre)


def close(result: torch.Tensor, wanted: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        result, torch.as_tensor(wanted, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def example(size: int = 4) -> tuple[torch.Tensor, ...]:
    """Random log-probabilities of three groups, one advantage per response, lengths from 1 to 6."""
    generator = torch.Generator().manual_seed(0)
    rows, width = 3 * size, 6
    logprobs_BT = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 4
    advantage_B = torch.randn(rows, generator=generator, dtype=torch.float64)
    lengths_B = torch.arange(rows) % width + 1
    mask_BT = (torch.arange(width)[None] < lengths_B[:, None]).long()
    return (
        logprobs_BT,
        advantage_B[:, None].expand(rows, width),
        mask_BT,
        torch.arange(rows) // size,
    )
