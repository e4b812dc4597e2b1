"""Section 5.2 with its control: hand values, and a model whose pass rates are known."""

import functools
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.questions import make_question, write_parquet
from prompt_aug.rephrase import diagnose
from prompt_aug.rephrase.diagnose import Sampled, all_equal, summarise

ONE = 2  # G of the hand values
QUESTIONS = 40
SEEN: dict[str, int] = {}  # how often a text was asked: its answers do not depend on other texts


ASKED = [0] * 6 + [1] * 2 + [2] * 2


def test_rewards_are_compared_within_each_set() -> None:
    rewards = [True, True, True, False, True, True, True, True, True, True]
    sampled = Sampled(ASKED, rewards)
    assert all_equal(sampled, ONE) == {"original": True, "rephrasings": True, "control": False}
    turned = sampled._replace(rewards=rewards[:8] + [False] * 2)
    assert all_equal(turned, ONE)["rephrasings"] is False, "mixed between the rephrasings"


def test_intervals_and_paired_differences() -> None:
    """The interval of equal values is a point, that of many is near the normal one."""
    rows = [{"original": x, "rephrasings": x + 0.1, "control": x} for x in (0.0, 1.0) * 200]
    summary = summarise(rows)
    mean, low, high = summary["original"]
    assert mean == 0.5 and (high - low) / 2 == pytest.approx(1.96 * 0.5 / 20, rel=0.1)
    assert summary["rephrasings - original"] == pytest.approx([0.1] * 3)
    assert summary["control - original"] == [0, 0, 0]


def pass_rate(text: str) -> float:
    """Uniform in [0, 1], a function of the question's number alone: rephrasing changes nothing."""
    number = text.split("#")[1].split()[0]
    return int(hashlib.sha256(number.encode()).hexdigest()[:8], 16) / 2**32


def model(number: int, body: dict[str, Any]) -> Reply:
    text = body["messages"][0]["content"]
    place = SEEN[text] = SEEN.get(text, -1) + 1
    rng = random.Random(f"{text} {place}")
    rights = [rng.random() < pass_rate(text) for _ in range(body["n"])]
    wrong = ["\\boxed{8}", ""][place % 2]  # a response without a text is a wrong one
    return Reply(chat(["\\boxed{7}" if right else wrong for right in rights]))


def test_where_rephrasing_changes_nothing_the_control_explains_the_whole_gap(
    tmp_path: Path,
) -> None:
    """Of groups of G responses with pass rate p, a share p^G + (1 - p)^G is all equal."""
    SEEN.clear()
    rates = [pass_rate(f"#{i} ?") for i in range(QUESTIONS)]
    make = functools.partial(make_question, answers=["7"], source="own")
    questions = [
        make(text=f"a #{i} ?", rephrasings=(f"b #{i} ?", f"c #{i} ?")) for i in range(QUESTIONS)
    ]
    few = make_question(text="lonely #1 ?", answers=["7"], source="own")
    write_parquet([*questions, few], tmp_path / "q.parquet")
    folder = tmp_path / "d"
    with serving(model) as endpoint:
        arguments = [str(tmp_path / "q.parquet"), str(folder), "--model", "m"]
        arguments += ["--base-url", endpoint.url, "--n", "2", "--g", "4"]
        assert diagnose.main(arguments) == 0
        sent = len(endpoint.bodies)
        assert diagnose.main(arguments) == 0
        assert len(endpoint.bodies) == sent, "nothing is sampled again"
    report = json.loads((folder / "diagnosis.json").read_text())
    assert report["questions"] == QUESTIONS
    assert report["left_out_for_too_few_rephrasings"] == 1
    equal = report["all_equal"]
    for name, count in (("original", 4), ("rephrasings", 8), ("control", 8)):
        expected = sum(p**count + (1 - p) ** count for p in rates) / QUESTIONS
        assert equal[name][1] <= expected <= equal[name][2]
    assert equal["rephrasings - original"][2] < 0, "the gap that the paper reports"
    assert equal["rephrasings - control"][1] <= 0 <= equal["rephrasings - control"][2]


def test_questions_without_rephrasings_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet([make_question(text="q", answers=["1"], source="own")], tmp_path / "q.parquet")
    arguments = [str(tmp_path / "q.parquet"), str(tmp_path / "d"), "--model", "m"]
    assert diagnose.main(arguments) == 1
    assert "has 3 rephrasings" in capsys.readouterr().err
