"""Grader of training, validation, evaluation and data checks. GRADING.md has the policy.

`VERSION` is a digest of the grader's sources and of the versions of its libraries. Verdicts are
comparable only between equal versions.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path

from prompt_aug.grading.extract import Extraction
from prompt_aug.grading.grader import STATUSES, Grade, grade, grade_answer, grade_many, normal_form
from prompt_aug.grading.pool import GraderError

__all__ = ["STATUSES", "VERSION", "Extraction", "Grade", "GraderError"]
__all__ += ["grade", "grade_answer", "grade_many", "normal_form"]

_COMPARED_BY = ("math-verify", "latex2sympy2-extended", "sympy", "mpmath")


def _version() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{path.name}\0{path.read_text(encoding='utf-8')}\0".encode())
    digest.update(" ".join(f"{name} {version(name)}" for name in _COMPARED_BY).encode())
    return digest.hexdigest()[:16]


VERSION = _version()
