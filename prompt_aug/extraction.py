"""Named settings that select the answer in a response.

strict        the last box; a response without one has no answer
default       a box, a tag or the value stated in prose (prompt_aug/grading/GRADING.md)
last_number   default, else the last number of the response
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from prompt_aug.grading import Extraction, Grade
from prompt_aug.grading import grade as regrade
from prompt_aug.grading.extract import extract
from prompt_aug.templates import Template

ExtractionName = Literal["strict", "default", "last_number"]
EXTRACTIONS: tuple[str, ...] = get_args(ExtractionName)
BESIDE = ("strict", "default")  # every score reports both accuracies


def extraction(name: str, template: Template | None = None) -> Extraction:
    """Return the `Extraction` of a name in EXTRACTIONS, with the template's answer tag."""
    tag = template.answer_tag if template else None
    strict, last_number = name == "strict", name == "last_number"
    return Extraction(strict=strict, last_number=last_number, answer_tag=tag or "answer")


def verdicts(
    given: str,
    grade: Grade,
    sample: Mapping[str, Any],
    question: Mapping[str, Any],
    template: Template,
) -> dict[str, bool]:
    """Return the verdict of each setting of BESIDE for a sample with `grade` under `given`.

    Grades again only if two settings find different answers.
    """
    response, right = sample["response"], dict.fromkeys(BESIDE, grade.correct)
    read = extract(response, extraction(given, template))  # grade.extracted may be a letter
    for name in BESIDE:
        settings = extraction(name, template)
        if name != given and extract(response, settings) != read:
            right[name] = regrade(
                response,
                question["gold"],
                question=question["question"],
                options=question.get("options", ()),
                extraction=settings,
            ).correct
    return right
