"""A page on which a person accepts or rejects candidates.

    python -m prompt_aug.rephrase.review QUESTIONS.parquet OUT.parquet PAGE.html
    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet ... --decisions decisions.jsonl

The page is one file that loads nothing. The texts come from a model: they are put into the page as
JSON, and shown as text or by KaTeX, never as HTML.
"""

import difflib
import importlib.resources
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import iter_lines, write_text
from prompt_aug.questions import read_parquet
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.results import beside

_PIECE = re.compile(r"\s+|[^\W\d_]+|\d+(?:\.\d+)?|\\[a-zA-Z]+|.", re.DOTALL)


def marked(one: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return both texts in pieces, each with True if the other text lacks it at this place."""
    left, right = _PIECE.findall(one), _PIECE.findall(other)
    spans: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        for side, text in zip(spans, ("".join(left[i1:i2]), "".join(right[j1:j2])), strict=True):
            if text:
                side.append((text, tag != "equal"))
    return spans


def entries(questions: Path, out: Path) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of each candidate."""
    texts = {question.uid: question for question in read_parquet(questions)}
    file = beside(out, ".candidates.jsonl")
    if not file.is_file():
        raise RephraseError(f"{file}: no such file; `python -m prompt_aug.rephrase` writes it")
    for line in iter_lines(file):
        if (question := texts.get(line["uid"])) is None:
            raise RephraseError(f"{file}: its question {line['uid']} is not in {questions}")
        own, other = marked(question.text, line["text"])
        models = {name: line["source"].get(name) for name in ("solver", "judge")}
        yield line | models | {"question": own, "candidate": other, "answers": question.answers}


def page(listed: Sequence[dict[str, Any]], title: str) -> str:
    """Return the HTML. `<` is escaped in the data, so that no text can end the script element."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    data = re.sub("[<>&]", lambda sign: f"\\u{ord(sign.group()):04x}", json.dumps(listed))
    katex = (importlib.resources.files("sphinxcontrib") / "katex.min.js").read_text("utf-8")
    return environment.get_template("review.html.j2").render(title=title, data=data, katex=katex)


def main(arguments: Sequence[str] | None = None) -> int:
    name, summary = "prompt_aug.rephrase.review", (__doc__ or "").split("\n\n")[0]
    example = f"python -m {name} train.parquet out.parquet review.html"
    parser = make_parser(f"python -m {name}", summary, example=example)
    parser.add_argument("questions", type=Path, help="the QUESTIONS of the pipeline")
    parser.add_argument("out", type=Path, help="the OUT.parquet of the pipeline")
    parser.add_argument("page", type=Path, help="the HTML file to write")
    options = parser.parse_args(arguments)

    def write_page() -> None:
        listed = list(entries(options.questions, options.out))
        write_text(options.page, page(listed, options.out.name))
        doubtful = sum(entry["verdict"] == "doubtful" for entry in listed)
        print(f"wrote {options.page}: {len(listed)} candidates, {doubtful} of them doubtful")

    return run(name, write_page, interrupted="no page was written")


if __name__ == "__main__":
    sys.exit(main())
