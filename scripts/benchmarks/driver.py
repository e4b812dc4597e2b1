"""Cost of the driver's own work in a step: advantages, token weights, covariance metrics.

The batch is drawn from `--seed`: groups of 8 responses of 256 to 3072 tokens (--tokens / 12 to
--tokens), rewards of 0 and 1 from one pass rate per group, and a log-probability for every token.
verl's function gets the inputs of verl's trainer (float32 rewards per token, the mask as integers,
uids as strings), ours those of recipe.trainer.batch (float64). After one warm-up round, every
round measures all lines in turn, so that a slow moment of the machine affects them all.

The table holds median seconds, the ratio to verl's GRPO advantage, and the share of a step of 30 s
(published steps of prompt augmentation, arXiv 2602.03190, take tens of seconds). Lines "advantage
NAME" and "weights NAME" are compute_advantages with each registered function. The last line is
the sum of what a CW-GRPO step (arXiv 2605.11538) does on the driver: columns to a record,
recipe.algorithms.compute (advantages, weights, metrics), statistics of entropy, groups and
rephrasings, advantages back to rows. `bench.py trainer` includes TransferQueue.
"""

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import compute_advantages
from recipe.algorithms.covariance import covariance_metrics, covariance_of
from recipe.algorithms.rollouts import RolloutBatch
from recipe.algorithms.tokens import validated
from recipe.config.settings import defaults
from recipe.trainer.batch import Fetched, matrix, ragged, rollouts_of
from recipe.trainer.metrics import entropy, group_metrics, rephrasing_metrics

EXAMPLE = "--rows 256"
GROUP = 8
STEP_SECONDS = 30.0
VERL = "verl: compute_grpo_outcome_advantage"
WHOLE = "recipe.algorithms.compute.compute_advantages, CW-GRPO"
RECORD = "columns to the record"
BACK = "advantages back to rows"
CW_GRPO = (RECORD, WHOLE, BACK, "entropy", "group_metrics", "rephrasing_metrics")
STATUS = {1.0: "correct", 0.0: "wrong"}


