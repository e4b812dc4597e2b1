"""Arms of several runs each, compared over seeds and questions; protocols of studies.

A line is a run, a step and a question set, with the number of right samples of each question.
`eval.compare --arm` makes lines of run folders; scripts/study.py writes them beside a protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval import EvaluationError
from eval.metrics import Crossed, at_k, crossed, holm, no_signal
from eval.score import Scored
from eval.settings import SAMPLING, differences
from prompt_aug.base.estimates import FloatArray
from prompt_aug.base.files import read_lines
from prompt_aug.typed import Count, FileName, Positive, Record, Several, Text, read_typed
from recipe.run.folder import read_config, select

Line = Mapping[str, Any]
ASKED = ("set_sha", "grader", "decode", "n")  # the same in all lines of a contrast
START = "start"  # the arm of step 0


class Contrast(Record):
    """pass@k of `arm` minus that of `baseline`, paired by seed and question, at `step`.

    With `minus`: less the mean over these sets, the same questions in other words. With `drop`, of
    these steps: the best mean of three steps in a row, less the last. `expected` is the gain in
    points below which the claim is not seen. The gain at `not_below_k` must not be larger.
    """

    arm: Text
    baseline: Text
    set: Text
    step: Count
    k: Positive = 1
    minus: Several[Text] = ()
    drop: Several[Count] = ()
    expected: float | None = None
    not_below_k: Positive | None = None

    @property
    def cells(self) -> list[tuple[str, int]]:
        """The sets and steps of a run that it needs."""
        return [(name, s) for name in (self.set, *self.minus) for s in self.drop or (self.step,)]

    def __str__(self) -> str:
        less = f" less {', '.join(self.minus)}" if self.minus else ""
        what = "drop of " if self.drop else ""
        of = f"{what}pass@{self.k}, {self.set}{less}, step {self.step}"
        return f"{self.arm} - {self.baseline}: {of}"


class Gate(Record):
    """Groups without a signal: responses to one wording, or to several. `sets[0]` is q0."""

    arm: Text
    step: Count
    sets: Several[Text]


class Evaluated(Record):
    """A question set that is asked at the end of each run, and its name in the lines."""

    set: FileName
    path: Text
    samples: Positive
    steps: Several[Count]
    temperature: float = 1.0
    top_p: float = 1.0


class Arm(Record):
    seeds: Several[Count]
    settings: Several[Text] = ()


class Protocol(Record):
    """A claim, how it is measured, and its runs: hydra settings of all, then of each arm.

    `code` is the commit from which all runs start. `question`, `measure` and `rule` are for
    readers; `primary` is the contrast that decides.
    """

    claim: FileName
    code: Text | None
    question: Text
    measure: Text
    rule: Text
    settings: Several[Text]
    arms: dict[FileName, Arm]
    evaluations: Several[Evaluated]
    primary: Contrast | None = None
    exploratory: Several[Contrast] = ()
    gates: Several[Gate] = ()

    def lacking(self, lines: Sequence[Line]) -> list[str]:
        """Return the runs that lack a line of a step after 0, as ARM_SEED."""
        have = {(x["arm"], x["seed"], x["set"], x["step"]) for x in lines}
        asked = [(e.set, step) for e in self.evaluations for step in e.steps if step]
        runs = [(name, seed) for name, arm in self.arms.items() for seed in arm.seeds]
        return [f"{n}_{s}" for n, s in runs if any((n, s, *cell) not in have for cell in asked)]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Result of a contrast. `sampling` is the part of a cell's variance that its samples make."""

    contrast: Contrast
    seeds: list[int]
    means: tuple[float, float]
    result: Crossed
    sampling: float
    correlation: float
    lead: float  # over the gain at `not_below_k`
    unpaired: list[int]

    @property
    def verdict(self) -> str:
        low, high = 100 * self.result.low, 100 * self.result.high
        if low > 0:
            return "seen" if self.lead >= 0 else "undecided"
        if high < 0:
            return "the opposite"
        expected = self.contrast.expected
        return "not seen" if expected is not None and high < expected else "undecided"


