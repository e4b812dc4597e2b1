"""Replay the pass rates of a recorded GRPO run through this project's own classes.

FILE holds {question: [share of right responses, a value per epoch]} of a run on uniformly drawn
questions, such as data/acc_step_500.json of github.com/ypwang61/One-Shot-RLVR. Counted: zero-
variance groups, what dynamic sampling generates, which questions the curriculum takes. Nothing is
trained, so its rates stay those of uniform training.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer as verls

from eval import metrics
from prompt_aug.base.commands import at_least, in_columns, make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import FileError, read_json
from recipe.config.settings import Curriculum, DynamicSampling
from recipe.trainer import replay_buffer
from recipe.trainer.question_stats import QuestionStats

Rates = NDArray[np.float64]  # questions x epochs
Seen = list[tuple[int, int]]  # question and epoch of each trained group
Counts = list[dict[str, float]]  # of each step
BAND = (0.2, 0.8)  # the example of prompt_aug.prepare --keep


def read_rates(path: Path) -> Rates:
    """Return the recorded rates of the epochs that all questions have."""
    rows = read_json(path)
    if not isinstance(rows, dict) or not rows or not all(rows.values()):
        raise FileError(f"{path}: not an object {{question: [share right, by epoch]}}")
    shortest = min(map(len, rows.values()))
    rates = np.array([row[:shortest] for row in rows.values()], dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise FileError(f"{path}: shares must lie in [0, 1]")
    return rates


def without_signal(rates: Rates) -> NDArray[np.bool_]:
    return (rates == 0) | (rates == 1)


def stream(questions: int, seed: int) -> Iterator[int]:
    """Yield questions in the order of a shuffled data loader, epoch after epoch."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(questions).tolist()


