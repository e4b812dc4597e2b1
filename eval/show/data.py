"""The contents of a report, read from a run folder: scores by step, training curves, the summary.

Missing data becomes a note, never a zero.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.ask.checkpoints import has_changed
from eval.ask.settings import differences
from eval.scores import metrics
from eval.scores.metrics import Difference, paired
from eval.scores.score import Scored, Selection, read_scores, require_one_grader
from prompt_aug.base.commands import python_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import MissingFileError, read_text
from prompt_aug.typed import parse_typed, parse_yaml
from recipe.run.folder import (
    EvaluationFolder,
    RunFolder,
    numbered,
    read_config,
    read_metrics,
    select,
)

Series = tuple[list[float], list[float]]
Entries = Mapping[str, Mapping[str, Any]]  # scores.json of each benchmark


@dataclass(frozen=True)
class CheckpointRow:
    """A scored checkpoint: `total` over all questions, `gain` over the start model, paired.

    `benchmarks` has its entries of the benchmarks that are shown.
    """

    step: int
    scored: Scored
    benchmarks: Entries
    total: metrics.Estimate
    gain: Difference | None

    @property
    def asked(self) -> dict[str, dict[str, Any]]:
        return {name: self.scored.asked(name) for name in self.benchmarks}


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All data of a report. `metrics` has one record per training step, in order."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    rows: Sequence[CheckpointRow]
    date: str | None = None
    selection: Selection | None = None
    notes: list[str] = field(default_factory=list)

    def series(self, key: str) -> Series:
        """Return (steps, values) of the metric `key` where it is finite."""
        points = [
            (float(line["step"]), float(line[key]))
            for line in self.metrics
            if isinstance(line.get(key), int | float) and math.isfinite(line[key])
        ]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, key: str) -> float | None:
        return next(iter(self.series(key)[1][::-1]), None)

    @property
    def result(self) -> CheckpointRow:
        """The checkpoint that represents the run: the picked one, or the last. Needs `rows`."""
        step = self.selection.step if self.selection else self.rows[-1].step
        return next(row for row in self.rows if row.step == step)

    @property
    def eval_settings(self) -> Mapping[str, Any]:
        return self.rows[-1].scored.record["settings"] if self.rows else {}

    def keys(self, prefix: str) -> list[str]:
        return sorted({key for line in self.metrics for key in line if key.startswith(prefix)})


def collect(run: Path, settings: str | None = None, preferred: str | None = None) -> RunData:
    """Read a run folder. Missing scores or metrics become notes; both missing is an error."""
    folder, notes = RunFolder(run), list[str]()
    texts = {}
    for path in (folder.config, folder.environment):
        try:
            content = parse_yaml(read_text(path), str(path))  # JSON is yaml
            texts[path] = parse_typed(content or {}, dict[Any, Any], str(path), UserError)
        except MissingFileError:
            notes.append(f"{path.name} is missing")
    lines = read_metrics(run)
    if not lines:
        notes.append("metrics.jsonl has no training step: there are no training curves")
    scored = choose_evaluation(run, settings, notes, preferred)
    require_one_grader({f"step_{step}": x.record["grader"] for step, x in scored.items()})
    if not scored and folder.environment.exists():  # not the log of another program
        notes.append(f"no checkpoint is evaluated yet: run `{how_to_sweep(run)}`")
    if not scored and not lines:
        raise UserError(
            f"{run} has neither metrics.jsonl nor eval/SETTINGS/step_N/scores.json: nothing to "
            f"report. Train it, then run `{how_to_sweep(run)}`."
        )
    selection = scored[max(scored)].selection if scored else None
    if selection:
        name = selection.benchmark
        now = {str(s): x.benchmarks.get(name, {}).get("accuracy") for s, x in scored.items()}
        if now != selection.scores:
            raise UserError(
                f"{scored[max(scored)].folder.selection}: the scores have changed since this "
                "selection. Run `python -m eval.selection` again, or delete the file"
            )
    written = time.gmtime(folder.metrics.stat().st_mtime) if folder.metrics.exists() else None
    return RunData(
        name=run.resolve().name,
        config=texts.get(folder.config) or {},
        environment=texts.get(folder.environment) or {},
        metrics=lines,
        rows=checkpoint_rows(scored, notes, selection),
        selection=selection,
        date=time.strftime("%Y-%m-%d %H:%M UTC", written) if written else None,
        notes=notes,
    )


def how_to_sweep(run: Path) -> str:
    """Return a command that evaluates a run, on its validation questions unless it names others."""
    folder = RunFolder(run)
    config, test = read_config(run) if folder.config.exists() else {}, folder.data("test")
    known = select(config, "eval.benchmarks")
    request = f"validation={test}" if test.exists() else "math500"
    return python_command("eval.sweep", run, *([] if known else ["--benchmark", request]))


def checkpoint_rows(
    scored: Mapping[int, Scored], notes: list[str], selection: Selection | None
) -> list[CheckpointRow]:
    """Return a row per step, over the benchmarks that all steps have.

    The benchmark that picked a checkpoint is left out, unless it is the only one.
    """
    if not scored:
        return []
    common = set.intersection(*(set(x.benchmarks) for x in scored.values()))
    if partial := set().union(*(x.benchmarks for x in scored.values())) - common:
        notes.append(f"left out, because not all checkpoints have it: {', '.join(sorted(partial))}")
    if not common:
        raise UserError("the checkpoints have no benchmark in common: evaluate them again")
    last = scored[max(scored)]
    names = [name for name in last.benchmarks if name in common]
    picked = selection.validated_by if selection else None
    if picked in names and len(names) > 1:
        names.remove(picked)
    notes += [f"a checkpoint was picked by {picked}: its score is too high"] * (picked in names)
    if 0 not in scored:
        notes.append("the start model (step 0) is not evaluated: there is no gain over it")
    rows = []
    for step in sorted(scored):
        entries, gain = scored[step].only(names).benchmarks, None
        if step and 0 in scored:
            if changed := asked_differently(scored[0], scored[step], names):
                note = f"{changed[0]} was asked differently of the start model: no gain is given"
                notes += [note] if note not in notes else []
            else:
                start = question_means(scored[0].benchmarks, names)
                gain = paired(start, question_means(entries, names))
        if changed := asked_differently(last, scored[step], names):
            notes.append(f"{changed[0]} was asked differently at step {step} than at the last one")
        parts = [metrics.of_means(entry["question_means"]) for entry in entries.values()]
        total = metrics.over_questions(parts)
        rows.append(CheckpointRow(step, scored[step], entries, total, gain))
    return rows


def asked_differently(one: Scored, other: Scored, names: Iterable[str]) -> list[str]:
    """Return those of the benchmarks that two checkpoints were asked, or graded, differently."""
    return [name for name in names if one.asked(name) != other.asked(name)]


def side_by_side(runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs over the benchmarks that all have, asked alike; notes name what is left out.

    A run that shares none with those before it keeps its own, and is not compared.
    """
    scored, compared = [run for run in runs if run.rows], dict[str, RunData]()
    shared = scored[0].rows[-1].asked if scored else {}
    for run in scored:
        asked = run.rows[-1].asked
        if both := {name: how for name, how in asked.items() if shared.get(name) == how}:
            shared, compared[run.name] = both, run
        else:
            name = next((name for name in shared if name in asked), None)
            why = differences(shared[name], asked[name]) if name else ["no benchmark in common"]
            run.notes.append(
                f"not compared with {scored[0].name}: {'; '.join(why)}. Run eval.sweep with the "
                "same options, or name one evaluation with --settings."
            )
    for run in compared.values():
        if others := set(run.rows[-1].asked) - set(shared):
            run.notes.append(f"left out, not asked alike of all runs: {', '.join(sorted(others))}")
            rows = checkpoint_rows({x.step: x.scored.only(shared) for x in run.rows}, [], None)
            compared[run.name] = replace(run, rows=rows)
    return [compared.get(run.name, run) for run in runs]


