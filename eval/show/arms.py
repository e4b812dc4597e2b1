"""Arms of several runs each, compared over seeds and questions; protocols of studies.

A line is a run, a step and a question set, with the number of right samples of each question.
`eval.compare --arm` makes lines of run folders; scripts/study.py writes them beside a protocol.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, model_validator

from eval.ask.settings import differences
from eval.scores.metrics import Crossed, at_k, crossed, holm, no_signal, t_interval
from eval.scores.score import Scored
from prompt_aug import typed
from prompt_aug.base.errors import UserError
from prompt_aug.base.estimates import FloatArray, Interval
from prompt_aug.base.files import sha256
from prompt_aug.prompts import FORM
from recipe.config.evaluation import SAMPLING
from recipe.run.folder import read_config, select

Line = Mapping[str, Any]
Key = tuple[str, int, str, int]  # arm, seed, set, step
Cell = tuple[str, int]  # set, step
ASKED = ("set_sha", "grader", "n")  # with `decode` the same in all lines of a contrast
ALIKE = ("start_sha", "cpu", "dtype", "commit", "lock_sha")  # the same in all runs of a seed
DECODE = (
    *(*SAMPLING, "max_tokens", "template", "extraction", "tolerance", "verifiers"),
    *(*FORM, "template_sha256", "system_prompt", "stop", "dtype", "max_model_len"),
)


class Contrast(typed.Record):
    """pass@k of `arm` minus that of `baseline`, paired by seed and question, at `step`.

    `drop` compares drops instead: to the mean over these sets, the same questions in other words,
    or from the best to the last mean of three evaluations in a row, of those every `drop` steps.
    `expected` is the gain in points below which the claim is not seen; without it, no verdict is
    printed. To be seen, the gain at `not_below_k` must not be larger, and of two drops over steps
    the last mean of `baseline`, which drops less, not lower than that of `arm`: `lead` >= 0. Drops
    over steps decide only if `arm` drops by `expected`: noise makes one of two that rise drop more.
    """

    arm: typed.Text
    baseline: typed.Text
    set: typed.Text
    step: typed.Count
    k: typed.Positive = 1
    drop: typed.Positive | typed.Several[typed.Text] = ()
    expected: float | None = None
    not_below_k: typed.Positive | None = None

    @model_validator(mode="after")
    def is_a_difference(self) -> "Contrast":
        if self.arm == self.baseline:
            raise ValueError(f"baseline: {self.arm} is compared with itself. Name another arm.")
        if isinstance(self.drop, int):
            if self.step % self.drop or self.step < 3 * self.drop:
                raise ValueError("step: take a multiple of drop, at least three times it")
            if self.not_below_k:
                raise ValueError("not_below_k: not of a drop over steps. Leave it out.")
        elif self.set in self.drop:
            raise ValueError(f"drop: {self.set} is compared with itself. Leave it out.")
        return self

    @property
    def arms(self) -> frozenset[str]:
        return frozenset((self.arm, self.baseline))

    @property
    def cells(self) -> list[Cell]:
        """The sets and steps of a run that it needs."""
        if isinstance(self.drop, int):
            return [(self.set, step) for step in range(self.drop, self.step + 1, self.drop)]
        return [(name, self.step) for name in (self.set, *self.drop)]

    @property
    def needs(self) -> dict[Cell, int]:
        """The samples of each question that it needs."""
        return dict.fromkeys(self.cells, max(self.k, self.not_below_k or 1))

    def measure(self, run: Sequence[Line], k: int, best: bool) -> FloatArray:
        """Return the measure of a run and its variance over samples, both by question.

        Without `best` a drop over steps is from 0: minus the last mean.
        """
        values, variances = np.array([at_k(x["right"], x["n"], k) for x in run]).swapaxes(0, 1)
        weights = np.zeros(len(run))  # of the cells
        if isinstance(self.drop, int):
            means = sliding_window_view(values.mean(axis=1), 3).mean(axis=1)
            top = means.round(12).argmax()  # of equal ones the first
            weights[top : top + 3] += best / 3
            weights[-3:] -= 1 / 3
        else:
            weights[0], weights[1:] = 1, -1 / max(1, len(self.drop))
        return np.stack([weights @ values, weights**2 @ variances])

    def __str__(self) -> str:
        drop = f", drop: {typed.shown(self.drop)}" if self.drop else ""
        return f"{self.arm} - {self.baseline}: pass@{self.k}, {self.set}, step {self.step}{drop}"


class Gate(typed.Record):
    """Groups without a signal: responses to one wording, or to several. `sets[0]` is q0."""

    arm: typed.Text
    step: typed.Count
    sets: typed.Several[typed.Text] = Field(min_length=2)

    @property
    def arms(self) -> frozenset[str]:
        return frozenset((self.arm,))

    @property
    def needs(self) -> dict[Cell, int]:
        """The samples of each question that it needs."""
        q0, *others = ((name, self.step) for name in self.sets)
        return {q0: 8 * len(others), **dict.fromkeys(others, 8)}


class Sweep(typed.Record):
    """A command eval.sweep at the end of each run; `benchmarks` are SET=PATH:SAMPLES."""

    steps: typed.Several[typed.Count]
    benchmarks: typed.Several[typed.Text]
    temperature: float = 1.0
    top_p: float = 1.0

    @property
    def sets(self) -> list[str]:
        return [benchmark.partition("=")[0] for benchmark in self.benchmarks]


class Arm(typed.Record):
    seeds: typed.Several[typed.Count]
    settings: typed.Several[typed.Text] = ()


class Protocol(typed.Record):
    """A claim, how it is measured, and its runs: hydra settings of all, then of each arm.

    `code` is the commit from which all runs start. `question`, `measure` and `rule` are for
    readers; `primary` is the contrast that decides.
    """

    claim: typed.FileName
    code: typed.Text | None
    question: typed.Text
    measure: typed.Text
    rule: typed.Text
    settings: typed.Several[typed.Text]
    arms: dict[typed.FileName, Arm]
    evaluations: typed.Several[Sweep]
    primary: Contrast | None = None
    exploratory: typed.Several[Contrast] = ()
    gates: typed.Several[Gate] = ()

    @property
    def asked(self) -> dict[Cell, int]:
        """The samples of each question; one if greedy, since all are the same."""
        asked = dict[Cell, int]()
        for sweep in self.evaluations:
            for step, benchmark in product(sweep.steps, sweep.benchmarks):
                name, _, samples = benchmark.rpartition(":")
                if "=" not in name or not samples.isdecimal():
                    raise ValueError(f"evaluations: {benchmark}: is not SET=PATH:SAMPLES")
                if (cell := (name.partition("=")[0], step)) in asked:
                    raise ValueError(f"evaluations: two of {cell}. Give its set another name.")
                asked[cell] = int(samples) if sweep.temperature else 1
        return asked

    @model_validator(mode="after")
    def asks_what_it_compares(self) -> "Protocol":
        asked = self.asked
        compared: list[Contrast | Gate] = [*self.exploratory, *self.gates]
        for one in (*filter(None, [self.primary]), *compared):
            arms, needs = one.arms, one.needs
            if lost := [*(arms - self.arms.keys()), *(needs.keys() - asked.keys())]:
                raise ValueError(f"{one}: nothing is named {lost[0]}. Name what is run and asked.")
            if len(set.intersection(*({*self.arms[arm].seeds} for arm in arms))) < 2:
                raise ValueError(f"{one}: needs two seeds in all of {sorted(arms)}. Add them.")
            if any(not step for _, step in needs) and any(
                {self.block(seed)[0]} != arms for arm in arms for seed in self.arms[arm].seeds
            ):
                raise ValueError(f"{one}: step 0 is evaluated with the first arm alone. Name it.")
            if few := [cell for cell, samples in needs.items() if asked[cell] < samples]:
                raise ValueError(
                    f"{one}: {few[0]} has {asked[few[0]]} samples. Take {needs[few[0]]}."
                )
        return self

    def block(self, seed: int) -> list[str]:
        """Return the arms of a seed. Step 0 is evaluated with the first one."""
        return [name for name, arm in self.arms.items() if seed in arm.seeds]

    def keys(self, arm: str, seed: int) -> set[Key]:
        """Return the keys of the lines of a run."""
        steps = [(step, sweep) for sweep in self.evaluations for step in sweep.steps]
        first = arm == self.block(seed)[0]
        return {(arm, seed, x, step) for step, sweep in steps if step or first for x in sweep.sets}

    def lacking(self, lines: Iterable[Line]) -> dict[str, list[str]]:
        """Return the runs that lack a line, as ARM_SEED, by arm."""
        have, lacking = {key(line) for line in lines}, dict[str, list[str]]()
        for name, arm in self.arms.items():
            if runs := [f"{name}_{x}" for x in arm.seeds if self.keys(name, x) - have]:
                lacking[name] = runs
        return lacking


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Result of a contrast. `sampling` is the part of a cell's variance that its samples make.

    If the seeds have several start models, `one_starts` are of the most frequent one alone, or of
    each of those equally frequent; None if a model has one seed, so that nothing can be said.
    """

    contrast: Contrast
    seeds: list[int]
    by_seed: list[tuple[float, float]]  # the measure of both arms
    means: tuple[float, float]
    result: Crossed
    sampling: float
    correlation: float
    lead: float  # over the gain at `not_below_k`, or of the baseline's last mean
    entropies: tuple[float, float]  # of both arms at the end of training; NaN: not in the lines
    entropy: Interval  # of their difference
    one_starts: "list[Compared] | None"

    @property
    def verdict(self) -> str:
        """The verdict of the rule; of several start models, if `one_starts` have the same."""
        if self.one_starts != []:
            own = replace(self, one_starts=[]).verdict
            return own if {one.verdict for one in self.one_starts or ()} == {own} else "undecided"
        low, high = 100 * self.result.low, 100 * self.result.high
        falls = round(100 * self.means[0], 9) >= (self.contrast.expected or 0)  # 4.999... is 5
        if isinstance(self.contrast.drop, int) and not falls:
            return "undecided"
        if low > 0:
            return "seen" if round(self.lead, 12) >= 0 else "undecided"
        if high < 0:
            return "the opposite"
        return "not seen" if high < (self.contrast.expected or 0) else "undecided"


