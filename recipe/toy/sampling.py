"""Sample like transformers' ``generate``, but run the model once per distinct prefix.

A confident policy gives many samples of a question the same prefix: 54 of 512 responses of a
trained model were distinct. Symbols: B rows (`samples` for each prompt), P distinct prefixes of the
unfinished rows, T tokens drawn, V vocabulary.
"""

from typing import Any

import torch


class Prefixes:
    """P distinct prefixes: their cache, and the logits of the token that follows each."""

    def __init__(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        self.model, self.mask, self.cache = model, attention_mask, None
        self._run(input_ids, (attention_mask.cumsum(1) - 1).clamp(min=0))

    def grow(self, parent_P: torch.Tensor, token_P: torch.Tensor) -> None:
        """Extend the prefixes: each new one is the prefix at `parent_P` plus one token."""
        self.cache.batch_select_indices(parent_P)  # type: ignore[attr-defined]
        self.mask = torch.nn.functional.pad(self.mask[parent_P], (0, 1), value=1)
        self._run(token_P[:, None], self.mask.sum(1, keepdim=True) - 1)

    def _run(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        out = self.model(
            ids, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache
        )
        self.cache, self.logits_PV = out.past_key_values, out.logits[:, -1].float()


@torch.inference_mode()
def draw(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    samples: int,
    temperature: float,
    max_tokens: int,
    end: int,
    pad: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids_BT, entropy_BT) of `samples` responses per prompt; prompts are left-padded.

    The random numbers are those of ``generate``. A response differs only if rounding, which depends
    on the rows of a batch, decides a draw. Entropy is in nats, always at temperature 1. Temperature
    0 is greedy. Rows are padded with `pad` after `end`.
    """
    prefixes = Prefixes(model, input_ids, attention_mask)
    prefix_B = torch.arange(len(input_ids)).repeat_interleave(samples)
    going_B = torch.ones(len(prefix_B), dtype=torch.bool)
    ids, entropies = [], []
    for _ in range(max_tokens):
        logp_PV = prefixes.logits_PV.log_softmax(-1)
        entropies.append(-(logp_PV.exp() * logp_PV).sum(-1)[prefix_B])
        token_B = _next(prefixes.logits_PV, prefix_B, temperature)
        ids.append(torch.where(going_B, token_B, pad))
        going_B = going_B & (token_B != end)
        if not going_B.any():
            break
        pairs_2B = torch.stack([prefix_B, token_B])[:, going_B]
        (parent_P, token_P), place = pairs_2B.unique(dim=1, return_inverse=True)
        # Finished rows get the first prefix; their draws are discarded.
        prefix_B = torch.zeros_like(prefix_B).masked_scatter(going_B, place)
        prefixes.grow(parent_P, token_P)
    return torch.stack(ids, 1), torch.stack(entropies, 1)


def _next(logits_PV: torch.Tensor, prefix_B: torch.Tensor, temperature: float) -> torch.Tensor:
    """Draw for every row, also finished ones, so that random numbers match ``generate``."""
    if not temperature:
        return logits_PV.argmax(-1)[prefix_B]
    probs_PV = (logits_PV / temperature).softmax(-1)
    return torch.multinomial(probs_PV[prefix_B], 1).squeeze(1)
