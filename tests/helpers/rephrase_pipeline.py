"""Questions, and an endpoint's candidates to them, for the tests of the rephrasing pipeline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_endpoint import Reply, chat, serving

from prompt_aug.base.files import read_lines
from prompt_aug.questions import Question, make_question, read_parquet, write_parquet
from prompt_aug.rephrase.__main__ import main

NAMES = "Ada Ben Cleo Dora Emil Fred Gina Hugo Ines Jack".split()
GOOD = [
    "{b} apples are bought by {name}, who already has {a}. Afterwards, how many apples are there?",
    "At first there are {a} apples in the basket of {name}; then {b} are added. Find the total.",
    "How many apples will {name} own after buying {b}, with {a} at the start?",
]
BAD = [
    "{name} has {c} apples and then buys {b} more. How many apples does {name} have now?",
    "The answer is {s}.",
]


def text(i: int) -> str:
    bought = f"has {10 + i} apples and buys {30 + 2 * i} more"
    return f"{NAMES[i % 10]} {bought}. How many are there now?"


def write_questions(path: Path, count: int) -> Path:
    pairs = [(text(i), str(40 + 3 * i)) for i in range(count)]
    write_parquet([make_question(text=q, answers=[a], source="own") for q, a in pairs], path)
    return path


def rephrase(_: int, body: dict[str, Any]) -> Reply:
    """The same five candidates for a question, whatever the order of the requests."""
    question = body["messages"][0]["content"].rpartition("Question: ")[2].split("\n")[0]
    i = next(i for i in range(200) if text(i) == question)
    words = {"name": NAMES[i % 10], "a": 10 + i, "b": 30 + 2 * i, "c": 11 + i, "s": 40 + 3 * i}
    texts = [form.format(**words) for form in (GOOD + BAD)]
    return Reply(chat(texts[: body["n"]]))


def command(questions: Path, out: Path, url: str, *more: str) -> list[str]:
    fixed = ["--base-url", url, "--model", "scripted", "--most", "5"]
    return [str(questions), str(out), *fixed, *more]


class Pipeline:
    """A folder with questions: run the command on them, and read what it wrote."""

    def __init__(self, folder: Path, count: int) -> None:
        self.out = folder / "out.parquet"
        self.questions = write_questions(folder / "q.parquet", count)
        self.sent = 0  # requests of all runs

    def run(self, script: Callable[[int, dict[str, Any]], Reply], *more: str) -> int:
        with serving(script) as endpoint:
            status = main(command(self.questions, self.out, endpoint.url, *more))
            self.sent += len(endpoint.bodies)
        return status

    def written(self) -> list[Question]:
        return read_parquet(self.out)

    def candidates(self) -> list[dict[str, Any]]:
        return read_lines(Path(f"{self.out}.candidates.jsonl"))
