"""A card says of made-up samples what they are, and refuses what it cannot estimate."""

import pytest

from recipe.toy import card
from recipe.toy.card import Asked
from recipe.toy.demonstrations import demonstration
from recipe.toy.problems import Problem
from recipe.toy.work import Mistakes
from recipe.toy.world import load_world

SUMS = load_world("sums")
PROBLEM = Problem(a=47, op="+", b=38, level=3)


def asked(rephrasing: int, right: int) -> Asked:
    """64 samples of one problem, `right` of them right and the others without their carry."""
    forget = Mistakes(forget=frozenset({1}))
    texts = [demonstration(PROBLEM, "qwen-math")] * right
    texts += [demonstration(PROBLEM, "qwen-math", forget)] * (64 - right)
    return Asked(
        problem=PROBLEM,
        rephrasing=rephrasing,
        own=rephrasing == 0,
        right=right,
        texts=tuple(texts),
        entropy=0.25,
        tokens=20.0,
        greedy=right > 32,
    )


def test_a_card_by_hand() -> None:
    text = card.card(SUMS, [asked(0, 16), asked(1, 64), asked(2, 0)], samples=64)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.splitlines()}
    own = rows["as first asked"]
    assert own[:3] == ["1", "0.000", "0.250"]  # n, greedy, pass@1
    # C(48, 4) / C(64, 4) + C(16, 4) / C(64, 4) = (194580 + 1820) / 635376
    assert own[7] == "0.309"
    assert rows["rephrasing 1"][:5] == ["1", "1.000", "1.000", "1.000", "1.000"]
    assert rows["rephrasing 2"][5:] == ["0.250", "20.0", "1.000", "1.000", "1.000", "1.000 |"]
    assert rows["rephrasing 3"][0] == "0"
    assert rows["2-digit addition with a carry"][0] == "3"
    # 16 + 64 + 0 of 192 carries; every other skill is right
    assert "| carry | 0.417 | 192 |" in text
    assert "| fact | 1.000 | 384 |" in text
    assert "borrow" not in text.split("| skill |")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["summs"], r"there is no summs.yaml"),
        (["sums", "--samples", "16"], "--samples 16: at least 32 are wanted"),
        (["sums", "--templates", "nope"], "nope"),
    ],
)
def test_a_card_that_cannot_be_made_is_refused_before_the_build(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert card.main(words) == (2 if "--samples" in words else 1)
    assert said in capsys.readouterr().err
