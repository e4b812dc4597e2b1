"""Files that a user names: pass rates, candidates, decisions of a reviewer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.files import iter_lines
from prompt_aug.questions import Question, normalise, read_parquet
from prompt_aug.rephrase.candidates import Decisions
from prompt_aug.rephrase.choose import Rate
from prompt_aug.rephrase.generate.prompts import RephraseError


def _lines(option: str, path: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) of a file of JSON lines. Raises RephraseError if there is none."""
    if path is None:
        return
    number = 0
    for number, line in enumerate(iter_lines(path), start=1):
        yield f"{option}={path}, object {number}", line
    if not number:
        why = "no line in it" if path.is_file() else "no such file"
        raise RephraseError(f"{option}={path}: {why}")


def read_rates(path: Path | None) -> dict[tuple[str, str], Rate]:
    """Return (uid, text) -> (right, responses). Raises RephraseError."""
    rates = {}
    for place, line in _lines("--pass-rates", path):
        try:
            right, responses = int(line["right"]), int(line["responses"])
            rates[str(line["uid"]), str(line["text"])] = (right, responses)
        except (KeyError, TypeError, ValueError) as error:
            raise RephraseError(f"{place}: needs uid, text, right, responses") from error
        if not 0 <= right <= responses:
            raise RephraseError(f"{place}: {right} right of {responses}")
    return rates


def read_decisions(path: Path | None) -> Decisions:
    """Return a reviewer's verdicts; the last verdict on a text counts."""
    decisions: dict[tuple[str, str], tuple[Any, str]] = {}
    for place, line in _lines("--decisions", path):
        verdict, reviewer = line.get("verdict"), str(line.get("reviewer") or "").strip()
        if verdict not in ("accept", "reject") or not reviewer or not line.get("text"):
            raise RephraseError(f"{place}: needs uid, text, verdict (accept, reject), reviewer")
        decisions[str(line.get("uid")), normalise(str(line["text"]))] = (verdict, reviewer)
    return decisions


def read_candidates(path: Path, questions: Sequence[Question]) -> dict[str, list[dict[str, Any]]]:
    """Return the candidates of --from by uid, in the form of a model's responses."""
    lines = _lines("--from", path)
    if path.suffix == ".parquet" and path.is_file():
        rows = read_parquet(path)
        lines = iter([("", {"question": q.text, "rephrasings": q.rephrasings}) for q in rows])
    uids = {normalise(question.text): question.uid for question in questions}
    found: dict[str, list[dict[str, Any]]] = {question.uid: [] for question in questions}
    unknown = 0
    for place, line in lines:
        texts = line.get("rephrasings", [line.get("text")])
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            raise RephraseError(f"{place}: needs uid or question, and text or rephrasings")
        uid = str(line.get("uid") or uids.get(normalise(str(line.get("question")))))
        for text in texts if uid in found else ():
            found[uid].append({"text": text, "model": path.name, "sample": len(found[uid])})
        unknown += uid not in found
    print(f"--from: {sum(map(len, found.values()))} candidates; {unknown} lines of other questions")
    if not any(found.values()):
        raise RephraseError(f"--from={path}: no candidate of a question of QUESTIONS")
    return found
