"""The records of a step in the run folder: rollouts/step_N.jsonl and tensors/step_N.npz."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.order import group_id


def lines(
    rollouts: RolloutBatch, rewards_B: Tensor, *, step: int, tokenizer: Any
) -> Iterator[dict[str, Any]]:
    """The records of rollouts/step_N.jsonl, one for every response."""
    for i, reward in enumerate(rewards_B.tolist()):
        yield {
            "step": step,
            "uid": rollouts.questions[i],
            "rollout": rollouts.rollouts[i],
            "source": rollouts.sources[i],
            "template": rollouts.templates[i],
            "rephrasing": rollouts.rephrasings[i],
            # The prompt that is trained: that of q^0 with anchored ratios.
            "prompt": tokenizer.decode(rollouts.prompts[i]),
            "generated_under": tokenizer.decode(rollouts.generated_under[i]),
            "response": rollouts.text[i],
            "gold": list(rollouts.gold[i]),
            "reward": reward,
            "accuracy": rollouts.accuracy[i],
            "format": rollouts.formats[i],
            "parts": rollouts.parts[i],
            "length": rollouts.lengths[i],
            "truncated": rollouts.truncated[i],
            "versions": rollouts.versions[i],  # [version of the weights, tokens] of each part
            "status": rollouts.statuses[i],
        }


def arrays(
    rollouts: RolloutBatch, rewards_B: Tensor, advantages_BT: Tensor
) -> dict[str, np.ndarray]:
    """The inputs and results of a step for tensors/step_N.npz; see examples/README.md.

    A row for every response, padded with -1 (ids) or 0.
    """
    made: dict[str, Sequence[Any] | np.ndarray] = {
        "uid": rollouts.questions,
        "group": [group_id(key) for key in rollouts.keys],
        "rollout": rollouts.rollouts,
        "rephrasing": rollouts.rephrasings,
        "template": rollouts.templates,
        "lengths": rollouts.lengths,
        "prompts": _ids(rollouts.prompts),
        "generated_under": _ids(rollouts.generated_under),
        "responses": _ids(rollouts.responses),
        "response_mask": rollouts.mask_BT.double().numpy(),
        "old_log_probs": rollouts.logprobs_BT.numpy(),
        "rewards": rewards_B.numpy(),
        "advantages": advantages_BT.numpy(),
    }
    if rollouts.rollout_logprobs_BT is not None:
        made["rollout_log_probs"] = rollouts.rollout_logprobs_BT.numpy()
    return {name: np.asarray(values) for name, values in made.items()}


def _ids(rows: Iterable[Tensor]) -> np.ndarray:
    return pad_sequence(list(rows), batch_first=True, padding_value=-1).numpy()
