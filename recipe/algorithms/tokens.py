"""Shared by all token weights: input validation, and statistics over a scope of real tokens.

Symbols: B responses, T token positions, S scopes. A scope is a set of whole responses: one
response, a group or the batch. Its statistics are over its real tokens (mask not 0), summed
response by response, so they depend neither on the order of rows nor on the width of the padding.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from recipe.algorithms.groups import Numbers, float64, group_index, group_sum

BLOCK = 256  # rows; with 3,072 tokens a matrix of them has 6 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Validated inputs: numbers in float64, 0 where there is no real token."""

    logprobs_BT: torch.Tensor  # nats, of the sampled token, by the policy that starts the step
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor  # bool: a real token
    lengths_B: torch.Tensor  # real tokens, float64
    first_B: torch.Tensor  # position of the first real token; 0 without any
    group_B: torch.Tensor  # groups numbered from 0
    groups: int
    # (centre, advantage_centre) -> covariances, which a step's metrics and weights both read
    covariances: dict[tuple[str, str], torch.Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def scope(self, name: str) -> tuple[torch.Tensor, int]:
        """The scope of every row and the number of scopes: ``sequence``, ``group`` or ``batch``."""
        rows = self.mask_BT.shape[0]
        if name == "sequence":
            return torch.arange(rows), rows
        if name == "batch":
            return torch.zeros(rows, dtype=torch.int64), 1
        return self.group_B, self.groups

    def total(self, values_B: torch.Tensor, scope: str) -> torch.Tensor:
        """For every row the sum over its scope of one value per row, shape B."""
        index_B, scopes = self.scope(scope)
        return group_sum(values_B, index_B, scopes)[index_B]

    def mean(self, values_BT: torch.Tensor, scope: str) -> torch.Tensor:
        """The mean over the real tokens of every row's scope, shape B; 0 without real tokens.

        Computed as v + mean(value - v), where v is one of the values, so that the mean of equal
        numbers is exactly that number. A plain sum would leave deviations of 1e-17 in a
        zero-variance group, and weights made from their signs would look like a signal.
        """
        index_B, scopes = self.scope(scope)
        real_B = self.lengths_B > 0
        one_S = torch.zeros(scopes, dtype=torch.float64)
        one_S[index_B[real_B]] = values_BT.gather(1, self.first_B[:, None])[real_B, 0]
        one_B = one_S[index_B]
        rest_B = row_sums(
            lambda mask, values, one: torch.where(mask, values - one, 0.0),
            self.mask_BT,
            values_BT,
            one_B[:, None],
        )
        count_B = self.total(self.lengths_B, scope).clamp(min=1)
        return one_B + self.total(rest_B, scope) / count_B


def validated(
    logprobs_BT: Numbers, advantages_BT: Numbers, mask_BT: Numbers, group_B: Numbers
) -> Tokens:
    """Validate the inputs of a token weight; values at padding are ignored, even NaN.

    ValueError unless the three matrices have one shape with at least one column, there are B
    integer group ids, and every real token has a finite log-probability and advantage.
    """
    mask = torch.as_tensor(mask_BT, device="cpu") != 0
    if mask.dim() != 2 or mask.shape[1] == 0:
        raise ValueError(f"a mask of shape {tuple(mask.shape)}: responses x token positions")
    index_B, groups = group_index(group_B, mask.shape[0])
    return Tokens(
        logprobs_BT=_real("log-probabilities", logprobs_BT, mask),
        advantages_BT=_real("advantages", advantages_BT, mask),
        mask_BT=mask,
        lengths_B=row_sums(torch.Tensor.double, mask),
        first_B=mask.view(torch.uint8).argmax(1),
        group_B=index_B,
        groups=groups,
    )


def row_sums(function: Callable[..., torch.Tensor], *matrices_BT: torch.Tensor) -> torch.Tensor:
    """The sums over tokens of a function of each row, shape B, computed `BLOCK` rows at a time.

    The intermediate matrices then stay in the processor's cache. Whole ones of 8,192 x 3,072
    tokens are new pages of memory for each operation, which takes ten times as long.
    """
    blocks = zip(*(matrix_BT.split(BLOCK) for matrix_BT in matrices_BT), strict=True)
    return torch.cat([function(*block).sum(1) for block in blocks])


def _real(name: str, values_BT: Numbers, mask_BT: torch.Tensor) -> torch.Tensor:
    values = float64(values_BT)
    if values.shape != mask_BT.shape:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} with a mask of shape {tuple(mask_BT.shape)}"
        )
    # A copy of the matrix takes as long as ten passes over it (`row_sums`).
    if row_sums(lambda value, real: torch.where(real, 0.0, value.abs()), values, mask_BT).any():
        values = torch.where(mask_BT, values, 0.0)
    # A sum is finite exactly if all its terms are, and needs only one pass over the matrix.
    bad = (~torch.isfinite(values.sum(1))).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"{name} that are not finite at real tokens, in {len(bad)} rows, first in row {bad[0]}"
        )
    return values
