"""Reader of verl's console output: the log of any verl run becomes a run folder for the report.

verl's console logger prints ``step:N - key:value - key:value`` for training and validation. The
lines of a step are merged. A step below the last one is a restart: it discards the later steps, and
its own earlier line unless it only validates. Metrics keep verl's names, except those of `RENAMED`;
what a log lacks stays absent.
"""

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import write_json, write_lines
from recipe.run.folder import RunFolder, metrics_line

STEP = re.compile(r"\bstep:(\d+)( - .*)")
ENTRY = re.compile(r" - (\S+):(?:np\.\w+\()?(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|nan|inf))(?![\d.])")
# Names of older versions, and the validation accuracy. It is the mean reward in a log, which is the
# accuracy if the reward is 0 or 1.
RENAMED = (
    (re.compile(r"timing/(\w+)"), r"timing_s/\1"),
    (re.compile(r"val/test_score/(.+)"), r"val/\1/accuracy"),
    (re.compile(r"val-core/(.+)/(?:acc|reward)/mean@\d+"), r"val/\1/accuracy"),
)
COMMAND = re.compile(r"\bverl\.trainer\.main_ppo\b((?:.*\\\n)*.*)")
OVERRIDE = re.compile(r"\+{0,2}(\w[\w.]*\w)=(.*)", re.DOTALL)


def read_log(text: str) -> list[dict[str, Any]]:
    """Return a record per step, in order."""
    steps: dict[int, dict[str, Any]] = {}
    for number, entries in STEP.findall(text):
        step = int(number)
        values = {_renamed(key): float(value) for key, value in ENTRY.findall(entries)}
        if steps and step < max(steps):
            resumed = all(key.startswith(("val/", "val-")) for key in values)
            steps = {n: line for n, line in steps.items() if n < step + resumed}
        steps[step] = steps.get(step, {}) | values
    return [metrics_line(step, values) for step, values in steps.items() if values]


def _renamed(key: str) -> str:
    for pattern, name in RENAMED:
        if match := pattern.fullmatch(key):
            return match.expand(name)
    return key


def overrides(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of the first command in a log that starts verl's trainer."""
    command = COMMAND.search(text)
    try:
        words = shlex.split(command[1].replace("\\\n", " ")) if command else []
        for match in filter(None, map(OVERRIDE.fullmatch, words)):
            value = yaml.safe_load(match[2])
            kept = isinstance(value, bool | int | str | list | dict | None)
            kept |= isinstance(value, float) and math.isfinite(value)
            yield match[1], value if kept else match[2]  # a date, .inf
    except (ValueError, yaml.YAMLError):
        return  # a truncated command


def as_run(log: Path, folder: Path) -> Path:
    """Write metrics.jsonl, and config.yaml of the command's keys, into `folder`; return it."""
    text = log.read_bytes().decode(errors="replace")
    if not (lines := read_log(text)):
        raise UserError(
            f"--log {log}: no line `step:N - key:value` of verl's console logger. Name the output "
            "of a training, as trainer.logger=[console] prints it."
        )
    config: dict[str, Any] = {}
    for key, value in overrides(text):
        *above, last = key.split(".")
        section = config
        for name in above:
            inner = section.setdefault(name, {})
            section = inner if isinstance(inner, dict) else {}
        section[last] = value
    run = RunFolder(folder)
    write_lines(run.metrics, lines)
    write_json(run.config, config)  # JSON is yaml
    return folder
