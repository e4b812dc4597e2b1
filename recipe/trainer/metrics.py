"""Statistics of a step's rollouts, computed on the driver from rows without padding.

Symbols: B rollouts of a step, T tokens of the longest, n the number of a rephrasing q^n.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from prompt_aug.grading import STATUSES
from recipe.algorithms.rollouts import RolloutBatch
from recipe.algorithms.tokens import row_sums


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean; 0 without values."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0


def values_by_id(ids: Iterable[Hashable], values: Iterable[float]) -> list[list[float]]:
    """The values of every distinct id, in the order of the ids' first appearance."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in zip(ids, values, strict=True):
        groups[key].append(value)
    return list(groups.values())


def step_metrics(
    rollouts: RolloutBatch, rewards_B: Tensor, by_rephrasing: bool
) -> dict[str, float]:
    """Return train/entropy and the metrics by group, template, rephrasing and source."""
    entropies = entropy_sums(rollouts)
    metrics = mean_entropy("train/entropy", entropies)
    metrics |= group_metrics(rollouts, rewards_B, entropies, by_rephrasing)
    return metrics | rephrasing_metrics(rollouts, rewards_B, entropies) | source_metrics(rollouts)


def entropy_sums(rollouts: RolloutBatch) -> Tensor:
    """Return the entropy, in nats, and the number of the trained tokens of every row, 2 x B.

    The entropy is that of the policy that starts the step, at the temperature of the ratio (the
    rollout's; 1 with CW-GRPO's gradient through its weights), under the trained prompt (with
    anchored ratios, a response to a rephrasing was sampled under another one). verl's actor/entropy
    is aggregated as the loss is. 0 for filtered responses and filler groups, and in bypass mode,
    where verl computes no entropy.
    """
    if rollouts.entropy_BT is None:
        return torch.zeros(2, len(rollouts), dtype=torch.float64)
    mask_BT = rollouts.mask_BT
    sum_B = row_sums(lambda m, e: torch.where(m, e, 0.0), mask_BT, rollouts.entropy_BT)
    return torch.stack([sum_B, row_sums(Tensor.double, mask_BT)]) * rollouts.trained_B


def mean_entropy(key: str, entropies: Tensor) -> dict[str, float]:
    """Return {key: the mean over all tokens of these rows}; {} without tokens."""
    total, tokens = entropies.sum(1).tolist()
    return {key: total / tokens} if tokens else {}


def group_metrics(
    rollouts: RolloutBatch, rewards_B: Tensor, entropies: Tensor, by_rephrasing: bool = False
) -> dict[str, float]:
    """Accuracy, format and shares of zero-variance groups; accuracy, format, length by template.

    A group is the set over which advantages are taken: a question, or with `by_rephrasing` one of
    its rephrasings. Filler groups and filtered responses count, except in entropies.
    train/no_signal_groups: share of groups whose rewards are all equal; train/all_right_groups,
    train/all_wrong_groups: by accuracy; grade/<status>, template/<name>/share: of the rollouts.
    """
    ids = (rollouts.rephrasing_B if by_rephrasing else rollouts.group_B).tolist()
    right = values_by_id(ids, rollouts.accuracy)
    statuses = Counter(rollouts.statuses)
    metrics = {
        "train/accuracy": mean(rollouts.accuracy),
        "train/format": mean(rollouts.formats),
        "train/truncated": mean(rollouts.truncated),
        "train/responses": float(len(rollouts)),
        "train/groups": float(len(right)),
        "train/no_signal_groups": mean(
            len(set(g)) == 1 for g in values_by_id(ids, rewards_B.tolist())
        ),
        "train/all_right_groups": mean(set(g) == {1.0} for g in right),
        "train/all_wrong_groups": mean(set(g) == {0.0} for g in right),
    }
    metrics.update({f"grade/{s}": statuses[s] / max(1, len(rollouts)) for s in STATUSES})
    columns: dict[str, Sequence[float]] = {"format": rollouts.formats, "length": rollouts.lengths}
    return metrics | by_label(rollouts, "template", rollouts.templates, columns, entropies)


