"""The tables and facts of a report as texts. Nothing is escaped here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import yaml

from eval.scores import metrics
from eval.scores.metrics import Difference, paired
from eval.show.data import RunData, apart, question_means
from eval.show.figures import template_names
from prompt_aug.base.estimates import wilson
from prompt_aug.base.progress import duration
from prompt_aug.typed import flat
from recipe.run.folder import select

CONFIG_SECTIONS = ("recipe", "eval", "algorithm", "trainer", "data")  # shown on the page
SECRET = re.compile(r"token|secret|passw|api_?key|credential", re.IGNORECASE)
# A value that looks like a token under any key: usual prefixes, a password in a URL, a long random
# word. 40 or 64 hex digits are a commit or a digest, unless a key beside them is a secret.
TOKEN = re.compile(
    r"\b(hf|sk|pk|ghp|gho|glpat|xox[abp]|wandb)[_-][\w-]{8,}|AKIA[0-9A-Z]{12,}|://[^/\s:]+:[^/\s]+@|"
    rf"(?i:{SECRET.pattern})\w*\W{{1,3}}[0-9a-f]{{40}}|"
    r"(?<![\w/.-])(?!(?:[0-9a-f]{40}|[0-9a-f]{64})\b)(?=\w*\d)(?=\w*[A-Za-z])\w{32,}(?![\w/.-])"
)
# The configuration keys that make a method, with their names in its description.
PARTS = {
    "recipe.advantage.name": "advantage",
    "recipe.weights.name": "weights",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "loss",
    "recipe.rephrasings.count": "rephrasings",
    "algorithm.filter_groups.enable": "dynamic sampling",
    "recipe.reward.overlong.enable": "overlong penalty",
    "recipe.history.enable": "length history",
    "recipe.curriculum.enable": "curriculum",
    "recipe.one_question": "one question",
}
# Keys that name a run or its folder, and differ between any two runs.
NAMES = (
    "recipe.name",
    "recipe.run_dir",
    "recipe.method",
    "trainer.default_local_dir",
    "trainer.experiment_name",
)
Table = list[list[str]]  # the first row is the header


# ------------------------------------------------------------------------- cells


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def share(value: metrics.Estimate | Mapping[str, Any] | None) -> str:
    """Format an accuracy in percent: ``41.2 ±2.1``, at 0 and 100 % ``0.0 [0.0, 11.4]``."""
    if value is None:
        return "-"
    entry = asdict(value) if isinstance(value, metrics.Estimate) else value
    mean, error = entry["accuracy"], entry["standard_error"]
    if mean in (0.0, 1.0):
        low, high = wilson(mean, entry["questions"])
        return f"{percent(mean)} [{percent(low)}, {percent(high)}]"
    return percent(mean) + ("" if error is None else f" ±{percent(error)}")


def points(value: Difference) -> str:
    return f"{100 * value.mean:+.1f}"


def interval(value: Difference) -> str:
    return f"[{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def change(value: Difference | None) -> str:
    """Format a paired difference in points with its standard error: ``+5.0 ±2.1``."""
    if value is None:
        return "-"
    error = value.standard_error
    return points(value) + ("" if error is None else f" ±{percent(error)}")


def p_value(difference: Difference | None) -> str:
    """Format the p-value of a paired difference with two digits, or as ``<0.001``."""
    if difference is None:
        return "-"
    return "<0.001" if difference.p_value < 0.001 else f"{difference.p_value:.2g}"


def step_name(step: int) -> str:
    return "start model" if step == 0 else f"after step {step}"


def markdown_table(table: Table) -> str:
    """Format a table in Markdown. Bars in cells are escaped."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    rows.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(rows)


def without_secrets(value: Any, key: str = "") -> Any:
    """Replace texts that look like a secret, or whose key names one."""
    if isinstance(value, Mapping):
        return {name: without_secrets(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner, key) for inner in value]
    # "max_tokens" is a number, an access token is a text.
    hidden = isinstance(value, str) and (SECRET.search(key) or TOKEN.search(value))
    return "(left out)" if hidden else value


# ------------------------------------------------------------------------- scores of a run