def key(line: Line) -> Key:
    return line["arm"], line["seed"], line["set"], line["step"]


def read_protocol(path: Path) -> tuple[Protocol, list[dict[str, Any]]]:
    """Return a protocol and its lines, which are beside it. Raises UserError if they don't fit."""
    protocol = typed.read_typed(path, Protocol, UserError)
    lines = read_results(path.with_suffix(".jsonl"))
    if {line.get("protocol_sha") for line in lines} - {sha256(path)}:
        raise UserError(f"{path}: was changed after its first lines. Restore it, or remove them.")
    keys = [protocol.keys(name, seed) for name, arm in protocol.arms.items() for seed in arm.seeds]
    if strange := Counter(map(key, lines)) - Counter(chain.from_iterable(keys)):
        raise UserError(f"{path}: not named in it, or two lines of one: {[*strange]}. Remove them.")
    asked = {cell: (samples, protocol.code) for cell, samples in protocol.asked.items()}
    if odd := [x for x in lines if asked[x["set"], x["step"]] != (x["n"], x.get("commit"))]:
        raise UserError(f"{path}: with another n or commit: {[*map(key, odd)]}. Remove the lines.")
    return protocol, lines


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none if it does not exist. Raises FileError for other lines."""
    kinds = {"arm": str, "seed": int, "set": str, "step": int, "n": int, "right": list[int]}
    kinds |= {"set_sha": str, "grader": str, "decode": dict[str, Any]}
    lines = list(typed.typed_lines(path, *kinds, **kinds))
    for line in lines:
        if not all(0 <= right <= line["n"] for right in line["right"]):
            raise UserError(f"{path}: {key(line)}: right: a value is not in 0 to n={line['n']}")
    return lines


def lines_of(arm: str, run: Path, scored: Mapping[int, Scored]) -> list[dict[str, Any]]:
    """Return a line for each step and question set of a run's scores."""
    seed, lines = select(read_config(run), "recipe.seed"), []
    for step, one in scored.items():
        for name, entry in one.benchmarks.items():
            if "order" not in entry or "sha256" not in entry["settings"]:
                raise UserError(f"{one.folder.root}: scores of an older version. Sweep it again.")
            asked = one.asked(name)
            decode = {key: asked.get(key) for key in DECODE}
            right = np.rint(np.multiply(entry["question_means"], asked["samples"])).astype(int)
            digest = f"{asked['sha256'][:16]}-{entry['order'][:16]}"  # questions and their order
            line = {"arm": arm, "seed": seed, "step": step, "set": name, "set_sha": digest}
            line |= {"grader": entry["grader"], "decode": decode, "n": asked["samples"]}
            lines.append({**line, "right": right.tolist()})
    return lines


