"""The input of every algorithm: the graded responses of a step in one columnar record.

The trainer fills it (`recipe.trainer.batch`). Symbols: B responses, T tokens of the longest.
"""

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """The graded responses of a step: an attribute per column, B rows sorted by group and rollout.

    Numbers are float64. There are two groupings. `group_B` has one id for all responses to a
    question in this step, rephrasings included; `rephrasing_B` has one id for each rephrasing.
    """

    keys: list[str]
    seed: int  # for random draws in this step
    questions: list[str]  # content hash
    group_B: Tensor  # int64
    rephrasing_B: Tensor  # int64
    rollouts: list[int]  # the number of the response in its group
    rephrasings: list[int]  # n of the rephrasing q^n that it answers; 0 is the question itself
    templates: list[str]
    gold: list[tuple[str, ...]]
    text: list[str]  # the response
    answers: list[str]  # its final answer, the same text for all right ones; "" without any
    statuses: list[str]  # the grader's verdicts
    sources: list[str]  # data_source
    parts: list[dict[str, float]]  # of the result of the source's own verifier; {} without one
    shortest: list[int | None]  # tokens of the question's shortest right response before this step
    accuracy: list[float]  # 0 or 1
    formats: list[float]
    lengths: list[int]  # tokens of the response
    truncated: list[bool]  # at the length limit, without an end
    reward_B: Tensor  # the sum over the response's tokens, KL in the reward included
    trained_B: Tensor  # bool: neither filtered as overlong nor in a filler group
    mask_BT: Tensor  # bool: a token that counts, after rollout correction
    logprobs_BT: Tensor  # nats, of the policy that starts the step, at the temperature of the ratio
    weight_logprobs_BT: Tensor  # the same at the temperature of the token weights
    rollout_logprobs_BT: Tensor | None  # computed by the engine
    entropy_BT: Tensor | None  # nats; verl computes none in bypass mode
    values_BT: Tensor | None  # of the critic, before each token
    prompts: list[Tensor]  # token ids of the prompt it is trained under
    generated_under: list[Tensor]  # of the prompt it was generated under
    responses: list[Tensor]
    hinted_logprobs_BT: Tensor | None = None  # under a prompt with a right answer (SDPO)
    versions: list[list[list[int]]] = field(default_factory=list)  # [weight version, tokens], ...

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def key_B(self) -> Tensor:
        """A 64-bit hash of every row's key: position in the data order, question and rollout."""
        digests = (hashlib.blake2b(key.encode(), digest_size=8).digest() for key in self.keys)
        return torch.tensor([int.from_bytes(d, "big", signed=True) for d in digests])