def made_up(rows: int, tokens: int, seed: int) -> SimpleNamespace:
    """Return made-up TransferQueue columns: groups of 8 rollouts, two to each of 4 rephrasings."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(max(1, tokens // 12), tokens + 1, (rows,), generator=random).tolist()
    groups = [i // GROUP for i in range(rows)]
    rates = torch.rand(-(-rows // GROUP), generator=random)
    rights = (torch.rand(rows, generator=random) < rates[groups]).float().tolist()
    logprobs = [-torch.empty(n).exponential_(2.0, generator=random) for n in lengths]
    extra_fields = []
    for i, right in enumerate(rights):
        graded = {"acc": right, "format": 1.0, "status": STATUS[right]}
        graded |= {"response": "", "pred": "", "source": "toy", "parts": {}}
        place = {"template": "t", "rephrasing": i % GROUP // 2, "truncated": False}
        extra_fields.append({**place, "generated_under": None, "reward_extra_info": graded})
    scores = [torch.zeros(n) for n in lengths]
    for score, right in zip(scores, rights, strict=True):
        score[-1] = right
    tokens_of = dict.fromkeys(("old_log_probs", "rollout_log_probs", "entropy"), logprobs)
    masks = [torch.ones(n, dtype=torch.int64) for n in lengths]
    tokens_of |= {"rm_scores": scores, "response_mask": masks}
    return SimpleNamespace(
        keys=[f"{group:09d}-q{group}_{i % GROUP}_0" for i, group in enumerate(groups)],
        groups=groups,
        lengths=lengths,
        per_token={name: nested(column) for name, column in tokens_of.items()},
        others={
            "session_id": [i % GROUP for i in range(rows)],
            "prompts": [torch.zeros(1)] * rows,
            "responses": masks,
            "extra_info": [{"uid": f"q{group}", "answers": ["1"]} for group in groups],
            "extra_fields": extra_fields,
        },
    )


def nested(column: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(column, layout=torch.jagged)


def record(made: SimpleNamespace) -> RolloutBatch:
    """Build the record of a step from the columns, as the trainer does."""
    padded = {name: matrix(column) for name, column in made.per_token.items()}
    batch = SimpleNamespace(keys=made.keys, tags=[{}] * len(made.keys))
    fetched = Fetched(batch=batch, data=None, rows=made.others, padded=padded, lengths=made.lengths)
    rewards, mask = padded["rm_scores"], padded["response_mask"]
    return rollouts_of(fetched, seed=0, rewards=rewards, mask=mask, weight_logprobs=None)


def lines(made: SimpleNamespace) -> dict[str, Callable[[], object]]:
    """Return the functions to measure, by name. Their inputs are computed here, not measured."""
    settings = OmegaConf.create(defaults())
    settings.weights.name = "gaussian_covariance"
    batch = record(made)
    mask_BT, group_B, rewards_B = batch.mask_BT, batch.group_B, batch.reward_B
    uids = np.array([f"question-{group}" for group in made.groups], dtype=object)
    token_rewards_BT = matrix(made.per_token["rm_scores"])
    int_mask_BT = mask_BT.long()
    advantages_B = ADVANTAGES["grpo"](rewards_B, group_B)
    advantages_BT = advantages_B[:, None] * mask_BT
    inputs = (batch.logprobs_BT, advantages_BT, mask_BT, group_B)

    def covariance() -> torch.Tensor:
        return covariance_of(validated(*inputs), centre="group", advantage_centre="responses")

    c_BT = covariance()
    weights_BT = TOKEN_WEIGHTS["gaussian_covariance"](*inputs)
    return {
        VERL: lambda: compute_grpo_outcome_advantage(
            token_level_rewards=token_rewards_BT,
            response_mask=int_mask_BT,
            index=uids,
            norm_adv_by_std_in_grpo=True,
        ),
        "grpo": lambda: ADVANTAGES["grpo"](rewards_B, group_B),
        "covariance_of": covariance,
        "covariance_metrics": lambda: covariance_metrics(c_BT, mask_BT),
        "gaussian_covariance": lambda: TOKEN_WEIGHTS["gaussian_covariance"](*inputs),
        "clip_cov": lambda: TOKEN_WEIGHTS["clip_cov"](*inputs),
        "A w": lambda: advantages_B[:, None] * mask_BT * weights_BT,
        RECORD: lambda: record(made),
        BACK: lambda: ragged(advantages_BT.float(), made.lengths),
        "entropy": lambda: entropy(batch),
        "group_metrics": lambda: group_metrics(batch, rewards_B),
        "rephrasing_metrics": lambda: rephrasing_metrics(batch, rewards_B),
        WHOLE: lambda: compute_advantages(batch, settings),
        **dict(each_function(batch)),
    }


def each_function(batch: RolloutBatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a line for every advantage and every token weight; a critic's values are made up."""
    batch = replace(batch, values_BT=batch.logprobs_BT)
    for section, names in (("advantage", ADVANTAGES), ("weights", TOKEN_WEIGHTS)):
        for name in sorted(names):
            settings = OmegaConf.create(defaults())
            settings[section].name = name
            yield f"{section} {name}", partial(compute_advantages, batch, settings)


def measure(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each function over `repeats` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn > 0:  # the first round warms caches and allocators up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(medians: dict[str, float]) -> list[str]:
    """Return the Markdown table of `medians`, with the line of a CW-GRPO step."""
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


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--rows", type=int, default=1024, help="responses of the made-up step")
    parser.add_argument("--tokens", type=int, default=3072, help="of the longest response")
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the made-up step")
    given = parser.parse_args(arguments)
    batch = made_up(given.rows, given.tokens, given.seed)
    tokens = sum(batch.lengths)
    print(f"{given.rows} x {given.tokens}, {tokens} tokens, {torch.get_num_threads()} threads\n")
    print("\n".join(table(measure(lines(batch), given.repeats))))