def compare_arms(lines: Sequence[Line], contrast: Contrast) -> Compared:
    """Pair the runs of two arms by seed. Raises UserError if they cannot be compared."""
    table = runs_of(lines, [contrast.arm, contrast.baseline], contrast.cells)
    ks = (contrast.k, contrast.not_below_k or contrast.k)
    if (samples := min(line["n"] for line in table[0][0])) < max(ks):
        raise UserError(f"{contrast}: only {samples} samples of each question")
    steps = isinstance(contrast.drop, int)
    measured = [
        [[contrast.measure(run, k, best) for run in arm] for arm in table]
        for k, best in zip(ks, (True, not steps), strict=True)
    ]
    values, variances = np.moveaxis(np.array(measured), 3, 0)  # by k, arm, seed, question
    (a, b), gains = values[0], values[:, 0] - values[:, 1]
    with np.errstate(invalid="ignore"):  # NaN where all runs of an arm are equal
        correlation = np.corrcoef(a.mean(axis=1), b.mean(axis=1))[0, 1]
    none = {"entropy": [None]}
    train = [[run[-1].get("train", none)["entropy"][-1] for run in arm] for arm in table]
    ends = np.array(train, dtype=np.float64)
    starts = Counter(run[0].get("start_sha") for run in table[0])
    most = max(starts.values())
    of_one = [
        [line for line in lines if line.get("start_sha") == start]
        for start, times in starts.items()
        if 1 < times == most < starts.total()
    ]
    return Compared(
        contrast=contrast,
        seeds=[run[0]["seed"] for run in table[0]],
        by_seed=list(zip(a.mean(axis=1).tolist(), b.mean(axis=1).tolist(), strict=True)),
        means=(float(a.mean()), float(b.mean())),
        result=crossed(gains[0]),
        sampling=float(variances[0].sum(axis=0).mean()),
        correlation=float(correlation),
        lead=float(np.mean(gains[1] if steps else gains[0] - gains[1])),
        entropies=(float(ends[0].mean()), float(ends[1].mean())),
        entropy=t_interval(ends[0] - ends[1]),
        one_starts=[compare_arms(of, contrast) for of in of_one] if most > 1 else None,
    )


