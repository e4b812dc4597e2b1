"""Pass rates of a sweep: the band, questions that were not measured, fields that are kept."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from prompt_aug.base.files import read_json, write_lines
from prompt_aug.prepare import __main__ as prepare
from prompt_aug.questions import Question, from_row, make_question, read_parquet, write_parquet

# Pass rates 0, 0.25, 0.5, 1; the last question was not measured.
RIGHT = [0, 1, 2, 4]


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    """Five questions of two sources in train.parquet, and grades of four as a sweep writes them."""
    made = [
        make_question(
            text=f"What is {i} + 1?",
            answers=(str(i + 1), f"{i + 1}.0"),
            source="even" if i % 2 == 0 else "odd",
            rephrasings=[f"Add 1 to {i}."],
            level=i,
        )
        for i in range(5)
    ]
    row = {"tests": [1]}
    own = {"data_source": "odd", "reward_model": {"ground_truth": "9"}, **row}
    own["prompt"] = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "8+1?"}]
    made[1] = dataclasses.replace(from_row(own), split="train")
    write_parquet(made, tmp_path / "train.parquet")
    lines: list[dict[str, Any]] = [{"grader": "x", "model": {}}]
    for question, right in zip(made, RIGHT, strict=False):
        lines += [{"uid": question.uid, "sample": i, "correct": i < right} for i in range(4)]
    write_lines(tmp_path / "toy" / "grades.jsonl", lines)
    return made


def run(folder: Path, *options: str) -> int:
    paths = [str(folder / name) for name in ("train.parquet", "band.parquet")]
    return prepare.main([*paths, "--no-benchmarks", *options])


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
    assert run(tmp_path, "--pass-rates", str(tmp_path / "toy"), *options) == 0
    kept = read_parquet(tmp_path / "band.parquet")
    assert [q.pass_rate for q in kept] == rates
    for question in kept:  # source, system prompt, rephrasings, level and columns are kept
        (same,) = [q for q in questions if q.uid == question.uid]
        assert dataclasses.replace(question, pass_rate=None) == same
    manifest = read_json(tmp_path / "band.parquet.manifest.json")
    refused = [r["row"] for r in manifest["refused_rows"] if r["reason"] == "pass_rate"]
    assert len(refused) == 5 - len(rates) == manifest["refused"]["pass_rate"]
    assert manifest["kept"] == len(rates)
    assert ("keep" in manifest) and (manifest["keep"] is None) == (not options)
