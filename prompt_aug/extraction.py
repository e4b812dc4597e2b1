"""Which of a response's texts counts as its answer: one of three settings, by name.

strict        the last box; a response without one has no answer
default       a box, else what the prose states (prompt_aug/grading/GRADING.md)
last_number   default, else the last number of the response
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from prompt_aug.grading import Extraction, Grade
from prompt_aug.grading import grade as regrade
from prompt_aug.grading.extract import extract
from prompt_aug.templates import Template

ExtractionName = Literal["strict", "default", "last_number"]
EXTRACTIONS: tuple[str, ...] = get_args(ExtractionName)
BESIDE = ("strict", "default")  # those whose accuracy stands in every score


def extraction(name: str) -> Extraction:
    """The grader's setting of that name; one of EXTRACTIONS."""
    return Extraction(strict=name == "strict", last_number=name == "last_number")


def verdicts(
    given: str,
    grade: Grade,
    sample: Mapping[str, Any],
    question: Mapping[str, Any],
    template: Template,
) -> dict[str, bool]:
    """Whether a sample that has `grade` under the setting `given` is right, under each of BESIDE.

    Grades again only where two settings find different answers.
    """
    response, found = sample["response"], {given: bool(grade.correct)}
    for name in BESIDE:
        settings = replace(extraction(name), answer_tag=template.answer_tag or "answer")
        answer = extract(response, settings)
        if answer == grade.extracted:
            found.setdefault(name, bool(grade.correct))
        elif name != given:
            again = regrade(
                response,
                question["gold"],
                template,
                question=question["question"],
                extraction=settings,
            )
            found[name] = bool(again.correct)
    return {name: found[name] for name in BESIDE}
