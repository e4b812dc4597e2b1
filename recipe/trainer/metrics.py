"""Statistics of whole groups, computed on the driver from rows without padding.

Symbols: B rollouts of a step, in groups by uid; acc in {0, 1}; H mean entropy of a response, nats.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prompt_aug.grading import STATUSES


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One graded response of a training step."""

    group: str  # the trainer's uid of the question's visit: what advantages are grouped by
    uid: str  # content hash of the question
    rollout: int
    template: str
    neighbour: int  # n of the phrasing q^n that it answers; 0 is the question itself
    prompt_ids: Any
    response: str
    gold: tuple[str, ...]
    reward: float  # what the advantage was made of
    accuracy: float
    format: float
    entropy: float | None  # verl computes none in bypass mode
    logprob_gap: float | None  # mean of log pi(o | prompt trained under) - the engine's own, nats
    length: int
    truncated: bool
    status: str

    def as_line(self, step: int, tokenizer: Any) -> dict[str, Any]:
        """The record of rollouts/step_N.jsonl."""
        return {
            "step": step,
            "uid": self.uid,
            "rollout": self.rollout,
            "template": self.template,
            "neighbour": self.neighbour,
            "prompt": tokenizer.decode(self.prompt_ids),
            "response": self.response,
            "gold": list(self.gold),
            "reward": self.reward,
            "accuracy": self.accuracy,
            "format": self.format,
            "length": self.length,
            "truncated": self.truncated,
            "status": self.status,
        }


def from_row(row: dict[str, Any], reward: float) -> Rollout:
    """A rollout from its columns in TransferQueue and its reward."""
    extra = row["extra_fields"]
    graded = extra["reward_extra_info"]
    gap = None
    if "rollout_log_probs" in row:
        gap = float((row["old_log_probs"].double() - row["rollout_log_probs"].double()).mean())
    return Rollout(
        group=str(row["uid"]),
        uid=row["extra_info"]["uid"],
        rollout=int(row["session_id"]),
        template=extra["template"],
        neighbour=int(extra["neighbour"]),
        prompt_ids=row["prompts"],
        response=graded["response"],
        gold=tuple(row["extra_info"]["answers"]),
        reward=reward,
        accuracy=float(graded["acc"]),
        format=float(graded["format"]),
        entropy=float(row["entropy"].double().mean()) if "entropy" in row else None,
        logprob_gap=gap,
        length=int(row["rm_scores"].numel()),
        truncated=bool(extra["truncated"]),
        status=graded["status"],
    )


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean; 0 of nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0


def group_metrics(rollouts: Sequence[Rollout], by_text: bool = False) -> dict[str, float]:
    """Accuracy, format, shares of groups without signal, and the same for every template.

    A group is what advantages are normalised over: a question's visit, or with `by_text` one of
    its phrasings. train/no_signal_groups: share of groups whose rewards are all equal (advantage
    exactly 0);
    train/all_right_groups, train/all_wrong_groups: by accuracy; grade/<status>: share of rollouts.
    A template's share is its share of the rollouts.
    """
    groups: dict[tuple[str, int], list[Rollout]] = defaultdict(list)
    templates: dict[str, list[Rollout]] = defaultdict(list)
    for r in rollouts:
        groups[r.group, r.neighbour if by_text else 0].append(r)
        templates[r.template].append(r)
    statuses = Counter(r.status for r in rollouts)
    metrics = {
        "train/accuracy": mean(r.accuracy for r in rollouts),
        "train/format": mean(r.format for r in rollouts),
        "train/truncated": mean(r.truncated for r in rollouts),
        "train/responses": float(len(rollouts)),
        "train/groups": float(len(groups)),
        "train/no_signal_groups": mean(len({r.reward for r in g}) == 1 for g in groups.values()),
        "train/all_right_groups": mean(all(r.accuracy == 1 for r in g) for g in groups.values()),
        "train/all_wrong_groups": mean(all(r.accuracy == 0 for r in g) for g in groups.values()),
    }
    metrics.update({f"grade/{s}": statuses[s] / max(1, len(rollouts)) for s in STATUSES})
    for name, rows in templates.items():
        metrics[f"template/{name}/accuracy"] = mean(r.accuracy for r in rows)
        metrics[f"template/{name}/format"] = mean(r.format for r in rows)
        metrics[f"template/{name}/length"] = mean(r.length for r in rows)
        if entropies := [r.entropy for r in rows if r.entropy is not None]:
            metrics[f"template/{name}/entropy"] = mean(entropies)
        metrics[f"template/{name}/share"] = len(rows) / len(rollouts)
    return metrics


def neighbour_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What the phrasings of TA-GRPO (arXiv 2601.22478, section 5.2) do; {} without neighbours.

    neighbour/<n>/accuracy and /entropy, n = 0 the question itself; entropy is that under the prompt
    trained under. neighbour/<n>/logprob_gap: mean over responses of the mean over tokens of
    log pi(o_t | q^0) - log pi(o_t | q^n), in nats, with the second term from the engine (for n = 0,
    or with the own ratio, it is the difference of two computations of the same number).
    train/no_signal_original, train/no_signal_neighbours: share of the questions whose G responses
    to q^0, and whose responses to all neighbours, all have the same reward.
    """
    if not any(r.neighbour for r in rollouts):
        return {}
    metrics = {}
    for n in sorted({r.neighbour for r in rollouts}):
        rows = [r for r in rollouts if r.neighbour == n]
        metrics[f"neighbour/{n}/accuracy"] = mean(r.accuracy for r in rows)
        if entropies := [r.entropy for r in rows if r.entropy is not None]:
            metrics[f"neighbour/{n}/entropy"] = mean(entropies)
        gaps = [r.logprob_gap for r in rows if r.logprob_gap is not None]
        if gaps:
            metrics[f"neighbour/{n}/logprob_gap"] = mean(gaps)
    for name, of_question in (("original", True), ("neighbours", False)):
        groups: dict[str, set[float]] = defaultdict(set)
        for r in rollouts:
            if (r.neighbour == 0) == of_question:
                groups[r.group].add(r.reward)
        metrics[f"train/no_signal_{name}"] = mean(len(g) == 1 for g in groups.values())
    return metrics


def validation_metrics(
    sources: Sequence[str],
    uids: Sequence[str],
    infos: dict[str, list],
    expected: dict[tuple[str, str], int],
) -> dict[str, float]:
    """Per source: accuracy (mean over questions), its standard error, and the format rate.

    A rollout that failed counts as wrong: the denominator of a question is `expected`, the number
    of samples asked for. The standard error is that of the mean over questions, sqrt(s^2 / P).
    """
    right: dict[tuple[str, str], float] = dict.fromkeys(expected, 0.0)
    formats: dict[str, list[float]] = defaultdict(list)
    for source, uid, acc, form in zip(sources, uids, infos["acc"], infos["format"], strict=True):
        right[(str(source), str(uid))] = right.get((str(source), str(uid)), 0.0) + float(acc)
        formats[str(source)].append(float(form))
    by_source: dict[str, list[float]] = defaultdict(list)
    for key, total in right.items():
        by_source[key[0]].append(total / max(1, expected.get(key, 1)))
    metrics = {}
    for source, values in by_source.items():
        centre = mean(values)
        spread = math.fsum((v - centre) ** 2 for v in values) / max(1, len(values) - 1)
        metrics[f"val/{source}/accuracy"] = centre
        metrics[f"val/{source}/standard_error"] = math.sqrt(spread / len(values))
        metrics[f"val/{source}/format"] = mean(formats[source])
        metrics[f"val/{source}/questions"] = float(len(values))
    return metrics
