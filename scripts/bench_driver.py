"""What the driver's own work costs in a step: advantages, token weights, covariance metrics.

    OMP_NUM_THREADS=2 python scripts/bench_driver.py [--rows 1024] [--tokens 3072] [--repeats 5]

The batch is made up, from `--seed`: groups of 8 responses of tokens / 12 to tokens tokens (256 to
3072), rewards of 0 and 1 from one pass rate per group, and a log-probability for every token.
verl's function gets what verl's trainer gives it (float32 rewards per token, the mask as integers,
uids as strings); ours get what recipe.batch makes (float64). After one round unmeasured, every
round measures all lines one after the other, so that a slow moment of the machine meets them all.

The table holds the median seconds, their ratio to those of verl's GRPO advantage, and their share
of a step of 30 s: the published steps of prompt augmentation (arXiv 2602.03190) take tens of
seconds. The last line is the sum of what a CW-GRPO step (arXiv 2605.11538) adds: the whole of
recipe.signal (advantages, weights, their metrics), the columns made matrices and back, and the
statistics of rows, groups and phrasings. Left out is TransferQueue itself: our second fetch and
write of the columns, after verl's own, is in the paired steps of scripts/bench_trainer.py.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import Responses, compute_advantages
from recipe.algorithms.covariance import covariance_metrics, token_covariance
from recipe.trainer.batch import padded
from recipe.trainer.metrics import from_row, group_metrics, neighbour_metrics

SETTINGS = Path(__file__).resolve().parents[1] / "recipe" / "config" / "recipe.yaml"
GROUP = 8
STEP_SECONDS = 30.0
VERL = "verl: compute_grpo_outcome_advantage"
WHOLE = "recipe.algorithms.compute.compute_advantages, CW-GRPO"
LAYOUT = "columns to matrices and back"
ROLLOUTS = "rows to rollouts"
CW_GRPO = (WHOLE, LAYOUT, ROLLOUTS, "group_metrics", "neighbour_metrics")
STATUS = {1.0: "correct", 0.0: "wrong"}


def made_up(rows: int, tokens: int, seed: int) -> Responses:
    """`rows` responses in groups of 8, float64, 0 at padding; the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    lengths_B = torch.randint(max(1, tokens // 12), tokens + 1, (rows,), generator=random)
    mask_BT = (torch.arange(tokens) < lengths_B[:, None]).double()
    group_B = torch.arange(rows) // GROUP
    rates_P = torch.rand(-(-rows // GROUP), generator=random)
    rewards_B = torch.rand(rows, generator=random) < rates_P[group_B]
    surprise_BT = torch.empty_like(mask_BT).exponential_(2.0, generator=random)
    return Responses(
        rewards_B=rewards_B.double(),
        question_B=group_B,
        text_B=group_B,
        logprobs_BT=-surprise_BT * mask_BT,
        mask_BT=mask_BT,
        key_B=torch.arange(rows),
    )


def columns(batch: Responses) -> list[dict[str, Any]]:
    """The same responses as rows of TransferQueue, two to each of four phrasings."""
    lengths = batch.mask_BT.sum(1).long().tolist()
    groups, rewards = batch.question_B.tolist(), batch.rewards_B.tolist()
    logprobs = [row[:n].float() for row, n in zip(batch.logprobs_BT, lengths, strict=True)]
    made = []
    for i, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
        graded = {"acc": reward, "format": 1.0, "response": "", "status": STATUS[reward]}
        place = {"template": "t", "neighbour": i % GROUP // 2, "truncated": False}
        made.append(
            {
                **{"uid": str(group), "session_id": i % GROUP, "prompts": ()},
                "extra_info": {"uid": str(group), "answers": ["1"]},
                "extra_fields": {**place, "reward_extra_info": graded},
                **dict.fromkeys(("old_log_probs", "rollout_log_probs", "entropy"), logprobs[i]),
                "rm_scores": logprobs[i],
            }
        )
    return made


def there_and_back(batch: Responses) -> Callable[[], object]:
    """Two columns of single rows made matrices, and the advantages cut into rows again."""
    lengths = batch.mask_BT.sum(1).long().tolist()
    columns = [
        [row[:n].float() for row, n in zip(matrix, lengths, strict=True)]
        for matrix in (batch.logprobs_BT, batch.mask_BT)
    ]

    def work() -> object:
        logprobs_BT, _ = (padded(column) for column in columns)
        cut = [row[:n].float() for row, n in zip(logprobs_BT, lengths, strict=True)]
        return torch.nested.as_nested_tensor(cut, layout=torch.jagged)

    return work


def lines(batch: Responses) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the inputs of each are ready before."""
    settings = OmegaConf.load(SETTINGS).recipe
    settings.weights.name = "gaussian_covariance"
    mask_BT, group_B = batch.mask_BT, batch.question_B
    uids = np.array([f"question-{group}" for group in group_B.tolist()], dtype=object)
    last_BT = torch.arange(mask_BT.shape[1]) == mask_BT.sum(1, keepdim=True) - 1
    token_rewards_BT = (batch.rewards_B[:, None] * last_BT).float()
    int_mask_BT = mask_BT.long()
    advantages_B = ADVANTAGES["grpo"](batch.rewards_B, group_B)
    advantages_BT = advantages_B[:, None] * mask_BT
    inputs = (batch.logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = token_covariance(*inputs)
    weights_BT = TOKEN_WEIGHTS["gaussian_covariance"](*inputs)
    listed = list(zip(columns(batch), batch.rewards_B.tolist(), strict=True))
    rows = [from_row(row, reward) for row, reward in listed]
    return {
        VERL: lambda: compute_grpo_outcome_advantage(
            token_level_rewards=token_rewards_BT,
            response_mask=int_mask_BT,
            index=uids,
            norm_adv_by_std_in_grpo=True,
        ),
        "grpo": lambda: ADVANTAGES["grpo"](batch.rewards_B, group_B),
        "token_covariance": lambda: token_covariance(*inputs),
        "covariance_metrics": lambda: covariance_metrics(c_BT, mask_BT),
        "gaussian_covariance": lambda: TOKEN_WEIGHTS["gaussian_covariance"](*inputs),
        "clip_cov": lambda: TOKEN_WEIGHTS["clip_cov"](*inputs),
        "A w": lambda: advantages_B[:, None] * mask_BT * weights_BT,
        LAYOUT: there_and_back(batch),
        ROLLOUTS: lambda: [from_row(row, reward) for row, reward in listed],
        "group_metrics": lambda: group_metrics(rows),
        "neighbour_metrics": lambda: neighbour_metrics(rows),
        WHOLE: lambda: compute_advantages(batch, settings.advantage, settings.weights),
    }


def measure(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each function over `repeats` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn > 0:  # the first round warms caches and allocators up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(medians: dict[str, float]) -> list[str]:
    """The markdown table of `medians`, with the line of a CW-GRPO step."""
    total = sum(medians[name] for name in CW_GRPO)
    rows = {**medians, f"CW-GRPO step: {' + '.join(CW_GRPO)}": total}
    return [
        f"| | seconds | / verl's | % of a step of {STEP_SECONDS:.0f} s |",
        "|---|---|---|---|",
        *(
            f"| {name} | {s:.4f} | {s / medians[VERL]:.2f} | {100 * s / STEP_SECONDS:.3f} |"
            for name, s in rows.items()
        ),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    batch = made_up(given.rows, given.tokens, given.seed)
    tokens = int(batch.mask_BT.sum())
    print(f"{given.rows} x {given.tokens}, {tokens} tokens, {torch.get_num_threads()} threads\n")
    print("\n".join(table(measure(lines(batch), given.repeats))))


if __name__ == "__main__":
    main()
