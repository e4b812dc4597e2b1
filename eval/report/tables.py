"""The tables and facts of one run, as texts; nothing is escaped here."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from eval.intervals import Difference
from eval.metrics import Estimate
from eval.report.data import RunData
from eval.report.figures import template_names
from prompt_aug.base.estimates import wilson
from prompt_aug.questions import VALIDATION
from recipe.run.folder import select
from recipe.run.progress import duration

# The keys of config.yaml worth showing at a glance; the whole file is folded below them.
CONFIG_SECTIONS = ("recipe", "eval", "algorithm", "trainer", "data")
SECRET = re.compile(r"token|secret|passw|api_?key|credential", re.IGNORECASE)
# What looks like a token, whatever its key: the usual prefixes, a key in a URL, a long random word.
# 40 or 64 hex digits are a commit or a digest, unless a key in the same text names a secret.
TOKEN = re.compile(
    r"\b(hf|sk|pk|ghp|gho|glpat|xox[abp]|wandb)[_-][\w-]{8,}|AKIA[0-9A-Z]{12,}|://[^/\s:]+:[^/\s]+@|"
    rf"(?i:{SECRET.pattern})\w*\W{{1,3}}[0-9a-f]{{40}}|"
    r"(?<![\w/.-])(?!(?:[0-9a-f]{40}|[0-9a-f]{64})\b)(?=\w*\d)(?=\w*[A-Za-z])\w{32,}(?![\w/.-])"
)
# Keys of config.yaml that make a method, with their names in it.
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
# Keys that name a run or its place, and so differ between any two.
NAMES = (
    *("recipe.name", "recipe.run_dir", "recipe.method"),
    *("trainer.default_local_dir", "trainer.experiment_name"),
)
Table = list[list[str]]


def share(value: Estimate | Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """An accuracy in per cent with its standard error: ``41.2 ±2.1``.

    At 0 and 100 %, where the standard error says nothing, with its interval: ``0.0 [0.0, 11.4]``.
    """
    if value is None:
        return "-"
    if isinstance(value, Estimate):
        mean, error, size = value.accuracy, value.standard_error, value.questions
    else:
        mean, error, size = value["accuracy"], value["standard_error"], value["questions"]
    shown = f"{100 * mean:{'+' if signed else ''}.1f}"
    if not signed and mean in (0.0, 1.0):
        low, high = wilson(mean, size)
        return f"{shown} [{100 * low:.1f}, {100 * high:.1f}]"
    return shown if error is None else f"{shown} ±{100 * error:.1f}"


def p_value(difference: Difference | None) -> str:
    """The p-value of a paired difference with two digits; below 0.001 only that."""
    if difference is None:
        return "-"
    return "<0.001" if difference.p_value < 0.001 else f"{difference.p_value:.2g}"


def checkpoint_table(data: RunData) -> Table:
    """A row per checkpoint, first row the headings. Per cent, ± one standard error."""
    if not data.rows:
        return [["checkpoint"], ["none evaluated"]]
    names = list(data.rows[-1].benchmarks)
    several = len(names) > 1
    head = ["checkpoint", *(f"{name} ({_asked(data, name)})" for name in names)]
    head += ["all questions"] if several else []
    head += ["gain over start", "p", "no answer", "cut at limit", "tokens"]
    table = [head]
    for row in data.rows:
        entries = list(row.benchmarks.values())
        cells = ["start (step 0)" if row.step == 0 else f"step {row.step}"]
        cells[0] += " *" if data.selection.get("step") == row.step else ""
        cells += [share(entry) for entry in entries]
        cells += [share(row.total)] if several else []
        cells.append(share(row.gain, signed=True))
        cells.append(p_value(row.paired))
        total = sum(entry["samples"] for entry in entries)

        def rate(key: str, entries: list[Any] = entries, total: int = total) -> float:
            return sum(_value(entry, key) * entry["samples"] for entry in entries) / total

        cells.append(f"{100 * rate('no_answer'):.1f}")
        cells.append(f"{100 * rate('truncation_rate'):.1f}")
        cells.append(f"{rate('mean_tokens'):.0f}")
        table.append(cells)
    return table


def pass_at_k_table(data: RunData) -> Table:
    """pass@k by checkpoint and benchmark, where more than one sample was drawn."""
    entries = [
        (row.step, name, entry["pass_at_k"])
        for row in data.rows
        for name, entry in row.benchmarks.items()
        if len(entry["pass_at_k"]) > 1
    ]
    if not entries:
        return []
    ks = sorted({int(k) for _, _, values in entries for k in values})
    table = [["checkpoint", "benchmark", *(f"pass@{k}" for k in ks)]]
    for step, name, values in entries:
        cells = [f"{100 * values[str(k)]:.1f}" if str(k) in values else "-" for k in ks]
        table.append([f"step {step}", name, *cells])
    return table


def extraction_table(data: RunData) -> Table:
    """Accuracy with a box required and with prose read, where it differs: base models."""
    table = [["checkpoint", "benchmark", "strict: a box", "default: prose too", "scored with"]]
    for row in data.rows:
        for name, entry in row.benchmarks.items():
            under = entry.get("accuracy_under", {})  # scores of older graders lack it
            if len(set(under.values())) > 1:
                cells = [f"{100 * under[key]:.1f}" for key in ("strict", "default")]
                used = str(entry["settings"]["extraction"])
                table.append([_step_name(row.step), name, *cells, used])
    return table if len(table) > 1 else []


def markdown_table(table: Table) -> str:
    """A table in Markdown; the bar of a cell is escaped."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    rows.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(rows)