def epochs_of(rates: Rates, batch: int) -> list[int]:
    """Return the recorded epoch at each step of a run that trains `batch` questions a step."""
    questions, epochs = rates.shape
    return [step * batch // questions for step in range(questions * epochs // batch)]


def curriculum(rates: Rates, batch: int, seed: int = 0, measured: bool = False) -> Seen:
    """Return the groups that `QuestionStats` chooses.

    At each step a group has the rate that its question had at that step of the recorded run.
    `measured`: the first epoch is the measurement before training, which starts at the second.
    """
    sections = {"curriculum": {**Curriculum().model_dump(), "enable": True}, "history": {}}
    stats, order = QuestionStats(OmegaConf.create(sections)), stream(len(rates), seed)
    if measured:
        stats.start([str(q) for q in range(len(rates))], rates[:, 0].tolist())
    seen: Seen = []
    for epoch in epochs_of(rates, batch):
        if measured and epoch == 0:
            continue
        candidates = list(dict.fromkeys(next(order) for _ in range(stats.candidates * batch)))
        names = [str(q) for q in candidates]
        chosen = [candidates[i] for i in stats.choose(names, min(batch, len(names)))]
        stats.fetch([str(q) for q in chosen], [str(q) for q in chosen])
        for question in chosen:
            stats.see_group(str(question), float(rates[question, epoch]))
            seen.append((question, epoch))
    return seen


class Finished:
    """TransferQueue of one step, in memory: every requested group is finished at once."""

    def __init__(self, rates: Rates, order: Iterator[int]) -> None:
        self.rates, self.order, self.count = rates, order, 0
        self.tags, self.accuracy = dict[str, dict[str, Any]](), dict[str, float]()

    def submit(self, prompts: int) -> None:
        for _ in range(prompts):
            uid, self.count = f"u{self.count:06d}", self.count + 1
            self.tags[uid] = {"is_prompt": True, "status": "finished", "global_steps": 1}
            self.tags[f"{uid}_0_0"] = {"status": "success"}
            # Whether the responses are equal is all that the filter reads: two of them suffice.
            self.tags[f"{uid}_1_0"] = {"status": "success"}
            rate = self.rates[next(self.order)]
            self.accuracy[f"{uid}_0_0"] = float(rate > 0)
            self.accuracy[f"{uid}_1_0"] = float(rate == 1)

    def kv_list(self) -> dict[str, dict[str, Any]]:
        return {"train": dict(self.tags)}

    def kv_batch_get(self, keys: list[str], **_: Any) -> dict[str, list[Any]]:
        return {"extra_fields": [{"reward_extra_info": {"acc": self.accuracy[k]}} for k in keys]}

    def kv_clear(self, keys: list[str], **_: Any) -> None:
        for key in keys:
            self.tags.pop(key, None)


def dynamic_sampling(rates: Rates, batch: int, limit: int, seed: int = 0) -> Counts:
    """Return the counts of `BoundedReplayBuffer` at each step, with at most `limit` batches."""
    order, steps = stream(len(rates), seed), []
    for epoch in epochs_of(rates, batch):
        queue = Finished(rates[:, epoch], order)
        buffer = replay_buffer.BoundedReplayBuffer(
            trainer_mode="sync",
            trainer_config=OmegaConf.create({"max_num_gen_batches": limit}),
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            poll_interval=0.0,
            sampler_kwargs=OmegaConf.create({}),
            gen_batch_size=1,
            refill_fn=queue.submit,
            filter_groups_metric="acc",
            train_batch_size=batch,
            max_inflight_gen_batches=1,
            settings=OmegaConf.create(DynamicSampling(max_gen_batches=limit).model_dump()),
            group_size=2,
            in_rounds=True,
            on_evicted=lambda uid, value: None,
        )
        queue.submit(batch)
        with mock.patch.object(verls, "tq", queue), mock.patch.object(replay_buffer, "tq", queue):
            _, counts = buffer.sample(global_steps=1, partition_id="train", batch_size=batch)
        steps.append({k.removeprefix(replay_buffer.PREFIX): v for k, v in counts.items()})
    return steps


def clustered(seen: Seen, values: NDArray[np.bool_], start: int, end: int) -> str:
    """Format the share of groups of epochs start to end with `values`, +- its standard error.

    The error of `eval.metrics.accuracy` with unequal counts n_q of a question:
    SE^2 = Q / (Q - 1) sum_q (x_q - p n_q)^2 / N^2.
    """
    sums: dict[int, list[float]] = {}
    for question, epoch in seen:
        if start <= epoch < end:
            counts = sums.setdefault(question, [0.0, 0.0])
            counts[0] += values[question, epoch]
            counts[1] += 1
    x, n = np.array(list(sums.values())).T
    mean, size = x.sum() / n.sum(), len(sums)
    variance = size / (size - 1) * np.sum((x - mean * n) ** 2) / n.sum() ** 2
    return f"{100 * mean:.1f} ±{100 * np.sqrt(variance):.1f}"


def share(values: NDArray[Any]) -> str:
    """Format the mean of a questions x epochs array in percent, +- its clustered error."""
    value = metrics.accuracy(values)
    return f"{100 * value.accuracy:.1f} ±{100 * (value.standard_error or 0):.1f}"


def table(rates: Rates, batch: int, limit: int, seed: int, parts: int) -> list[list[str]]:
    """Return a row for each part of the epochs, and one for all."""
    silent, at = without_signal(rates), np.array(epochs_of(rates, batch))
    generated = np.array([s["generated"] for s in dynamic_sampling(rates, batch, limit, seed)])
    chosen = curriculum(rates, batch, seed), curriculum(rates, batch, seed, measured=True)
    head = ["epochs", "accuracy", "zero-variance groups", "dynamic sampling: batches (most)"]
    rows = [[*head, "curriculum: zero-variance groups", "with measured rates"]]
    bounds = np.linspace(0, rates.shape[1], parts + 1).round().astype(int).tolist()
    for start, end in [*pairwise(bounds), (0, rates.shape[1])]:
        batches = generated[(start <= at) & (at < end)] / batch
        cells = [share(part[:, start:end]) for part in (rates, silent)]
        cells += [f"{batches.mean():.2f} ({batches.max():.2f})"]
        cells += [clustered(seen, silent, start, end) for seen in chosen]
        rows.append([f"{start + 1} to {end}", *cells])
    return rows


def notes(rates: Rates) -> Iterator[str]:
    """Yield what a band of pass rates, measured in the first epoch, would remove."""
    low, high = BAND
    removed = (rates[:, 0] < low) | (rates[:, 0] > high)
    signal = ~without_signal(rates)[:, 1:]
    never, always = ((rates == rate).all(axis=1).sum() for rate in (0, 1))
    yield f"{len(rates)} questions, {never} never right, {always} always"
    yield "percent ± one standard error, clustered by question"
    yield f"--keep {low:g} {high:g} by the rates of epoch 1 removes {share(removed[:, None])}"
    if removed.any() and not removed.all():
        yield f"later groups with signal: of removed questions {share(signal[removed])}"
        yield f"                          of kept questions    {share(signal[~removed])}"


def replay(options: argparse.Namespace) -> int:
    at_least(1, options, "batch", "limit", "parts")
    at_least(0, options, "seed")
    logging.disable(logging.INFO)  # the buffer's, once a step
    rates = read_rates(options.file)
    if not epochs_of(rates, options.batch):
        raise UsageError(f"--batch {options.batch}: the file has {rates.size} groups")
    rows = table(rates, options.batch, options.limit, options.seed, options.parts)
    print(in_columns(rows, rule=True))
    print("\n".join(notes(rates)))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python scripts/replay.py acc_step_500.json"
    parser = make_parser("python scripts/replay.py", __doc__, example=example)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="JSON: {question: [share right, by epoch]}")
    add("--batch", type=int, default=128, help="questions of a step")
    add("--limit", type=int, default=DynamicSampling().max_gen_batches,
        help="recipe.dynamic_sampling.max_gen_batches")  # fmt: skip
    add("--seed", type=int, default=0, help="of the order of questions")
    add("--parts", type=int, default=4, help="rows into which the epochs are divided")
    options = parser.parse_args(arguments)
    return run("replay", lambda: replay(options), interrupted="nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