def apart(runs: Sequence[RunData], run: RunData) -> str:
    """Return " (NAME)" of the first run that was asked as `run` was, "" if it is the first."""
    names = [x.name for x in runs if x.rows and x.rows[-1].asked == run.rows[-1].asked]
    return "" if names[0] == next(x.name for x in runs if x.rows) else f" ({names[0]})"


def question_means(entries: Entries, names: Iterable[str]) -> list[float]:
    """Return the share of right samples of each question of the benchmarks `names`."""
    return [mean for name in names for mean in entries[name]["question_means"]]


def summary(data: RunData) -> dict[str, Any]:
    """Return the numbers of summary.json; null means that the run does not have the value.

    accuracy is the mean over all questions, gain is over the start model and paired by question.
    wall_seconds is training time without the start model's preparation, export and evaluation.
    """
    start = next((row for row in data.rows if row.step == 0), None)
    optimizer_steps = data.last("train/optimizer_steps")
    keys = ("accuracy", "standard_error", "questions")
    rows = [
        {
            "step": row.step,
            **{key: getattr(row.total, key) for key in keys},
            "gain": row.gain and row.gain.mean,
            "gain_standard_error": row.gain and row.gain.standard_error,
            "gain_interval": row.gain and [row.gain.low, row.gain.high],
            "gain_p_value": row.gain and row.gain.p_value,
            "benchmarks": {n: {key: e[key] for key in keys} for n, e in row.benchmarks.items()},
        }
        for row in data.rows
        if row.step > 0
    ]
    return {
        "start_accuracy": start.total.accuracy if start else None,
        "start_standard_error": start.total.standard_error if start else None,
        "checkpoints": rows,
        "optimizer_steps": None if optimizer_steps is None else int(optimizer_steps),
        "training_steps": int(data.metrics[-1]["step"]) if data.metrics else None,
        "seed": select(data.config, "recipe.seed"),
        "wall_seconds": data.last("train/wall_seconds"),
        "evaluation": dict(data.eval_settings),
        "selection": data.selection and data.selection.model_dump(),
        "notes": list(data.notes),
    }


