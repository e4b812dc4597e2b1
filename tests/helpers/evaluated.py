"""Evaluated checkpoints written by hand: verdicts are given, nothing is sampled or graded."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.samples import SampleFiles
from eval.score import combine, join, order_of, score
from prompt_aug.base.files import read_json, write_json, write_lines
from prompt_aug.grading import VERSION
from prompt_aug.prompts import Prompts
from recipe.run.folder import EvaluationFolder

SETTINGS = {"template": "qwen-math", "temperature": 0.0}
MODEL = {"files": "x"}


def write_checkpoint(
    settings_folder: Path,
    step: int,
    outcomes: Mapping[str, Sequence[Sequence[int]]],
    response: str = "a response",
    gold: str = "1",
    settings: Mapping[str, Any] = SETTINGS,
) -> EvaluationFolder:
    """A row of 0/1 verdicts per question of each benchmark; a wrong one is "no_answer", cut off."""
    folder = EvaluationFolder(settings_folder / f"step_{step}")
    write_json(folder.settings, dict(settings))
    Prompts.from_section({"validation_template": settings["template"]}).write(folder.prompts)
    for name, rows in outcomes.items():
        files = folder.benchmark(name)
        questions, samples, grades = [], [], []
        for q, row in enumerate(rows):
            key = {"uid": f"{name}-{q}", "prompt_sha256": "0"}
            shown = {"question": f"question {q}", "level": q % 2, "prompt": f"question {q}\n"}
            same = {"gold": [gold], "template": "qwen-math", "prompt_tokens": 3, "asked": True}
            questions.append({**key, **same, **shown})
            for number, correct in enumerate(row):
                end, status = ("stop", "correct") if correct else ("length", "no_answer")
                place = {**key, "sample": number}
                samples.append({**place, "response": response, "tokens": 10, "finish_reason": end})
                grade = {"correct": bool(correct), "extracted": gold, "status": status}
                grades.append({**place, **grade})
        write_lines(files.questions, questions)
        SampleFiles(files, MODEL).append(samples, {"vllm": "none"})
        write_lines(files.grades, [{"grader": VERSION, "model": MODEL}, *grades])
        count, size = len(rows[0]), len(rows)
        identity = {"sha256": name, "questions": size, "of": size, "samples": count}
        entry = {"settings": identity, "path": "p", "grader": VERSION, "model": MODEL}
        entry["order"] = order_of(questions)
        table = join(questions, SampleFiles(files, MODEL).load(), grades, count)
        write_json(files.scores, {**entry, **score(table)})
    combine(folder, step, "m", MODEL)
    return folder


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Any]:
    """Read a JSON file, and write it with the changes of the block."""
    value = read_json(path)
    yield value
    write_json(path, value)