def settings_table(data: RunData) -> Table:
    """The evaluation's settings, name and value."""
    return [[name, str(value)] for name, value in data.eval_settings.items()]


def method(config: Mapping[str, Any]) -> str | None:
    """The method of a run: the name that was chosen, and what the configuration makes of it."""
    templates = select(config, "recipe.augment.templates")
    augmented = select(config, "recipe.augment.mode") in ("per_question", "per_rollout")
    if augmented and (templates is None or len(templates) > 1):
        kinds = "all" if templates is None else len(templates)
        parts = [f"prompt augmentation with {kinds} templates"]
    else:
        parts = []
    for key, label in PARTS.items():
        value = select(config, key)
        if value not in (None, False, 0, "none", "vanilla"):
            parts.append(label if value is True else f"{label} {value}")
    name, made = select(config, "recipe.method"), ", ".join(parts)
    return f"{name} ({made})" if name and made else name or made or None


def header_table(data: RunData) -> Table:
    """What was trained, how, on what, from which code, and when; a row only for what is known."""
    files = select(data.config, "data.train_files") or []
    commit = data.environment.get("commit")
    changed = " with uncommitted changes" if data.environment.get("uncommitted_changes") else ""
    rows = [
        ("model", data.model),
        ("method", method(data.config)),
        ("data", ", ".join(map(str, [files] if isinstance(files, str) else files)) or None),
        ("command", data.environment.get("command")),
        ("commit", f"{commit}{changed}" if commit else None),
        ("date", data.date),
    ]
    shown = {name: _without_secrets(str(value)) for name, value in rows if value is not None}
    return [[name, value] for name, value in shown.items()]


def template_table(data: RunData) -> Table:
    """Each template's share, accuracy and format reward in training: means of the last 10 steps."""
    names = template_names(data)
    if not names:
        return []
    table = [["template", "share", "accuracy", "format"]]
    for name in names:
        means = []
        for part in ("share", "accuracy", "format"):
            values = data.series(f"template/{name}/{part}")[1][-10:]
            means.append(f"{100 * sum(values) / len(values):.1f}" if values else "-")
        table.append([name, *means])
    return table