def by_label(
    rollouts: RolloutBatch,
    kind: str,
    labels: Sequence[Any],
    columns: Mapping[str, Sequence[float]],
    entropies: Tensor | None = None,
    leave_out: str = "",
) -> dict[str, float]:
    """<kind>/<label>/<name>: share of the rows, accuracy, mean of each column, entropy if given."""
    metrics: dict[str, float] = {}
    for label in dict.fromkeys(labels):
        here = [value == label for value in labels]
        means = {"share": mean(here)}
        for name, values in {"accuracy": rollouts.accuracy, **columns}.items():
            means[name] = mean(itertools.compress(values, here))
        if entropies is not None:
            means |= mean_entropy("entropy", entropies[:, torch.tensor(here)])
        metrics |= {f"{kind}/{label}/{k}": v for k, v in means.items() if k != leave_out}
    return metrics


def source_metrics(rollouts: RolloutBatch) -> dict[str, float]:
    """Share and accuracy by data source, and source/<name>/part/<part> of its verifier's results.

    {} for one source without a verifier, since train/accuracy is the same.
    """
    parts = part_means(rollouts.sources, rollouts.parts)
    if len(set(rollouts.sources)) == 1 and not parts:
        return {}
    metrics = by_label(rollouts, "source", rollouts.sources, {})
    return metrics | {f"source/{key}": value for key, value in parts.items()}


def part_means(sources: Sequence[str], parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """<source>/part/<part>: the mean of a part over the rows of a source that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for source, row in zip(sources, parts, strict=True):
        for name, value in row.items():
            values[f"{source}/part/{name}"].append(value)
    return {key: mean(listed) for key, listed in values.items()}


def rephrasing_metrics(
    rollouts: RolloutBatch, rewards_B: Tensor, entropies: Tensor
) -> dict[str, float]:
    """Metrics of TA-GRPO's rephrasings (arXiv 2601.22478, section 5.2); {} without rephrasings.

    rephrasing/<n>/accuracy and /entropy, n = 0 the question itself.
    rephrasing/<n>/logprob_gap: mean over responses of the mean over tokens of
    log pi(o_t | q^0) - log pi(o_t | q^n), in nats, with the second term from the engine (for n = 0,
    or with ratio=own, it is the numerical difference between engine and actor).
    train/no_signal_original, train/no_signal_rephrasings: share of the questions whose responses to
    q^0, or to all rephrasings together, have equal rewards.
    """
    if not any(rollouts.rephrasings):
        return {}
    columns: dict[str, Sequence[float]] = {}
    if rollouts.rollout_logprobs_BT is not None:
        gap_B = row_sums(torch.sub, rollouts.logprobs_BT, rollouts.rollout_logprobs_BT)
        lengths = zip(gap_B.tolist(), rollouts.lengths, strict=True)
        columns["logprob_gap"] = [gap / max(1, length) for gap, length in lengths]
    labels = rollouts.rephrasings
    metrics = by_label(rollouts, "rephrasing", labels, columns, entropies, leave_out="share")
    original = torch.tensor(rollouts.rephrasings) == 0
    for name, here in (("original", original), ("rephrasings", ~original)):
        sets = values_by_id(rollouts.group_B[here].tolist(), rewards_B[here].tolist())
        metrics[f"train/no_signal_{name}"] = mean(len(set(g)) == 1 for g in sets)
    return metrics


def validation_metrics(
    sources: Sequence[str],
    uids: Sequence[str],
    infos: dict[str, list],
    expected: dict[tuple[str, str], int],
) -> dict[str, float]:
    """Per source: accuracy (mean over questions), its standard error sqrt(s^2 / P), format, parts.

    A failed rollout counts as wrong: a question's denominator is `expected`, the samples requested.
    """
    right: dict[tuple[str, str], float] = dict.fromkeys(expected, 0.0)
    formats: dict[str, list[float]] = defaultdict(list)
    for source, uid, acc, form in zip(sources, uids, infos["acc"], infos["format"], strict=True):
        right[(str(source), str(uid))] += float(acc)  # KeyError: a response of another validation
        formats[str(source)].append(float(form))
    by_source: dict[str, list[float]] = defaultdict(list)
    for key, total in right.items():
        by_source[key[0]].append(total / expected[key])
    metrics = {}
    for source, values in by_source.items():
        center = mean(values)
        spread = math.fsum((v - center) ** 2 for v in values) / max(1, len(values) - 1)
        metrics[f"val/{source}/accuracy"] = center
        metrics[f"val/{source}/standard_error"] = math.sqrt(spread / len(values))
        metrics[f"val/{source}/format"] = mean(formats[source])
        metrics[f"val/{source}/questions"] = float(len(values))
    parts = part_means([str(source) for source in sources], infos["parts"])
    return metrics | {f"val/{key}": value for key, value in parts.items()}
