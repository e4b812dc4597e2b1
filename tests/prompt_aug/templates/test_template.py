"""The bank: its 13 records against the published table, bad banks, published renderings."""

import doctest
from pathlib import Path

import pytest

import prompt_aug
from prompt_aug.templates import BankError, Template, load_bank
from prompt_aug.templates.__main__ import main

# name: (category, prefill, published markers); the table of arXiv 2602.03190's code
STEP = "Let's think step by step"
OPEN = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHECK = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
PHRASE = ("The final answer is:",)
TABLE = {
    "abel": ("explicit CoT", STEP + ".\n", ()),
    "simplerl": ("free form", "", ()),
    "qwen-math": ("free form", "", ()),
    "open-r1": ("DeepSeek", "", OPEN),
    "open-r1-teacher": ("DeepSeek", "<think>\n", OPEN[1:]),
    "deepseek-r1": ("DeepSeek", "", TAGS),
    "deepseek-r1-teacher": ("DeepSeek", "<think>", TAGS[1:]),
    "formal": ("explicit CoT", "", ()),
    "lm_eval_prompt1": ("explicit CoT", STEP, PHRASE),
    "lm_eval_prompt4": ("explicit CoT", "", PHRASE),
    "lm_eval_prompt8": ("explicit CoT", STEP, ()),
    "reflective_prompt": ("reflection", "", CHECK),
    "reflective_prompt-teacher": ("reflection", "<solution>\n", CHECK[1:]),
}


def test_the_bank_has_the_table() -> None:
    bank = load_bank()
    assert bank.names == tuple(TABLE)
    for name, (category, prefill, published) in TABLE.items():
        made = bank[name]
        assert (made.category, made.prefill, made.published) == (category, prefill, published)
        shown = (made.system or "") + made.user
        assert all(marker.strip("\n") in prefill + shown for marker in published), name
        assert "\\boxed" in shown, name
        assert len(shown) <= 200, name


def test_published_bank_has_the_published_checks(shared_data: Path) -> None:
    bank = load_bank(shared_data / "published_templates.json", "published")
    assert {name: t.published for name, t in bank.items()} == {n: r[2] for n, r in TABLE.items()}


def test_published_renderings_are_chatml(tmp_path: Path) -> None:
    (tmp_path / "bank.json").write_text('{"abel": "no chat"}')
    with pytest.raises(BankError, match="abel is not ChatML"):
        load_bank(tmp_path / "bank.json")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("usr: x", "a.usr: unknown key, did you mean user"),
        ("format: [{weight: 1, absent: [x]}]", "an empty response would be paid"),
        ("format: [{weight: 0.5, boxed: true}]", "sum to 0.5"),
        ("user: no slot", "a: user must contain"),
    ],
)
def test_bad_templates_are_refused(record: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bank.yaml"
    path.write_text(f"templates: {{a: {{category: c, {record}}}}}")
    with pytest.raises(BankError, match=message):
        load_bank(path)


def test_a_users_bank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bank.yaml"
    path.write_text(
        "templates:\n  mine:\n    category: free form\n    user: 'Q: {question}'\n"
        "    prefill: 'A: '\n    stop: ['Q:']\n"
        "    format: [{weight: 0.5, once: Therefore}, {weight: 0.5, boxed: true}]\n"
    )
    (mine,) = load_bank(path).values()
    given = {"user": "Q: {question}", "prefill": "A: ", "stop": ("Q:",), "format": mine.format}
    assert mine == Template(name="mine", category="free form", **given)
    assert mine.format_reward("Therefore 7") == 0.5
    assert main(["check", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Q: What is $1 + 1$?" in shown
    assert "1 templates, valid" in shown


@pytest.mark.parametrize(("page", "least"), [("README.md", 9), ("rephrase/README.md", 2)])
def test_the_examples_of_a_page_run(page: str, least: int) -> None:
    path = Path(prompt_aug.__file__).parent / page
    result = doctest.testfile(str(path), module_relative=False)
    assert result.attempted >= least and result.failed == 0
