r"""The checks of `prompt_aug.prepare`, which refuse rows of a data set with a reason.

Pass rates come from a sweep of the start model over the training questions:

    python -m eval.sweep --model MODEL --out measured --temperature 1 \
        --benchmark train=data/train.parquet:8
    python -m prompt_aug.prepare data/train.parquet data/band.parquet --no-benchmarks \
        --pass-rates measured/SETTINGS/MODEL/train --keep 0.2 0.8

A band removes questions that never or rarely give GRPO a gradient. DAPO's dynamic sampling (arXiv
2503.14476) removes those at 0 and 1 during training.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import iter_lines
from prompt_aug.base.progress import track
from prompt_aug.grading import Extraction, grade_answer, grade_many
from prompt_aug.grading.echo import DRAWING
from prompt_aug.grading.extract import extract
from prompt_aug.grading.units import UNSURE
from prompt_aug.prepare.sources import (
    JOINED,
    Columns,
    Numbered,
    Refused,
    SourceError,
    answers_of,
    question_text,
    to_question,
)
from prompt_aug.questions import QuestionError, is_record, make_question, normalise

Band = tuple[float, float] | None
GRADES = "grades.jsonl"  # in the folder of a benchmark
GRADED_AT_ONCE = 512
LISTED = 100  # pairs of near duplicates; a template of n rows has n * n / 2
# An answer of this many words, beside those of amounts, is a sentence; 3 with a digit.
PROSE_WORDS = 4
_WORD, _COMMAND = re.compile(r"[A-Za-z]{2,}"), re.compile(r"\\[A-Za-z]+")
_VERBS = {*"is are was were has have had equals there he she it they".split()}
# Words that make a sentence of an answer with a digit: more verbs, conclusions, labels.
_AROUND_NUMBERS = {
    *"gets buys costs each all total altogether sum so thus hence therefore ans answer".split(),
    *"result about around approx approximately because since".split(),
}
# What a data set writes where it has no answer, such as NuminaMath-1.5 in a sixth of its rows: each
# would be right against itself.
_PLACEHOLDER = re.compile(
    r"(?:proof|not ?found|unknown|n/?a|none|null|(?:see )?(?:the )?solution)\.?|[-?.]+",
    re.IGNORECASE,
)
# The number is not the answer as it stands: another sign, a factorial, a denial.
_CHANGED = re.compile(
    r"\b(?:none|no|not|never|below|under|loss|lost|minus|negative|down|short|debt|factorial)\b"
    r"|\d!(?!$)",
    re.IGNORECASE,
)
_WITH_UNIT = re.compile(r"\d[\d.,/]*\s*[A-Za-z]*")
# What could be the answer of a sentence: formulas, amounts, and numbers in words.
_CANDIDATE = re.compile(
    r"\$(?=\S)([^$]{1,200})(?<=\S)\$|\\\((.{1,200}?)\\\)|-?\\(?:[dt]?frac\{[^{}]*\}|sqrt)\{[^{}]*\}"
    r"|-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+|\^\{?-?\w+\}?)?(?:\s?\\?%)?"
    r"|(?i:\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|both|half"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|\w*illion|dozen|quarter)\b)"
)
# Before a number: it is a bound, an operand or a condition.
_OPERAND = re.compile(
    r"(?:[-+*/^<>_(]|\b(?:than|minus|plus|times|over|base|mod|modulo|until|divi\w+ by|(?:square"
    r"|cube|root|(?:multipl|pow|fact|divis|logarithm|opposit|negativ|invers|recipro)\w*) of))\s*$"
    r"|\b(?:if|when|where)\b",
    re.IGNORECASE,
)

# ------------------------------------------------------------------------- likeness
# A question is its lower-case words, numbers and operators, without layout, drawings ([asy]) and
# punctuation. With G(q) the set of its n-grams (all its words as one, if it has fewer than n):
#
#     overlap(q, b) = |G(q) & G(b)| / min(|G(q)|, |G(b)|)        n = 8
#     likeness(q, r) = |G(q) & G(r)| / |G(q) | G(r)|             n = 3
#
# With the minimum, a longer or shorter version of a question still matches. With the union, only
# nearly equal questions match.

OVERLAP_N, OVERLAP_LIMIT = 8, 0.5
LIKENESS_N, LIKENESS_LIMIT = 3, 0.8

Gram = tuple[str, ...]
_LAYOUT = re.compile(r"\\(left|right|text|textbf|mathrm|mathbf|displaystyle|quad|qquad|,|;|!| )")
_FRACTION = re.compile(r"\\[dt]frac")
_PART = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[-+*/=<>^|%!]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A benchmark question, number `index` of `of`, and its overlap in (0, 1] with a question."""

    of: str
    index: int
    score: float