def read_protocol(path: Path) -> tuple[Protocol, list[dict[str, Any]]]:
    """Return a protocol and its lines, which are beside it."""
    protocol = read_typed(path, Protocol, EvaluationError)
    return protocol, read_lines(path.with_suffix(".jsonl"))


def lines_of(arm: str, run: Path, scored: Mapping[int, Scored]) -> list[dict[str, Any]]:
    """Return a line for each step and question set of a run's scores."""
    seed, lines = select(read_config(run), "recipe.seed"), []
    for step, one in scored.items():
        for name, entry in one.benchmarks.items():
            asked, how = entry["settings"], one.record["settings"]
            decode = {key: how.get(key) for key in (*SAMPLING, "max_tokens", "template")}
            decode |= {key: asked.get(key) for key in ("extraction", "tolerance", "verifiers")}
            right = np.rint(np.multiply(entry["question_means"], asked["samples"])).astype(int)
            digest = f"{asked['sha256'][:16]}-{entry['order'][:16]}"  # questions and their order
            line = {"arm": arm, "seed": seed, "step": step, "set": name, "set_sha": digest}
            line |= {"grader": entry["grader"], "decode": decode, "n": asked["samples"]}
            lines.append({**line, "right": right.tolist()})
    return lines


def compare_arms(lines: Sequence[Line], contrast: Contrast) -> Compared:
    """Pair the runs of two arms by seed. Raises EvaluationError if they cannot be compared."""
    cells = [index(lines, arm, contrast.cells) for arm in (contrast.arm, contrast.baseline)]
    seeds = sorted(set(cells[0]) & set(cells[1]))
    if len(seeds) < 2:
        raise EvaluationError(
            f"{contrast}: the arms have the seeds {sorted(cells[0])} and {sorted(cells[1])}. An "
            "interval over seeds needs two runs of each arm with the same values of recipe.seed."
        )
    table = [[[cell[seed][name] for name in contrast.cells] for seed in seeds] for cell in cells]
    _require_comparable(table, contrast)

    def values(k: int) -> FloatArray:
        """Return the measure and its sampling variance, each by arm, seed and question."""
        parts = np.array(
            [[[at_k(x["right"], x["n"], k) for x in run] for run in arm] for arm in table]
        )  # arm, seed, cell, value or variance, question
        scale = scales(parts[..., 0, :].mean(axis=-1), contrast)
        return np.einsum("asxvq,vasx->vasq", parts, np.stack([scale, scale**2]))

    (a, b), noise = values(contrast.k)
    other, than = values(contrast.not_below_k or contrast.k)[0]
    by_seed = np.stack([a.mean(axis=1), b.mean(axis=1)])
    spread = by_seed.std(axis=1).min() > 0
    return Compared(
        contrast=contrast,
        seeds=seeds,
        means=(float(a.mean()), float(b.mean())),
        result=crossed(a - b),
        sampling=float(noise.sum(axis=0).mean()),
        correlation=float(np.corrcoef(by_seed)[0, 1]) if spread else float("nan"),
        lead=float((a - b - other + than).mean()),
        unpaired=sorted({*cells[0], *cells[1]} - {*seeds}),
    )


def scales(means: FloatArray, contrast: Contrast) -> FloatArray:
    """Return the factor of each cell of a run in the measure; `means` are pass@k of the cells."""
    if not contrast.drop:
        factors = [1.0, *[-1 / len(contrast.minus) for _ in contrast.minus]]
        return np.broadcast_to(factors, means.shape)
    steps = means.shape[-1]
    windows = np.sum([np.eye(steps - 2, steps, place) for place in range(3)], axis=0) / 3
    return windows[(means @ windows.T).argmax(axis=-1)] - windows[-1]


