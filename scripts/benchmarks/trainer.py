"""Seconds of the trainer process between log-probabilities and update, while the GPUs are idle.

A random batch of --example goes through a real TransferQueue, with --threads of torch (Ray starts
verl's trainer with one). read: the columns become a batch; signal: advantages and metrics; write:
the columns for the actor. Median of --steps. Memory is the peak of the process above its start.
ta_grpo trains 8,192 responses of 3,072 tokens at most in a step (10 GB).
"""

import resource
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.config.compose import compose_config
from recipe.trainer import batch as batches
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.training_signal import signal_of

EXAMPLE = "--responses 2048 --steps 3"
PARTS = ("read", "signal", "write")


def rows(config: DictConfig, responses: int) -> Iterator[dict[str, Any]]:
    """Yield random responses of 1 to `max_response_length` tokens, a third of them right."""
    torch.manual_seed(0)
    longest, size = int(config.data.max_response_length), int(config.actor_rollout_ref.rollout.n)
    versions = 1 + int(config.recipe.rephrasings.count)
    for i in range(responses):
        tokens, right = int(torch.randint(1, longest + 1, ())), float(torch.rand(()) < 1 / 3)
        graded = {"acc": right, "format": 1.0, "response": "r", "pred": "7", "status": "correct"}
        graded |= {"source": "math", "parts": {}}
        place = {"template": "ta-grpo", "rephrasing": i % size * versions // size}
        place |= {
            "generated_under": torch.ones(300, dtype=torch.int64),
            "truncated": tokens == longest,
        }
        names = ("old_log_probs", "rollout_log_probs", "ref_log_prob", "entropy")
        yield {
            "extra_info": {"uid": f"q{i // size}", "answers": ["1"]},
            "extra_fields": {**place, "reward_extra_info": graded},
            "prompts": torch.ones(300, dtype=torch.int64),
            "responses": torch.ones(tokens, dtype=torch.int64),
            **{n: torch.ones(tokens, dtype=torch.int64) for n in ("response_mask", "loss_mask")},
            "rm_scores": torch.tensor([0.0] * (tokens - 1) + [right]),
            **{name: torch.rand(tokens).log() for name in names},
        }


def timed_step(batch: Any, config: DictConfig) -> list[float]:
    """Return the seconds of the `PARTS` of one step."""
    times = [time.perf_counter()]
    fetched = batches.fetch(batch, batches.fields_of(config))
    times.append(time.perf_counter())
    settings: dict[str, Any] = {"step": 1, "filled_groups": (), "kl_controller": None}
    settings |= {"stats": QuestionStats(config.recipe), "weight_logprobs": None, "metrics": {}}
    *_, columns = signal_of(fetched, config, **settings)
    times.append(time.perf_counter())
    batches.write(fetched, columns)
    times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--responses", type=int, default=1024, help="of a step")
    parser.add_argument("--example", default="ta_grpo", help="whose settings are used")
    parser.add_argument("--steps", type=int, default=3, help="the median counts")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    config = compose_config(given.example, ["machine=cpu"])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init(config.transfer_queue)
    made = list(rows(config, given.responses))
    size = int(config.actor_rollout_ref.rollout.n)
    keys = [f"{i // size:09d}-q{i // size}_{i % size}_0" for i in range(given.responses)]
    batch = tq.kv_batch_put(keys, "train", list_of_dict_to_tensordict(made), [{}] * len(keys))
    tokens = sum(len(row["responses"]) for row in made)
    del made
    before = peak()
    seconds = [timed_step(batch, config) for _ in range(given.steps)]
    print("| responses | tokens | read, s | signal | write | all | memory, GiB |")
    print("|---|---|---|---|---|---|---|")
    medians = [statistics.median(column) for column in zip(*seconds, strict=True)]
    cells = " | ".join(f"{value:.2f}" for value in (*medians, sum(medians)))
    print(f"| {given.responses:,} | {tokens:,} | {cells} | {peak() - before:.1f} |")
