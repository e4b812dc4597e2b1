"""Writes the report of a run: RUN/report/{index.html, report.md, *.png, summary.json}.

index.html stands alone: pictures inside, no script, no network. summary.json is written last.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.command import add_common, path, run_command, text
from eval.report import charts
from eval.report.data import RunData, collect, summary
from eval.report.page import Picture, checkpoint_table, render_html, render_markdown, text_table
from eval.report.samples import evaluated_samples, rollout_samples
from prompt_aug.files import replacing, write_json, write_text
from recipe.run.folder import EvaluationFolder, RunFolder

Draw = Callable[[RunData], bytes | None]
REWARD_PARTS = {
    "critic/score/mean": "reward",
    "train/accuracy": "accuracy",
    "train/format": "format",
}
LENGTHS = {
    "response_length/mean": ("Response length", "tokens"),
    # Not verl's response_length/clip_ratio: that is the share as long as the longest of the step.
    "train/truncated": ("Cut at the limit", "share of responses"),
}
UPDATES = {
    "actor/grad_norm": ("Gradient norm", "L2 norm"),
    "actor/ppo_kl": ("KL to the sampling policy", "nats per token"),
    "actor/pg_clipfrac": ("Clipped tokens", "share"),
}


def _lines(title: str, unit: str, keys: dict[str, str]) -> Draw:
    return lambda data: charts.lines(data, title, unit, keys)


# File name, title, caption, and how it is drawn; in the order of the page.
CHARTS: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "accuracy",
        "Accuracy by checkpoint",
        "bars are one standard error, clustered by question",
        charts.accuracy,
    ),
    (
        "reward",
        "Reward",
        "mean over the rollouts of a step; accuracy and format are its parts",
        _lines("Reward, accuracy and format in training", "mean per rollout", REWARD_PARTS),
    ),
    (
        "templates",
        "Templates",
        "accuracy and format reward of the training rollouts drawn with each template",
        charts.templates,
    ),
    (
        "no_signal",
        "Groups without signal",
        "all rollouts of the question got the same reward, so it teaches nothing",
        _lines(
            "Share of groups without signal",
            "share of groups",
            {"train/no_signal_groups": "no signal"},
        ),
    ),
    (
        "entropy",
        "Entropy",
        "mean over response tokens, in nats",
        # Not verl's actor/entropy: that is aggregated as the loss is, so its unit is the method's.
        _lines("Policy entropy", "nats per token", {"train/entropy": "entropy"}),
    ),
    (
        "response_length",
        "Response length",
        "mean over the rollouts of a step, and the share of them cut at the limit",
        lambda data: charts.panels(data, LENGTHS),
    ),
    (
        "optimisation",
        "Optimisation",
        "means over the mini-batches of a step",
        lambda data: charts.panels(data, UPDATES),
    ),
    (
        "grades",
        "What the grader said",
        "shares of all training rollouts",
        charts.grades,
    ),
    ("step_time", "Step time", "without validation and saving", charts.step_time),
)


def draw(data: RunData) -> tuple[list[Picture], list[str]]:
    """Every picture that the run has data for, and a note for each that it has not."""
    pictures, absent = [], []
    for name, title, caption, chart in CHARTS:
        png = chart(data)
        if png is None:
            absent.append(f"no picture of {title!r}: the run has no data for it")
        else:
            pictures.append(Picture(file=f"{name}.png", title=title, caption=caption, png=png))
    return pictures, absent


def build(run: Path, settings: str | None = None) -> RunData:
    """Write the whole report of `run`; returns what it was made from."""
    data = collect(run, settings)
    numbers = summary(data)
    pictures, absent = draw(data)
    rollouts = rollout_samples(run)
    if not rollouts:
        absent.append("no sample rollouts: rollouts/step_N.jsonl is missing")
    data.notes.extend(absent)
    evaluated = []
    if data.rows:
        last = data.rows[-1]
        evaluated = evaluated_samples(EvaluationFolder(data.evaluated[last.step]), last)
    folder = RunFolder(run).report
    for picture in pictures:
        with replacing(folder / picture.file) as file:
            file.write(picture.png)
    write_text(folder / "report.md", render_markdown(data, numbers, pictures))
    write_text(folder / "index.html", render_html(data, numbers, pictures, rollouts, evaluated))
    write_json(folder / "summary.json", numbers)
    return data


def _report(options: argparse.Namespace) -> None:
    data = build(options.run, options.settings)
    print(text_table(checkpoint_table(data)))
    for note in data.notes:
        print(f"note: {note}")
    print(f"report: {RunFolder(options.run).report / 'index.html'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.report",
        description=__doc__,
        epilog="example: python -m eval.report runs/toy",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=path, help="run folder")
    parser.add_argument("--settings", type=text, help="a folder in RUN/eval (default: the fullest)")
    add_common(parser)
    return run_command(parser, arguments, _report, "a report appears file by file")


if __name__ == "__main__":
    sys.exit(main())
