"""Format checks: values by hand, laws, hostile text. Published ones: tests/published."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.templates import load_bank
from prompt_aug.templates.format_checks import Rule, has_content

BANK = load_bank()
PUBLISHED = load_bank(format_setting="published")
BOX = "\\boxed{7}"
LINES = f"work\n</think>\n<answer>\n{BOX}\n</answer>"
BARE = f"work</think> <answer>{BOX}</answer>"
CHECKED = f"work\n</solution>\n<check>\nLet's verify step by step: yes\n</check>\n{BOX}"
GOOD = {
    "open-r1": "<think>\n" + LINES,
    "open-r1-teacher": LINES,
    "deepseek-r1": "<think>" + BARE,
    "deepseek-r1-teacher": BARE,
    "lm_eval_prompt1": f". Work. The final answer is: {BOX}",
    "lm_eval_prompt4": f"Work. The final answer is: {BOX}",
    "reflective_prompt": "<solution>\n" + CHECKED,
    "reflective_prompt-teacher": CHECKED,
}
CONSTANT = ("abel", "simplerl", "qwen-math", "formal", "lm_eval_prompt8")


@pytest.mark.parametrize("name", BANK.names)
def test_a_response_in_format_earns_one_and_an_empty_one_nothing(name: str) -> None:
    good = GOOD.get(name, f"Work, so {BOX}.")
    assert BANK[name].format_reward(good) == 1.0
    assert BANK[name].format_reward("") == 0.0
    assert PUBLISHED[name].format_reward(good) == 1.0
    assert PUBLISHED[name].format_reward("") == (1.0 if name in CONSTANT else 0.0)


@pytest.mark.parametrize(
    ("name", "response", "value"),
    [
        # three of four markers 3/8, thoughts 1/8; no order, no closed answer tag to be boxed in
        ("open-r1", f"<think>\nwork\n</think>\n<answer>\n{BOX}", 0.5),
        # all four markers, answer before think: 4/8 + thoughts 1/8 + box 1/8; the answer not last
        ("deepseek-r1", f"<answer>{BOX}</answer><think>work</think>", 0.75),
        # the box stands outside the answer tag: 4/8 + order, thoughts, last 3/8
        ("deepseek-r1", f"<think>{BOX}</think><answer>7</answer>", 0.875),
        # the prefilled tag is written again: the two rules with `absent` pay nothing
        ("deepseek-r1-teacher", "<think>" + BARE, 0.625),
        # the whole answer twice: think 2/8 + thoughts, box, last 3/8; answer tags and order fail
        ("deepseek-r1-teacher", BARE + f"<answer>{BOX}</answer>", 0.625),
        # no thoughts: all but 1/8
        ("deepseek-r1", f"<think></think> <answer>{BOX}</answer>", 0.875),
        # text after the last tag: all but 1/8; white space is none
        ("deepseek-r1", f"<think>{BARE} and so on" + 250 * " and so on", 0.875),
        # the phrase without a box after it
        ("lm_eval_prompt4", f"{BOX}. The final answer is: 7", 0.5),
        ("lm_eval_prompt4", f"The final answer is: {BOX}. The final answer is: {BOX}", 0.0),
        # the box stands before the end of the check
        ("reflective_prompt-teacher", CHECKED.replace(f"\n{BOX}", "").replace("yes", BOX), 0.75),
        # the check does not begin as it must: 2/8 + 1/8 + box; nothing is between its marks
        ("reflective_prompt-teacher", CHECKED.replace("Let's verify", "I verify"), 0.625),
        ("abel", "the answer is 7", 0.0),
        ("abel", r"the answer is \boxed{\text{ } \quad}", 0.0),
        ("abel", r"the answer is \boxed{\emptyset}", 1.0),
        *(("abel", rf"in \boxed{{{shown}}}", 0.0) for shown in ("answer", r"\phantom{5}", "=")),
    ],
)
def test_by_hand(name: str, response: str, value: float) -> None:
    assert BANK[name].format_reward(response) == value


def test_a_published_reward_is_rounded_to_1024ths() -> None:
    assert PUBLISHED["deepseek-r1-teacher"].format_reward("a</think><answer>b") == 683 / 1024


@settings(deadline=None)
@given(st.text(alphabet="ab{}\\ \n", max_size=30), st.integers(0, 12))
def test_rewards_are_dyadic_and_in_range(noise: str, which: int) -> None:
    name = BANK.names[which]
    good = GOOD.get(name, BOX)
    for bank in (BANK, PUBLISHED):
        for response in (noise, noise + good, good[: len(noise)] + noise):
            reward = bank[name].format_reward(response)
            assert 0.0 <= reward <= 1.0
            assert (reward * 1024).is_integer()


@pytest.mark.parametrize("text", ["7", "π", r"\pi", r"\{\}", "∅", "<", r"\text{no}"])
def test_what_says_something(text: str) -> None:
    assert has_content(text)


def test_every_real_answer_says_something(shared_data: Path) -> None:
    """The control of `has_content`: of all golds of the real data it must refuse none."""
    golds = {
        str(row["reward_model"]["ground_truth"])
        for path in shared_data.rglob("*.parquet")
        for row in pq.read_table(path, columns=["reward_model"]).to_pylist()
    }
    assert len(golds) > 1000
    assert [gold for gold in golds if gold and not has_content(gold)] == []


@pytest.mark.parametrize(
    ("check", "holds", "fails"),
    [
        (
            {"filled": [["<a>", "</a>"]]},
            ["<a> 1 </a>"],
            ["<a> . </a> 1 <a> 1 </a>", "<a> 1", "1 </a>"],  # the first pair counts
        ),
        ({"last": "</a>"}, ["x </a>\n"], ["x </a>\n.", ""]),
        (
            {"nested": ["a", "b"]},
            ["<a>x</a><b>y</b>", "<a><b></b></a>"],
            ["<a><b></a></b>", "<a><a></a></a>", "</a><a>", "<a>", "<a></a><a>", "<a><b></b>", "x"],
        ),
        ({"order": ["a", "b", "c"]}, ["a b c"], ["b a c", "a", "a b a c"]),
        ({"order": ["\n</t>\n", "\n<a>\n"]}, ["x\n</t>\n<a>\ny"], []),  # a shared newline
        ({"once": "\n</t>\n"}, ["x\n</t>\n"], ["x\n</t>\n</t>\n"]),
        (
            {"boxed_in": "answer"},
            [f"<answer>{BOX}</answer>"],
            [f"{BOX}<answer></answer>", f"<answer>{BOX}", f"</answer>{BOX}<answer>"],
        ),
        ({"boxed_after": "is:"}, [f"is: {BOX}"], [f"{BOX} is:"]),
    ],
)
def test_each_check_by_hand(check: dict[str, Any], holds: list[str], fails: list[str]) -> None:
    rule = Rule.model_validate({"weight": 1, **check})
    assert [text for text in holds if not rule.holds(text)] == []
    assert [text for text in fails if rule.holds(text)] == []


@pytest.mark.parametrize("check", [{"boxed_in": "<a>"}, {"nested": ["<a>"]}])
def test_a_tag_is_named_without_brackets(check: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Rule(weight=1.0, **check)
    assert Rule(weight=1.0, nested=["my answer"]).holds("<my answer>4</my answer>")


@pytest.mark.parametrize(
    ("check", "required"),
    [
        ({"once": "<think>\n"}, True),
        ({"order": ["<think>", "</think>"]}, True),
        ({"nested": ["think", "answer"]}, True),
        ({"filled": [["<think>", "</think>"]]}, True),
        ({"boxed_in": "think"}, True),
        ({"once": "</think>", "absent": "<think>", "nested": "answer", "last": "x"}, False),
    ],
)
def test_rules_that_require_a_tag(check: dict[str, Any], required: bool) -> None:
    assert Rule(weight=1.0, **check).requires("think") is required


@pytest.mark.parametrize("piece", ["\\boxed{", "<think>", "\\boxed{{", "{", "\\", "\n</think>\n"])
def test_hostile_text_of_a_million_characters_ends(piece: str) -> None:
    """Quadratic scans of this take hours: the test would not end."""
    text = piece * (1_000_000 // len(piece))
    for template in {template.format: template for template in BANK.values()}.values():
        assert template.format_reward(text) <= 0.5