def words(text: str) -> list[str]:
    """Return the words, numbers and operators of a question, in order."""
    text = _FRACTION.sub(r"\\frac", DRAWING.sub(" ", text))
    return _PART.findall(_LAYOUT.sub(" ", text).lower().replace("\\", " "))


def grams(text: str, n: int) -> frozenset[Gram]:
    """Return the n-grams of `words`; fewer than n words are one gram; empty without words."""
    listed = words(text)
    if not listed:
        return frozenset()
    return frozenset(tuple(listed[i : i + n]) for i in range(max(1, len(listed) - n + 1)))


class OverlapIndex:
    """Index of the n-grams of benchmarks that finds the most similar benchmark question."""

    def __init__(self, benchmarks: Mapping[str, Sequence[str]]) -> None:
        self.sizes: list[tuple[str, int, int]] = []
        self.places: dict[Gram, list[int]] = defaultdict(list)
        for name, texts in benchmarks.items():
            for index, text in enumerate(texts):
                own = grams(text, OVERLAP_N)
                for gram in own:
                    self.places[gram].append(len(self.sizes))
                self.sizes.append((name, index, len(own)))

    def best(self, text: str) -> Match | None:
        """Return the benchmark question with the largest overlap; None without a shared n-gram."""
        own = grams(text, OVERLAP_N)
        shared = Counter(place for gram in own for place in self.places.get(gram, ()))
        scores = {p: count / min(len(own), self.sizes[p][2]) for p, count in shared.items()}
        if not scores:
            return None
        place = max(sorted(scores), key=scores.__getitem__)  # the first of equal ones
        name, index, _ = self.sizes[place]
        return Match(of=name, index=index, score=scores[place])


def near_duplicates(
    texts: Sequence[str], limit: float = LIKENESS_LIMIT, n: int = LIKENESS_N
) -> Iterator[tuple[int, int, float]]:
    """Yield all (i, j, likeness) with i < j and likeness >= `limit`, without comparing all pairs.

    Sets whose likeness is at least t share one of their first |G| - ceil(t |G|) + 1 grams in any
    common order. With the rarest grams first, few pairs have to be compared (prefix filter: Bayardo
    et al., "Scaling up all pairs similarity search", WWW 2007).
    """
    sets = [grams(text, n) for text in texts]
    frequency = Counter(gram for own in sets for gram in own)
    seen: dict[Gram, list[int]] = defaultdict(list)
    for j, own in enumerate(track(sets, "near duplicates", "questions")):
        rare = sorted(own, key=lambda gram: (frequency[gram], gram))
        prefix = rare[: len(own) - math.ceil(limit * len(own) - 1e-9) + 1]  # 1e-9: float noise
        for i in sorted({i for gram in prefix for i in seen[gram]}):
            shared = len(own & sets[i])
            likeness = shared / (len(own) + len(sets[i]) - shared)
            if likeness >= limit:
                yield i, j, likeness
        for gram in prefix:
            seen[gram].append(j)


def read_rows(rows: Any, columns: Columns, source: str, renamed: bool) -> tuple[Numbered, Refused]:
    """Return the questions, and the rows without question or answer.

    Unless `renamed`, a verl-style row keeps its data source.
    """
    questions: Numbered = []
    refused: Refused = {}
    for number, row in enumerate(track(rows, "read", "rows")):
        try:
            made = to_question(row, columns, source, "train")
            named = source if renamed else made.source
            questions.append((number, replace(made, split="train", source=named)))
        except QuestionError as error:
            refused[number] = str(error)
    return questions, refused


def join_rephrasings(rows: Any, columns: Columns) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return (a row per question, with its rephrasings under `JOINED`; their part of the report).

    Rows that share `columns.group` are one question: the row with the lowest `columns.order`, then
    its rephrasings in that order. Left out are padding rows without a text, texts that repeat an
    earlier one, and texts with another answer than the question's.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[str(columns.group)], []).append(row)
    dropped: Counter[str] = Counter()
    joined = []
    for group in groups.values():
        ordered = sorted(group, key=lambda row: int(row[str(columns.order)]))
        texts = [(row, text) for row in ordered if (text := question_text(row, columns).strip())]
        dropped["padding"] += len(ordered) - len(texts)
        if not texts:
            continue
        (first, question), kept = texts[0], []
        seen = {normalise(question)}
        for row, text in texts[1:]:
            if answers_of(row, columns) != answers_of(first, columns):
                dropped["another answer"] += 1
            elif normalise(text) in seen:
                dropped["repeated"] += 1
            else:
                seen.add(normalise(text))
                kept.append(text)
        joined.append({**first, JOINED: kept})
    counts = Counter(len(row[JOINED]) for row in joined)
    return joined, {
        "rows_joined": len(rows),
        "rephrasings_of_a_question": dict(sorted(counts.items())),
        "rows_left_out": dict(dropped),
    }


