"""A page on which a person accepts or rejects candidates, and the decisions saved from it.

    python -m prompt_aug.rephrase.review QUESTIONS.parquet OUT.parquet PAGE.html
    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet ... --decisions decisions.jsonl

The page is one file without any address in it. It shows one candidate at a time beside its
question, what differs marked, with the reasons of the filters. Keys: a accept, r reject, u undo,
j and k next and previous, d the doubtful alone or all, s save. The texts come from a model: they
are put into the page as JSON and shown as text, never as HTML.
"""

import difflib
import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import iter_lines, write_text
from prompt_aug.questions import normalise, read_parquet
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.results import beside

Span = tuple[str, bool]  # a piece of text, and whether it differs
Decisions = dict[tuple[str, str], tuple[str, str]]  # (uid, text) -> (verdict, reviewer)

_PIECE = re.compile(r"\s+|[^\W\d_]+|\d+(?:\.\d+)?|\\[a-zA-Z]+|.", re.DOTALL)


def marked(one: str, other: str) -> tuple[list[Span], list[Span]]:
    """Both texts in pieces, those that the other has not (in this order) marked."""
    left, right = _PIECE.findall(one), _PIECE.findall(other)
    spans: tuple[list[Span], list[Span]] = ([], [])
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        for side, text in zip(spans, ("".join(left[i1:i2]), "".join(right[j1:j2])), strict=True):
            if text:
                side.append((text, tag != "equal"))
    return spans


def entries(questions: Path, out: Path) -> Iterator[dict[str, Any]]:
    """What the page shows of each candidate. Raises QuestionError or RephraseError."""
    texts = {question.uid: question for question in read_parquet(questions)}
    file = beside(out, ".candidates.jsonl")
    if not file.is_file():
        raise RephraseError(f"{file}: no such file; `python -m prompt_aug.rephrase` writes it")
    for line in iter_lines(file):
        question = texts.get(line["uid"])
        if question is None:
            raise RephraseError(f"{file}: its question {line['uid']} is not in {questions}")
        own, other = marked(question.text, line["text"])
        yield {
            "uid": line["uid"],
            "text": line["text"],
            "question": own,
            "candidate": other,
            "answers": list(question.answers),
            "verdict": line["verdict"],
            "reasons": [[r["filter"], r["verdict"], r["detail"]] for r in line["reasons"]],
            "pass_rate": line["pass_rate"],
            "path": line.get("path", ""),
            "solver": line["source"].get("solver"),
            "judge": line["source"].get("judge"),
            "reviewer": line["reviewer"],
        }


def page(listed: Sequence[dict[str, Any]], title: str) -> str:
    """The HTML. Inside its script no `<` of the data stands, so none can end it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    data = (
        json.dumps(listed).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return environment.get_template("review.html.j2").render(title=title, data=data)


def read_decisions(path: Path | None) -> Decisions:
    """What a reviewer saved; of several words on one text the last. Raises RephraseError."""
    if path is None:
        return {}
    if not path.is_file():
        raise RephraseError(f"--decisions {path}: no such file")
    decisions: Decisions = {}
    for number, line in enumerate(iter_lines(path), start=1):
        verdict, reviewer = line.get("verdict"), str(line.get("reviewer") or "").strip()
        if verdict not in ("accept", "reject") or not reviewer or not line.get("text"):
            raise RephraseError(
                f"{path}, line {number}: wants uid, text, verdict (accept or reject), reviewer"
            )
        decisions[str(line.get("uid")), normalise(str(line["text"]))] = (verdict, reviewer)
    if not decisions:
        raise RephraseError(f"--decisions {path}: no decision in it; the review page saves them")
    return decisions


def write_page(options: Namespace) -> int:
    """The page of all candidates; 0."""
    listed = list(entries(options.questions, options.out))
    write_text(options.page, page(listed, options.out.name))
    doubtful = sum(entry["verdict"] == "doubtful" for entry in listed)
    print(f"wrote {options.page}: {len(listed)} candidates, {doubtful} of them doubtful")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 could not, 2 wrong usage."""
    parser = make_parser(
        "python -m prompt_aug.rephrase.review",
        (__doc__ or "").split("\n\n")[0],
        example="python -m prompt_aug.rephrase.review train.parquet out.parquet review.html",
    )
    parser.add_argument("questions", type=Path, help="the QUESTIONS of the pipeline")
    parser.add_argument("out", type=Path, help="the OUT.parquet of the pipeline")
    parser.add_argument("page", type=Path, help="the HTML file to write")
    options = parser.parse_args(arguments)
    return run(
        "prompt_aug.rephrase.review", lambda: write_page(options), interrupted="no page was written"
    )


if __name__ == "__main__":
    sys.exit(main())
