"""What a filter says about a candidate."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["accept", "doubtful", "reject"]


@dataclass(frozen=True, slots=True)
class Reason:
    """The name of a filter, its verdict on the candidate, and what it saw."""

    filter: str
    verdict: Verdict
    detail: str


def reject(name: str, detail: str) -> Reason:
    return Reason(name, "reject", detail)


def doubt(name: str, detail: str) -> Reason:
    return Reason(name, "doubtful", detail)


def verdict_of(reasons: tuple[Reason, ...]) -> Verdict:
    """Return "reject" if any reason is one, else "doubtful" if there is any, else "accept"."""
    if any(reason.verdict == "reject" for reason in reasons):
        return "reject"
    return "doubtful" if reasons else "accept"
