"""Likeness of questions by hand and against a slow exact search; pass rates and their band."""

import dataclasses
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.base.files import read_json, write_lines
from prompt_aug.grading import Extraction, grade_answer
from prompt_aug.grading.extract import extract
from prompt_aug.prepare import __main__ as prepare
from prompt_aug.prepare.filters import OverlapIndex, bare_gold, grams, near_duplicates, words
from prompt_aug.questions import Question, make_question, read_parquet, write_parquet


def test_words_by_hand() -> None:
    assert words("Find $\\dfrac{1}{2} + x^2$.") == ["find", "frac", "1", "2", "+", "x", "^", "2"]
    assert words("find \\frac12+x^{2}") == ["find", "frac", "12", "+", "x", "^", "2"]
    assert words("See [asy] draw(A--B); [/asy] it.") == ["see", "it"]
    assert words("\\left( \\text{if } 3.5 \\right)") == ["if", "3.5"]
    assert words("$$ {} ...") == []


def test_grams_by_hand() -> None:
    assert grams("a b c d", 3) == {("a", "b", "c"), ("b", "c", "d")}
    assert grams("a b", 3) == {("a", "b")}
    assert grams("...", 3) == frozenset()


BENCH = "Find the smallest positive integer that is divisible by seven and has digit sum nine"
TAIL = "where m and n are relatively prime positive integers. Find m + n."
COIN = "A fair coin is tossed ten times and the probability that heads come up an even number of "
CHORD = "Points P and Q lie on a circle of radius five so that the chord between them has length "
COINS = f"{COIN}times is m/n, {TAIL}"


@pytest.mark.parametrize(
    ("text", "place", "score"),
    [
        (BENCH.upper() + "!", 1, 1.0),
        ("Here is a riddle for you, my friend. " + BENCH, 1, 1.0),  # contained
        # 15 words, 8 8-grams; a change of the last word leaves 7, of the 8th none
        (BENCH.replace("nine", "eight"), 1, 7 / 8),
        (BENCH.replace("divisible", "a multiple"), None, 0.0),
        ("Another question about triangles and their angles in a plane", None, 0.0),
        ("compute $3+4$", 3, 1.0),
        ("Compute 3 + 5.", None, 0.0),  # short ones match as a whole
        (f"{CHORD}m/n, {TAIL}", 2, pytest.approx(0.25, abs=0.25)),  # boilerplate, below the limit
    ],
)
def test_overlap_by_hand(text: str, place: int | None, score: Any) -> None:
    benchmarks = ["x", BENCH, COINS, "Compute 3 + 4."]
    match = OverlapIndex({"other": ["nothing like it at all"], "bench": benchmarks}).best(text)
    if place is None:
        assert match is None
    else:
        assert match is not None
        assert (match.of, match.index, match.score) == ("bench", place, score)


@pytest.mark.parametrize("limit", [0.3, 0.5, 0.8, 1.0])
@settings(deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from("abc"), max_size=7).map(" ".join), max_size=9))
def test_near_duplicates_are_all_found(texts: list[str], limit: float) -> None:
    slow = set()
    for i, j in combinations(range(len(texts)), 2):
        a, b = grams(texts[i], 2), grams(texts[j], 2)
        if a and b and len(a & b) / len(a | b) >= limit:
            slow.add((i, j))
    assert {(i, j) for i, j, _ in near_duplicates(texts, limit, 2)} == slow