def runs_of(
    lines: Iterable[Line], arms: Sequence[str], cells: Sequence[Cell]
) -> list[list[list[Line]]]:
    """Return the lines of `cells`, by arm and by seed, for the seeds that all arms have whole.

    Raises UserError unless a cell's lines all ask the same, and a seed's runs start alike.
    """
    found: dict[Key, Line] = {}
    for line in lines:
        if found.setdefault(key(line), line) is not line:
            raise UserError(f"two runs of arm {line['arm']} have recipe.seed={line['seed']}")
    seeds = [
        seed
        for seed in sorted({seed for _, seed, _, _ in found})
        if all((arm, seed, *cell) in found for arm in arms for cell in cells)
    ]
    if len(seeds) < 2:
        raise UserError(
            f"{arms}: {len(seeds)} seeds have all lines of {cells}. An interval over seeds needs "
            "two runs of each arm with the same values of recipe.seed."
        )
    table = [[[found[arm, seed, *cell] for cell in cells] for seed in seeds] for arm in arms]
    for seed, runs in zip(seeds, zip(*table, strict=True), strict=True):
        lines = list(chain.from_iterable(runs))
        if other := [name for name in ALIKE if len({line.get(name) for line in lines}) > 1]:
            raise UserError(f"seed {seed} has runs with different values of {other}")
    for place, cell in enumerate(cells):
        require_same([run[place] for arm in table for run in arm], cell)
    sizes = {len(line["right"]) for arm in table for run in arm for line in run}
    if len(sizes) > 1 or min(sizes) < 2:
        raise UserError(f"{cells}: need at least two questions, as many in all: {sorted(sizes)}")
    return table


def require_same(lines: Iterable[Line], cell: Cell) -> None:
    """Raise UserError unless the lines of a cell were asked alike.

    Lines of older versions lack some keys. The precision follows from the processor, on which also
    the start model was made: seeds of another start model may have another one.
    """
    first, precision = dict[str, Any](), dict[Any, str]()
    for line in lines:
        now = {**line["decode"], **{name: line[name] for name in ASKED}}
        then = {k: first.setdefault(k, v) for k, v in now.items() if k != "dtype"}
        if "dtype" in now:
            then["dtype"] = precision.setdefault(line.get("start_sha"), now["dtype"])
        if changed := differences(then, now):
            raise UserError(
                f"{cell}: evaluated differently: {'; '.join(changed)}. Run eval.sweep with the "
                "same options for all, or name one evaluation with --settings."
            )