def checkpoint_table(data: RunData) -> Table:
    """Return a row per checkpoint, at least one, in percent ± one standard error."""
    head, several = ["checkpoint"], len(data.rows[-1].benchmarks) > 1
    for name, entry in data.rows[-1].benchmarks.items():
        settings = entry["settings"]
        size = str(settings["questions"])
        size += f" of {settings['of']}" if settings["questions"] != settings["of"] else ""
        size += f" x {settings['samples']}" if settings["samples"] > 1 else ""
        head.append(f"{name} ({size})")
    head += ["all questions"] * several
    table = [[*head, "gain over start", "p", "no answer", "truncated", "tokens"]]
    for row in data.rows:
        entries = list(row.benchmarks.values())
        rates = [
            (e["status_rates"].get("no_answer", 0.0), e["truncation_rate"], e["mean_tokens"])
            for e in entries
        ]
        weights = [entry["samples"] for entry in entries]
        values = np.array(rates, dtype=float)  # NaN for unknown tokens
        no_answer, truncated, tokens = np.average(values, axis=0, weights=weights)
        name = "start (step 0)" if row.step == 0 else f"step {row.step}"
        table.append([
            name + " *" * (data.selection is not None and data.selection.step == row.step),
            *map(share, entries), *[share(row.total)] * several, change(row.gain),
            p_value(row.gain), percent(no_answer), percent(truncated),
            "-" if np.isnan(tokens) else f"{tokens:.0f}",
        ])  # fmt: skip
    return table


def pass_at_k_table(data: RunData) -> Table:
    """Return pass@k by checkpoint and benchmark, if there is more than one sample."""
    rows = [
        (f"step {row.step}", name, entry["pass_at_k"])
        for row in data.rows
        for name, entry in row.benchmarks.items()
        if len(entry["pass_at_k"]) > 1
    ]
    ks = sorted({k for _, _, values in rows for k in values}, key=int)
    table = [["checkpoint", "benchmark", *(f"pass@{k}" for k in ks)]]
    for step, name, values in rows:
        table.append([step, name, *(percent(values[k]) if k in values else "-" for k in ks)])
    return table


def template_table(data: RunData) -> Table:
    """Return share, accuracy and format reward of each template over the last 10 steps.

    All are means over responses. A step without a template has none of its responses.
    """
    lines = [line for line in data.metrics if line["step"] > 0][-10:]
    table = [["template", "share", "accuracy", "format"]]
    responses = [line.get("train/responses", 1.0) for line in lines]  # equal if not logged
    for name in template_names(data):
        own = [line.get(f"template/{name}/share", 0.0) for line in lines]
        weights = np.multiply(responses, own)
        cells = [percent(weights.sum() / sum(responses))]
        for part in ("accuracy", "format"):
            key = f"template/{name}/{part}"
            values = [(line[key], w) for line, w in zip(lines, weights, strict=True) if key in line]
            total = sum(w for _, w in values)
            cells.append(percent(sum(x * w for x, w in values) / total) if total else "-")
        table.append([name, *cells])
    return table


# ------------------------------------------------------------------------- facts of a run


def method(config: Mapping[str, Any]) -> str | None:
    """Describe the method of a run: its configured name, and the parts that it consists of."""
    parts = []
    templates = select(config, "recipe.augment.templates")
    augmented = select(config, "recipe.augment.mode") in ("per_question", "per_rollout")
    if augmented and (templates is None or len(templates) > 1):
        kinds = "all" if templates is None else len(templates)
        parts.append(f"prompt augmentation with {kinds} templates")
    for key, label in PARTS.items():
        value = select(config, key)
        if value not in (None, False, 0, "none", "vanilla"):
            parts.append(label if value is True else f"{label} {value}")
    name, made = select(config, "recipe.method"), ", ".join(parts)
    return f"{name} ({made})" if name and made else name or made or None


def header_table(data: RunData) -> Table:
    files = select(data.config, "data.train_files") or []
    commit = data.environment.get("commit")
    changed = " with uncommitted changes" if data.environment.get("uncommitted_changes") else ""
    facts = {
        "model": select(data.config, "actor_rollout_ref.model.path"),
        "method": method(data.config),
        "data": ", ".join(map(str, [files] if isinstance(files, str) else files)) or None,
        "command": data.environment.get("command"),
        "commit": f"{commit}{changed}" if commit else None,
        "date": data.date,
    }
    return [[n, without_secrets(str(value))] for n, value in facts.items() if value is not None]


def environment_table(data: RunData) -> Table:
    """Return environment.json, flattened by one level."""
    table = []
    for name, value in without_secrets(data.environment).items():
        if isinstance(value, Mapping):
            table += [[f"{name} {key}", str(inner)] for key, inner in value.items() if inner]
        elif value is not None:
            table.append([name, str(value)])
    return table


