"""The one grader of training, validation, evaluation and data checks; its policy: GRADING.md."""

from prompt_aug.grading.extract import Extraction
from prompt_aug.grading.grader import (
    STATUSES,
    Grade,
    GraderError,
    Status,
    grade,
    grade_answer,
    grade_many,
    shutdown,
)

__all__ = [
    "STATUSES",
    "Extraction",
    "Grade",
    "GraderError",
    "Status",
    "grade",
    "grade_answer",
    "grade_many",
    "shutdown",
]