def repeats(questions: Numbered) -> tuple[dict[int, list[int]], Refused]:
    """Return the rows that repeat an earlier row, by its number, and those that contradict."""
    groups: dict[str, Numbered] = {}
    for number, question in questions:
        groups.setdefault(normalise(question.text), []).append((number, question))
    duplicates: dict[int, list[int]] = {}
    refused: Refused = {}
    for (first, question), *others in groups.values():
        golds, rows = list(question.answers), [number for number, _ in others]
        if not all(
            later.uid == question.uid
            or any(grade_answer(answer, golds).correct for answer in later.answers)
            for _, later in others
        ):
            rows = [first, *rows]
            detail = f"rows {rows} ask the same question with different answers"
            refused |= dict.fromkeys(rows, detail)
        elif others:
            duplicates[first] = rows
    return duplicates, refused


def overlapping(questions: Numbered, index: OverlapIndex) -> Refused:
    """Return the questions whose overlap with a benchmark question is at least `OVERLAP_LIMIT`."""
    return {
        number: f"{match.score:.2f} of question {match.index} of {match.of}"
        for number, question in track(questions, "benchmark overlap", "questions")
        if (match := index.best(question.text)) and match.score >= OVERLAP_LIMIT
    }


def is_sentence(gold: str) -> bool:
    """Return True for a sentence instead of a value: "See the proof", "There are 13 pens."."""
    plain = _COMMAND.sub(" ", gold)
    words = _WORD.findall(_WITH_UNIT.sub(" ", plain))
    ends = len(words) > 1 and re.search(r"[\w%$][.!]$", gold)
    counts = bool(re.search(r"\d", plain))
    spoken = {word.strip(".,:;!") for word in plain.lower().split()}
    known = spoken & (_VERBS | _AROUND_NUMBERS if counts else _VERBS)
    return bool(len(words) >= PROSE_WORDS - counts or ends or known or gold.startswith("="))


def bare_gold(gold: str) -> str | None:
    """Return a gold that its bare answer in a box earns; None if `gold` does not say which.

    Only sentences change: one with a single candidate for the answer becomes that candidate.
    """
    if is_record(gold) or _PLACEHOLDER.fullmatch(gold):
        return None
    if not is_sentence(gold):
        return gold
    stated, found = extract(gold, Extraction()), [*_CANDIDATE.finditer(gold)]
    if stated and not is_sentence(stated) and grade_answer(stated, gold).correct:
        return gold
    values = [(m[1] or m[2] or m[0].replace("$", "")).rstrip(",") for m in found]
    value = values[0] if len(values) == 1 else ""
    if not re.search(r"\d", value):
        return None
    if grade_answer(value, gold).correct:
        return gold
    unit = re.split("[^A-Za-z]", gold[found[-1].end() :].lstrip())[0]
    doubt = UNSURE.search(gold) or _OPERAND.search(gold[: found[-1].start()])
    doubt = doubt or _CHANGED.search(gold)
    return None if doubt or not grade_answer(value, f"{value} {unit}").correct else value


def reduce_sentences(questions: Numbered) -> tuple[Numbered, list[dict[str, Any]]]:
    """Return the questions with `bare_gold` answers, and the changed ones; None stays as it is."""
    made, changed = [], []
    for number, question in questions:
        golds = [bare_gold(gold) or gold for gold in question.answers]
        if golds != [*question.answers]:
            changed.append({"row": number, "gold": question.answers, "read_as": golds})
            same = make_question(text=question.text, answers=golds, source=question.source)
            question = replace(question, uid=same.uid, answers=same.answers)
        made.append((number, question))
    return made, changed


def ungradable(questions: Numbered, allow_text: bool) -> Refused:
    """Return the questions with an answer that is unclear or not graded right against itself."""
    golds = [(number, gold) for number, question in questions for gold in question.answers]
    prose = () if allow_text else (pair for pair in golds if bare_gold(pair[1]) is None)
    why = "has no single answer. Write the answer alone, or keep it with --allow-text."
    bad = {number: f"{gold[:80]!r} {why}" for number, gold in prose}
    for start in track(range(0, len(golds), GRADED_AT_ONCE), "grade the answers", "batches"):
        part = golds[start : start + GRADED_AT_ONCE]
        grades = grade_many([("\\boxed{" + gold + "}", gold) for _, gold in part])
        for (number, gold), grade in zip(part, grades, strict=True):
            if not grade.correct:
                bad.setdefault(number, f"{gold[:80]!r} graded {grade.status!s} against itself")
    return bad