def configuration(data: RunData) -> str:
    sections = {name: data.config[name] for name in CONFIG_SECTIONS if name in data.config}
    return yaml.safe_dump(without_secrets(sections), sort_keys=False, allow_unicode=True)


def headline(data: RunData, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts: dict[str, str] = {}
    if data.rows:
        first, result = data.rows[0], data.result
        facts[f"accuracy, {step_name(first.step)}"] = share(first.total) + " %"
        if (picked := data.selection) and picked.benchmark in result.benchmarks:
            kind = "TEST SET " * (picked.kind == "test")
            facts["picked on"] = f"{kind}{picked.benchmark}: its score is too high"
        facts[f"accuracy, {step_name(result.step)}"] = share(result.total) + " %"
        if result.gain is not None:
            facts["gain, paired by question"] = change(result.gain) + " points"
        facts["questions"] = str(result.total.questions)
    if numbers["wall_seconds"] is not None:
        facts["training time"] = duration(numbers["wall_seconds"])
    for key in ("optimizer_steps", "seed"):
        if numbers[key] is not None:
            facts[key.replace("_", " ")] = str(numbers[key])
    return list(facts.items())


def chosen(data: RunData) -> str:
    picked = data.selection
    if not data.rows:
        return "No checkpoint is evaluated yet."
    if not picked:
        return "The last checkpoint is the result. No checkpoint was picked by these scores."
    step, name = picked.step, picked.benchmark
    if picked.kind == "test":
        return (
            f"PICKED ON A TEST SET: step {step} has the best score of all checkpoints on {name}, "
            f"so its score there is too high. ({picked.reason})"
        )
    result = f"The result is step {step}, picked by its {percent(picked.scores[str(step)])} %"
    if name in data.result.benchmarks:
        return f"{result} on {name}, the only benchmark, so its score there is too high."
    return (
        f"{result} on {name}. These questions were held out of the training data; they are no "
        "benchmark and not part of any average here."
    )


# ------------------------------------------------------------------------- runs side by side


def runs_table(runs: Sequence[RunData]) -> Table:
    """Return a row per run. One column compares its result with that of the first run, paired."""
    first = next((run for run in runs if run.rows), None)
    head = ["run", "method", "start", "result", "at step", "gain over start", "p"]
    table = [[*head, f"against {first.name if first else ''}", "p", "seed", "training time"]]
    for run in runs:
        cells = ["-"] * 7
        if run.rows:
            last, start = run.result, run.rows[0] if run.rows[0].step == 0 else None
            gain, alike = None, first is not None and first.result.asked == last.asked
            if first and run is not first and alike:
                a, b = first.result.benchmarks, last.benchmarks
                gain = paired(question_means(a, a), question_means(b, a))
            against = f"{points(gain)} {interval(gain)}" if gain else "-"
            cells = [share(row.total) if row and alike else "-" for row in (start, last)]
            cells += [str(last.step), change(last.gain), p_value(last.gain), against, p_value(gain)]
        seed, seconds = select(run.config, "recipe.seed"), run.last("train/wall_seconds")
        cells += ["-" if seed is None else str(seed), "-" if seconds is None else duration(seconds)]
        table.append([run.name, method(run.config) or "-", *cells])
    return table


def configurations_table(runs: Sequence[RunData]) -> Table:
    """Return the keys of config.yaml that differ between runs, without secrets."""
    columns = [{k: str(v) for k, v in flat(without_secrets(run.config)) if k} for run in runs]
    keys = dict.fromkeys(key for values in columns for key in values if key not in NAMES)
    if not all(run.environment for run in runs):  # a log has the keys of its command alone
        keys = {key: None for key in keys if all(key in values for values in columns)}
    rows = [[key, *(values.get(key, "-") for values in columns)] for key in keys]
    return [["key", *(run.name for run in runs)], *(r for r in rows if len(set(r[1:])) > 1)]


def checkpoints_of_all(runs: Sequence[RunData]) -> list[tuple[str, Table]]:
    """Return (heading, checkpoint table), one for all runs that were asked alike."""
    by_head: dict[tuple[str, ...], tuple[list[str], Table]] = {}
    for run in filter(lambda run: run.rows, runs):
        head, *rows = checkpoint_table(run)
        names, table = by_head.setdefault((*head, apart(runs, run)), ([], []))
        names.append(run.name)
        table += [[run.name, *row] if len(runs) > 1 else row for row in rows]
    first = ["run"] if len(runs) > 1 else []
    return [
        ("" if len(by_head) == 1 else ", ".join(names), [[*first, *head[:-1]], *table])
        for head, (names, table) in by_head.items()
    ]