def _require_comparable(table: Sequence[Sequence[Sequence[Line]]], contrast: Contrast) -> None:
    """Raise EvaluationError unless all lines ask the same, and a seed's runs start alike."""
    for runs in zip(*table, strict=True):  # a block
        if len({line.get("start_sha") for run in runs for line in run}) > 1:
            seed = runs[0][0]["seed"]
            raise EvaluationError(f"{contrast}: seed {seed} has runs of different start models")
    for first, *others in zip(*(run for arm in table for run in arm), strict=True):
        for other in others:
            was, now = ({key: line[key] for key in ASKED} for line in (first, other))
            if changed := differences(was, now):
                raise EvaluationError(f"{contrast}: evaluated differently: {'; '.join(changed)}")
        if first["n"] < max(contrast.k, contrast.not_below_k or 1):
            raise EvaluationError(f"{contrast}: only {first['n']} samples of each question")
        if len(first["right"]) != len(table[0][0][0]["right"]):
            raise EvaluationError(f"{contrast}: the sets have different numbers of questions")


def index(
    lines: Sequence[Line], arm: str, wanted: Sequence[tuple[str, int]]
) -> dict[int, dict[tuple[str, int], Line]]:
    """Return the lines of an arm's runs that have all `wanted` (set, step), by seed."""
    cells: dict[int, dict[tuple[str, int], Line]] = {}
    for line in lines:
        if line["arm"] == arm and (key := (line["set"], line["step"])) in wanted:
            if key in cells.setdefault(line["seed"], {}):
                raise EvaluationError(f"two runs of arm {arm} have recipe.seed={line['seed']}")
            cells[line["seed"]][key] = line
    return {seed: cell for seed, cell in cells.items() if len(cell) == len(wanted)}


def _points(r: Crossed) -> str:
    return f"{100 * r.mean:+.1f} points, 95 % interval [{100 * r.low:+.1f}, {100 * r.high:+.1f}]"


def described(compared: Sequence[Compared], title: str) -> str:
    """Return the results as text; the p-values are adjusted for each other by Holm's method."""
    texts, adjusted = [title], holm([c.result.p_value for c in compared])
    for c, p in zip(compared, adjusted, strict=True):
        r, (seeds, questions) = c.result, c.result.shape
        sd = [f"{100 * part**0.5:.1f}" for part in (*r.parts, c.sampling)]
        power = ", ".join(f"{n}: {100 * r.detectable(n):.1f}" for n in (seeds, 5, 10, 20))
        texts.append(
            f"{c.contrast}\n"
            f"  {100 * c.means[0]:.1f} - {100 * c.means[1]:.1f} = {_points(r)}, "
            f"p = {r.p_value:.3g} (Holm: {p:.3g}): {c.verdict} here\n"
            f"  {seeds} seeds x {questions} questions; sd in points: seeds {sd[0]}, questions "
            f"{sd[1]}, rest {sd[2]} (samples alone: {sd[3]}); correlation of the arms by seed "
            f"{c.correlation:.2f}\n"
            f"  points that 80 % of studies would see, by seeds: {power}"
        )
        if k := c.contrast.not_below_k:
            texts.append(f"  gain less that at k = {k}: {100 * c.lead:+.1f}")
        if c.unpaired:
            texts.append(f"  left out, not in both arms: seeds {c.unpaired}")
    return "\n".join(texts)


def gate_text(lines: Sequence[Line], gate: Gate) -> str:
    """Return the shares of groups without a signal, in percent, over all seeds of the arm."""
    cells = index(lines, gate.arm, [(name, gate.step) for name in gate.sets])
    if len(cells) < 2:
        raise EvaluationError(
            f"gate {gate.arm}, step {gate.step}: it needs two seeds with {gate.sets}"
        )
    texts, several = [f"groups without a signal: {gate.arm}, step {gate.step}"], len(gate.sets) - 1
    for size, others in ((8, [*gate.sets]), (8 * several, [*gate.sets[1:]])):
        shares = [
            [
                no_signal(
                    [cell[x, gate.step]["right"] for x in sets],
                    cell[sets[0], gate.step]["n"],
                    size // len(sets),
                )
                for cell in cells.values()
            ]
            for sets in ([gate.sets[0]], others)
        ]
        gap, (one, more) = crossed(np.subtract(shares[1], shares[0])), np.mean(shares, axis=(1, 2))
        texts.append(
            f"  {size} of {gate.sets[0]}: {100 * one:.1f}; {size // len(others)} of each of "
            f"{', '.join(others)}: {100 * more:.1f}; {_points(gap)}"
        )
    return "\n".join(texts)