def read_pass_rates(place: Path) -> dict[str, float]:
    """Return the share of right samples by uid, from grades.jsonl or the folder that holds it."""
    path = place / GRADES if place.is_dir() else place
    if not path.is_file():
        raise SourceError(
            f"--pass-rates {place}: there is no {GRADES}. Name the folder of a benchmark in the "
            "output of eval.sweep, OUT/SETTINGS/CHECKPOINT/BENCHMARK."
        )
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for line in iter_lines(path):
        # The first line is a head.
        if isinstance(line.get("uid"), str) and isinstance(line.get("correct"), bool):
            verdicts[line["uid"]].append(line["correct"])
    if not verdicts:
        raise SourceError(f"--pass-rates {path}: no verdicts. Name a {GRADES} of eval.sweep.")
    return {uid: sum(right) / len(right) for uid, right in verdicts.items()}


def outside(questions: Numbered, rates: Mapping[str, float], band: Band) -> Refused:
    """Return the questions outside the `band` or without a rate; none without a band."""
    if not any(question.uid in rates for _, question in questions):
        raise SourceError(
            "--pass-rates: no question of SOURCE was measured. The sweep must have read the same "
            "questions and answers, for example the file that prompt_aug.prepare wrote."
        )
    if band is None:
        return {}
    return {
        number: "not measured" if rate is None else f"{rate:.3f}, not in {band[0]:g} to {band[1]:g}"
        for number, question in questions
        if (rate := rates.get(question.uid)) is None or not band[0] <= rate <= band[1]
    }


def checked_band(given: Sequence[float] | None, measured: bool) -> Band:
    """Return the two numbers of --keep; both belong to the band. Raises UsageError."""
    if given is None:
        return None
    low, high = given
    if not measured or not 0 <= low <= high <= 1:
        why = "write two shares, the lower one first" if measured else "it needs --pass-rates"
        raise UsageError(f"--keep {low:g} {high:g}: {why}")
    return low, high


def prepare(
    rows: Any,
    *,
    columns: Columns,
    source: str,
    benchmarks: Mapping[str, Sequence[str]],
    allow_text: bool = False,
    renamed: bool = True,
    rates: Mapping[str, float] | None = None,
    band: Band = None,
) -> tuple[Numbered, dict[str, Any]]:
    """Return the questions kept, each with its row number, and the report for the manifest."""
    questions, empty = read_rows(rows, columns, source, renamed)
    questions, sentences = (questions, []) if allow_text else reduce_sentences(questions)
    duplicates, contradictions = repeats(questions)
    repeated = {row for rows in duplicates.values() for row in rows}
    refused = {"empty": empty, "contradiction": contradictions}
    questions = _without(questions, repeated | contradictions.keys())
    refused["benchmark_overlap"] = overlapping(questions, OverlapIndex(benchmarks))
    questions = _without(questions, refused["benchmark_overlap"])
    refused["ungradable"] = ungradable(questions, allow_text)
    questions = _without(questions, refused["ungradable"])
    pairs, alike, near = 0, set[int](), []
    for i, j, score in near_duplicates([question.text for _, question in questions]):
        rows_of = [questions[i][0], questions[j][0]]
        pairs += 1
        alike.update(rows_of)
        if pairs <= LISTED:
            near.append({"rows": rows_of, "likeness": round(score, 3)})
    if rates is not None:
        refused["pass_rate"] = outside(questions, rates, band)
        questions = [
            (row, replace(question, pass_rate=rates.get(question.uid)))
            for row, question in _without(questions, refused["pass_rate"])
        ]
    counts = {reason: len(rejected) for reason, rejected in refused.items()}
    entries = [
        {"row": row, "reason": reason, "detail": detail}
        for reason, rejected in refused.items()
        for row, detail in rejected.items()
    ]
    return questions, {
        "rows": len(rows),
        "kept": len(questions),
        "refused": {"empty": len(empty), "duplicate": len(repeated)} | counts,
        "refused_rows": sorted(entries, key=lambda entry: entry["row"]),
        "duplicates_of_row": duplicates,
        "sentences": sentences,
        "near_duplicate_pairs": pairs,
        "near_duplicates": near,
        "near_duplicate_rows": sorted(alike),
    }


def _without(questions: Numbered, rows: Container[int]) -> Numbered:
    return [(number, question) for number, question in questions if number not in rows]