@pytest.mark.parametrize(
    ("gold", "bare"),
    [
        *((text, "13") for text in ("There are 13 pens.", "Jane bought 13 pens.", "So he is 13")),
        *((text, "13") for text in ("$13$ pens are left over", "Therefore, the total is 13.")),
        ("She paid $12.50 in total.", "12.50"),
        ("Altogether they have 1,234 marbles.", "1,234"),
        *(
            (text, "13")
            for text in ("13 pens in all", "Each gets 13 pens", "= 13", "Ans 13", "about 13")
        ),
        ("The temperature is -5 degrees.", "-5"),
        ("The probability is $\\frac{3}{4}$.", "\\frac{3}{4}"),
        # several candidates, a bound, an operand, another number in words
        ("He has 5 and buys 8, so altogether there are 13 pens.", None),
        ("There are 3 cats or 4.", None),
        ("There are 13 pens and 13 pencils.", None),
        ("13, because 5+8=13", None),
        # another sign or value, a denial
        ("13 below zero is the temperature.", None),
        ("The result of 4! is it.", None),
        ("None of the 13 pens are red.", None),
        ("At least 13 of them are red.", None),
        ("The square root of 5 is irrational", None),
        ("There is 1 solution if k > 2", None),
        ("There are 5 million people.", None),
        ("There are seven pens.", None),
        ("All real numbers except 3 are in it", None),
        ("See the proof below.", None),
        *((text, None) for text in ("proof", "notfound", "Not found.", "N/A", "unknown", "?", "-")),
        *((text, None) for text in ('{"value": "3", "unit": "cm"}', "{'target': ['0']}", '["0"]')),
        # graded right already, and short texts
        *((text, text) for text in ("The answer is 13.", "So 5 + 8. #### 13")),
        *((text, text) for text in ("3 hours 20 minutes", "Paris", "Tuesday, May 5", "x = 5")),
        *((text, text) for text in ("all real numbers", "5 million", "Type 2", "no solution", "∅")),
        ("2 hours, 5 minutes and 3 seconds", "2 hours, 5 minutes and 3 seconds"),
        ("[0, 1]", "[0, 1]"),
        ("\\frac{4A}{3+3i}e^{it}", "\\frac{4A}{3+3i}e^{it}"),
    ],
)
def test_a_sentence_becomes_its_only_number(gold: str, bare: str | None) -> None:
    assert bare_gold(gold) == bare
    if bare is not None:
        box = bare if bare != gold else extract(gold, Extraction()) or gold
        assert grade_answer(box, bare).correct


# Pass rates 0, 0.25, 0.5, 1; the last question was not measured.
RIGHT = [0, 1, 2, 4]


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    """Five questions in train.parquet, and grades of four as a sweep writes them."""
    made = [
        make_question(
            text=f"What is {i} + 1?",
            answers=(str(i + 1), f"{i + 1}.0"),
            source="own",
            rephrasings=[f"Add 1 to {i}."],
            level=i,
        )
        for i in range(5)
    ]
    write_parquet(made, tmp_path / "train.parquet")
    lines: list[dict[str, Any]] = [{"grader": "x", "model": {}}]
    for question, right in zip(made, RIGHT, strict=False):
        lines += [{"uid": question.uid, "sample": i, "correct": i < right} for i in range(4)]
    write_lines(tmp_path / "toy" / "grades.jsonl", lines)
    return made


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ([], [0.0, 0.25, 0.5, 1.0, None]),
        (["--keep", "0.25", "0.5"], [0.25, 0.5]),  # both ends belong to the band
        (["--keep", "0.3", "1"], [0.5, 1.0]),
    ],
)
def test_the_band_and_what_is_recorded(
    questions: list[Question], tmp_path: Path, options: list[str], rates: list[float | None]
) -> None:
    paths = [str(tmp_path / name) for name in ("train.parquet", "band.parquet", "toy")]
    assert prepare.main([*paths[:2], "--no-benchmarks", "--pass-rates", paths[2], *options]) == 0
    kept = read_parquet(tmp_path / "band.parquet")
    assert [q.pass_rate for q in kept] == rates
    for question in kept:
        (same,) = [q for q in questions if q.uid == question.uid]
        assert dataclasses.replace(question, pass_rate=None) == same
    manifest = read_json(tmp_path / "band.parquet.manifest.json")
    refused = [r["row"] for r in manifest["refused_rows"] if r["reason"] == "pass_rate"]
    assert len(refused) == 5 - len(rates) == manifest["refused"]["pass_rate"]
    assert manifest["kept"] == len(rates)
    assert ("keep" in manifest) and (manifest["keep"] is None) == (not options)
