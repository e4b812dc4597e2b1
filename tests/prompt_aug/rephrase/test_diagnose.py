"""Section 5.2 with its control: hand values, and a model whose pass rates are known."""

import functools
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.questions import make_question, write_parquet
from prompt_aug.rephrase import diagnose
from prompt_aug.rephrase.diagnose import Sampled, all_equal, distances, summarise

ONE = 2  # G of the hand values
QUESTIONS = 40
SEEN: dict[str, int] = {}  # how often a text was asked: its answers do not depend on other texts


ASKED = [0] * 6 + [1] * 2 + [2] * 2


def test_rewards_are_compared_within_each_set() -> None:
    rewards = [True, True, True, False, True, True, True, True, True, True]
    sampled = Sampled(ASKED, rewards, [""] * 10)
    assert all_equal(sampled, ONE) == {"original": True, "rephrasings": True, "control": False}
    turned = sampled._replace(rewards=rewards[:8] + [False] * 2)
    assert all_equal(turned, ONE)["rephrasings"] is False, "mixed between the rephrasings"


def test_distances_within_and_between_rephrasings() -> None:
    """Responses "x" and "y" are orthogonal: within 0 and 1, between 1/2."""
    vectors = {"x": [1.0, 0.0], "y": [0.0, 2.0]}
    sampled = Sampled(ASKED, [True] * 10, "x y x x x x x x x y".split())
    found = distances(sampled, ONE, lambda texts: np.array([vectors[t] for t in texts]))
    assert found == pytest.approx(
        {
            "original": 1.0,
            "control": 0.0,
            "rephrasings": (0 + 1 + 4 * 0.5) / 6,
            "rephrasings within": 0.5,
            "rephrasings between": 0.5,
        }
    )


def test_intervals_and_paired_differences() -> None:
    """The interval of equal values is a point, that of many is near the normal one."""
    rows = [{"original": x, "rephrasings": x + 0.1, "control": x} for x in (0.0, 1.0) * 200]
    found = summarise(rows)
    mean, low, high = found["original"]
    assert mean == 0.5 and (high - low) / 2 == pytest.approx(1.96 * 0.5 / 20, rel=0.1)
    assert found["rephrasings - original"] == pytest.approx([0.1] * 3)
    assert found["control - original"] == [0, 0, 0]


def pass_rate(asked: str) -> float:
    """Uniform in [0, 1], a function of the question's number alone: rephrasing changes nothing."""
    number = asked.split("#")[1].split()[0]
    return int(hashlib.sha256(number.encode()).hexdigest()[:8], 16) / 2**32


def model(number: int, body: dict[str, Any]) -> Reply:
    if "input" in body:
        vectors = [[1.0, float(text[-2:-1] or 0)] for text in body["input"]]
        data = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        return Reply({"data": data[::-1]})
    asked = body["messages"][0]["content"]
    place = SEEN[asked] = SEEN.get(asked, -1) + 1
    rng = random.Random(f"{asked} {place}")
    rights = [rng.random() < pass_rate(asked) for _ in range(body["n"])]
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
        arguments += ["--base-url", endpoint.url, "--n", "2", "--g", "4", "--embedder", "e"]
        assert diagnose.main(arguments) == 0
        asked = len(endpoint.bodies)
        assert diagnose.main(arguments) == 0
        assert all("input" in body for body in endpoint.bodies[asked:]), "nothing sampled again"
    report = json.loads((folder / "diagnosis.json").read_text())
    assert report["questions"] == QUESTIONS
    assert report["left_out_for_too_few_rephrasings"] == 1
    equal = report["all_equal"]
    for name, count in (("original", 4), ("rephrasings", 8), ("control", 8)):
        expected = sum(p**count + (1 - p) ** count for p in rates) / QUESTIONS
        assert equal[name][1] <= expected <= equal[name][2]
    assert equal["rephrasings - original"][2] < 0, "the gap that the paper reports"
    assert equal["rephrasings - control"][1] <= 0 <= equal["rephrasings - control"][2]
    assert (folder / "diagnosis.png").read_bytes().startswith(b"\x89PNG")
    assert report["distance"]["rephrasings between"][0] > 0


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], None),
        (["--embedder-url", "URL"], "Qwen/Qwen3-Embedding-0.6B"),
        (["--embedder-url", "URL", "--embedder", "own"], "own"),
        (["--embedder", "own"], "own"),
    ],
)
def test_an_address_of_embeddings_is_asked_for_the_authors_model(
    tmp_path: Path, given: list[str], asked: str | None
) -> None:
    question = make_question(text="a #1 ?", answers=["7"], source="own", rephrasings=("b #1 ?",))
    write_parquet([question], tmp_path / "q.parquet")
    with serving(model) as endpoint:
        arguments = [str(tmp_path / "q.parquet"), str(tmp_path / "d"), "--model", "m", "--n", "1"]
        arguments += ["--base-url", endpoint.url, "--g", "2"]
        arguments += [endpoint.url if part == "URL" else part for part in given]
        assert diagnose.main(arguments) == 0
        models = {body["model"] for body in endpoint.bodies if "input" in body}
    assert models == ({asked} if asked else set())
    report = json.loads((tmp_path / "d" / "diagnosis.json").read_text())
    assert report.get("embedder") == asked
    if asked:  # one rephrasing: there are no pairs of two rephrasings
        assert "rephrasings within" in report["distance"]
        assert "rephrasings between" not in report["distance"]


def test_questions_without_rephrasings_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet([make_question(text="q", answers=["1"], source="own")], tmp_path / "q.parquet")
    arguments = [str(tmp_path / "q.parquet"), str(tmp_path / "d"), "--model", "m"]
    assert diagnose.main(arguments) == 1
    assert "has 3 rephrasings" in capsys.readouterr().err