def _points(r: Crossed) -> str:
    return f"{100 * r.mean:+.1f} points, 95 % interval [{100 * r.low:+.1f}, {100 * r.high:+.1f}]"


def described(compared: Sequence[Compared], title: str) -> str:
    """Return the results as text; the p-values are adjusted for each other by Holm's method."""
    texts, adjusted = [title], holm([c.result.p_value for c in compared])
    for c, p in zip(compared, adjusted, strict=True):
        r, (seeds, questions) = c.result, c.result.shape
        sd = [f"{100 * part**0.5:.1f}" for part in r.parts]
        alone = f"{100 * c.sampling**0.5:.1f}" if np.isfinite(c.sampling) else "unknown of one"
        sizes = sorted({seeds, 5, 10, 20})
        power = ", ".join(f"{n}: {100 * r.detectable(n):.1f}" for n in sizes)
        verdict = "" if c.contrast.expected is None else f": {c.verdict} here"
        runs = ", ".join(f"{100 * one:.1f} - {100 * other:.1f}" for one, other in c.by_seed)
        among = f" (Holm: {p:.3g})" if len(compared) > 1 else ""
        texts.append(f"""{c.contrast}
  {100 * c.means[0]:.1f} - {100 * c.means[1]:.1f} = {_points(r)}
  p = {r.p_value:.3g}{among}{verdict}
  {seeds} seeds x {questions} questions; seeds: {typed.shown(c.seeds)}
  by seed: {runs}
  sd in points: seeds {sd[0]}, questions {sd[1]}, rest {sd[2]} (samples alone: {alone})
  correlation of the arms by seed: {c.correlation:.2f}
  points that 80 % of studies would see, by seeds: {power}""")
        if k := c.contrast.not_below_k:
            texts.append(f"  gain less that at k = {k}: {100 * c.lead:+.1f}")
        elif isinstance(c.contrast.drop, int):
            texts.append(f"  last mean of {c.contrast.baseline} less: {100 * c.lead:+.1f}")
        if np.isfinite(c.entropy[0]):
            (one, other), (low, high) = c.entropies, c.entropy
            gain = f"{one:.3f} - {other:.3f}, interval [{low:+.3f}, {high:+.3f}]"
            texts.append(f"  entropy at the end: {gain}")
        if c.one_starts is None:
            texts.append("  each seed has another start model: no verdict")
        for same in c.one_starts or ():
            texts.append(indent(described([same], "of one start model alone:"), "  "))
    return "\n".join(texts)


def each_run(lines: Iterable[Line], title: str, lacking: Container[str] = ()) -> str:
    """Return the accuracy of each run, in percent, and its drop over three steps or more.

    The drop is from the best to the last mean of three evaluations in a row; `lacking` have none.
    """
    texts, runs = [title], dict[tuple[str, str], list[float]]()
    for line in sorted(lines, key=key):
        run, rate = f"{line['arm']}_{line['seed']}", 100 * np.mean(line["right"]) / line["n"]
        texts.append(f"  {run}, step {line['step']}, {line['set']}: {rate:.1f}")
        runs.setdefault((run, line["set"]), []).append(rate)
    for (run, name), rates in runs.items():
        if len(rates) >= 3 and run not in lacking:
            means = sliding_window_view(rates, 3).mean(axis=1)
            texts.append(f"  {run}, {name}: drop {means.max() - means[-1]:.2f}")
    return "\n".join(texts)


def gate_text(lines: Sequence[Line], gate: Gate) -> str:
    """Return the shares of groups without a signal, in percent, over all seeds of the arm.

    Two responses to each wording against as many to q0; eight to each other wording likewise.
    """
    (runs,) = runs_of(lines, [gate.arm], [(name, gate.step) for name in gate.sets])
    right = np.array([[line["right"] for line in run] for run in runs])  # seed, wording, question
    samples = [line["n"] for line in runs[0]]
    texts = [f"groups without a signal: {gate.arm}, step {gate.step}"]
    for first, each in ((0, 2), (1, 8)):
        names = gate.sets[first:]
        one = no_signal(right[:, :1], samples[:1], each * len(names))
        several = no_signal(right[:, first:], samples[first:], each)
        texts.append(
            f"  {each * len(names)} of {gate.sets[0]}: {100 * one.mean():.1f}; {each} of each of "
            f"{', '.join(names)}: {100 * several.mean():.1f}; {_points(crossed(several - one))}"
        )
    return "\n".join(texts)