def common_settings(runs: Iterable[Path]) -> str | None:
    """Return the settings that most runs have scores of; ties go to those with the most steps."""
    files = {run: RunFolder(run).evaluation.glob("*/step_*/scores.json") for run in runs}
    found = [(run, path.parts[-3]) for run, paths in files.items() for path in paths]
    having, steps = (Counter(name for _, name in x) for x in (set(found), found))
    return max(sorted(steps), key=lambda name: (having[name], steps[name]), default=None)


def choose_evaluation(
    run: Path, settings: str | None, notes: list[str], preferred: str | None = None
) -> dict[int, Scored]:
    """Return the scored checkpoints of `settings`, by step; a note names the other settings.

    None selects the `preferred` ones, else those with the most steps; ties go to the newest. Scores
    of weights that were exported anew since are left out with a note.
    """
    root, stale = RunFolder(run).evaluation, list[str]()
    by_settings: dict[str, dict[int, Scored]] = {}
    for folder in sorted(root.glob("*/")):
        for step, path in numbered(folder, "step_").items():
            files = EvaluationFolder(path)
            if not files.scores.exists():
                continue
            scored = Scored(files, read_scores(files))
            if has_changed(RunFolder(run).exported(step), scored.record["identity"]):
                stale.append(f"{folder.name}/step_{step}")
            else:
                by_settings.setdefault(folder.name, {})[step] = scored
    if stale:
        notes.append(
            f"scores left out, because the exports have other weights now: {', '.join(stale)}. Run "
            "eval.sweep again."
        )
    if settings is not None and settings not in by_settings:
        raise UserError(f"no scores of the settings {settings!r} in {root}: {sorted(by_settings)}")
    if not by_settings:
        return {}

    def rank(name: str) -> tuple[bool, int, float]:
        written = [scored.folder.scores.stat().st_mtime for scored in by_settings[name].values()]
        return name == preferred, len(written), max(written)

    chosen = settings or max(by_settings, key=rank)
    if others := sorted(set(by_settings) - {chosen}):
        notes.append(f"these are the settings {chosen}; others (--settings): {', '.join(others)}")
    return by_settings[chosen]


def scored_steps(run: Path, settings: str | None) -> dict[int, Scored]:
    """Return the scored checkpoints of a run by step, at least one; print which were chosen."""
    scored = choose_evaluation(run, settings, notes := list[str]())
    for note in notes:
        print(f"note: {note}")
    if not scored:
        raise UserError(f"{run} has no scores: run `{how_to_sweep(run)}` first")
    return scored
