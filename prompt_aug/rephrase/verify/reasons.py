"""Reasons: verdicts of single filters on a candidate."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["accept", "doubtful", "reject"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Name of a filter, its verdict on the candidate, and what it found."""

    filter: str
    verdict: Verdict
    detail: str


def reject(name: str, detail: str) -> Reason:
    return Reason(name, "reject", detail)


def doubt(name: str, detail: str) -> Reason:
    return Reason(name, "doubtful", detail)


def verdict_of(reasons: tuple[Reason, ...]) -> Verdict:
    """Return the worst verdict of the reasons; "accept" without any."""
    found = {reason.verdict for reason in reasons}
    return "reject" if "reject" in found else "doubtful" if found else "accept"