def level_table(data: RunData) -> Table:
    """Accuracy by level of difficulty, first and last checkpoint; nothing without levels."""
    if not data.levels:
        return []
    steps = sorted({step for step, _, _ in data.levels})
    steps = list(dict.fromkeys((steps[0], data.result.step if data.rows else steps[-1])))
    places = sorted({(name, level) for _, name, level in data.levels})
    table = [["benchmark", "level", *(_step_name(step) for step in steps)]]
    for name, level in places:
        cells = [share(data.levels.get((step, name, level))) for step in steps]
        table.append([name, str(level), *cells])
    return table


def environment_table(data: RunData) -> Table:
    """environment.json, flattened one level."""
    table = []
    for name, value in data.environment.items():
        value = _without_secrets(value, name)
        if isinstance(value, Mapping):
            table += [[f"{name} {key}", str(inner)] for key, inner in value.items()]
        else:
            table.append([name, str(value)])
    return table


def configuration(data: RunData) -> str:
    """The sections of config.yaml that make the run, with anything like a secret blanked."""
    sections = {name: data.config[name] for name in CONFIG_SECTIONS if name in data.config}
    return yaml.safe_dump(_without_secrets(sections), sort_keys=False, allow_unicode=True)


def flat_configuration(data: RunData) -> Iterator[tuple[str, str]]:
    """(dotted key, value) of config.yaml, without secrets."""

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, str]]:
        for key, value in node.items():
            if isinstance(value, Mapping) and value:
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", str(value)

    yield from walk(_without_secrets(data.config), "")


def headline(data: RunData, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The few numbers at the top: of the last checkpoint, or of the one that was picked."""
    first, last = (data.rows[0], data.result) if data.rows else (None, None)
    facts = []
    if first is not None and last is not None:
        facts.append((_step_name(first.step), share(first.total) + " %"))
        if data.selection.get("kind") == "test":
            facts.append(("picked on", f"TEST SET {data.selection['benchmark']}"))
        if last.step != first.step:
            facts.append((_step_name(last.step), share(last.total) + " %"))
        if last.gain is not None:
            facts.append(("gain, paired", share(last.gain, signed=True) + " points"))
        facts.append(("questions", str(last.total.questions)))
    if numbers["optimizer_steps"] is not None:
        facts.append(("optimizer steps", str(numbers["optimizer_steps"])))
    if numbers["wall_seconds"] is not None:
        facts.append(("training time", duration(numbers["wall_seconds"])))
    if numbers["seed"] is not None:
        facts.append(("seed", str(numbers["seed"])))
    return facts


def _asked(data: RunData, name: str) -> str:
    settings = data.rows[-1].benchmarks[name]["settings"]
    size = str(settings["questions"])
    if settings["questions"] != settings["of"]:
        size += f" of {settings['of']}"
    return size if settings["samples"] == 1 else f"{size} x {settings['samples']}"


def _value(entry: Mapping[str, Any], key: str) -> float:
    return entry["status_rates"].get(key, 0.0) if key == "no_answer" else entry[key]


def _step_name(step: int) -> str:
    return "start model" if step == 0 else f"after step {step}"


def _without_secrets(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner, key) for inner in value]
    # "max_tokens" is a number, an access token is a text.
    hidden = isinstance(value, str) and (SECRET.search(key) or TOKEN.search(value))
    return "(left out)" if hidden else value


def chosen(data: RunData) -> str:
    """Which checkpoint is the result, and how it was chosen."""
    if not data.selection:
        return "The last checkpoint is the result; none is picked by these scores."
    step, name = data.selection["step"], data.selection["benchmark"]
    if data.selection["kind"] != VALIDATION:
        return (
            f"PICKED ON A TEST SET: step {step} has the best score of all checkpoints on {name}, "
            f"so its score there is too high. ({data.selection['reason']})"
        )
    score = 100 * data.selection["scores"][str(step)]
    return (
        f"The result is step {step}, picked by its {score:.1f} % on {name}, questions held out of "
        "the training data; they are not a benchmark and are in no average here."
    )
