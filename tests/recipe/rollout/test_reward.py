"""The reward: values by hand, the manager over real verl records, the paper's sum."""

import asyncio
import re
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from recipe.rollout.reward import RecipeRewardManager, combine, overlong_penalty

SETTINGS = OmegaConf.create({"format_weight": 1.0})


@pytest.mark.parametrize(
    ("length", "penalty"), [(10, 0.0), (48, 0.0), (52, 0.25), (56, 0.5), (64, 1.0), (80, 1.0)]
)
def test_overlong_by_hand(length: int, penalty: float) -> None:
    # limit 64, buffer 16: the penalty grows from 0 at 48 tokens to 1 at 64
    assert overlong_penalty(length, limit=64, buffer=16, factor=1.0) == penalty
    assert overlong_penalty(length, limit=64, buffer=16, factor=0.5) == penalty / 2


def test_combine_by_hand() -> None:
    assert combine(1.0, 0.75, 0.0, SETTINGS) == 1.75
    # The paper pays format for wrong answers.
    assert combine(0.0, 0.75, 0.5, SETTINGS) == 0.25
    assert combine(1.0, 0.5, 0.0, OmegaConf.create({"format_weight": 0.5})) == 1.25


class Words:
    """A stand-in tokenizer whose ids are indices into a list of texts; `<...>` are special."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        texts = [self.texts[i] for i in ids]
        return "".join(t for t in texts if not (skip_special_tokens and re.fullmatch("<.+>", t)))


def score(
    texts: list[str],
    length: int,
    template: str,
    answers: list[str],
    overlong: bool = False,
    options: Any = None,
    unworked: str = "pay",
    source: str = "math",
    prompt: int = 0,
    **fields: Any,
):
    """The result of the manager; as in verl, the mask of `prompt` tokens may come first."""
    from verl import DataProto

    config = OmegaConf.create(
        {
            "data": {"max_response_length": 4, "apply_chat_template_kwargs": {}},
            "recipe": {
                "augment": {"bank": None, "format": "strict"},
                "reward": {
                    "format_weight": 1.0,
                    "extraction": "default",
                    "unworked": unworked,
                    "verifiers": {"own": "own_verifiers.long"},
                    "verifier_limits": None,
                    "overlong": {"enable": overlong, "buffer": 2, "factor": 1.0},
                },
            },
        }
    )
    given = {"answers": answers, "options": options, "rephrasings": ["Work out $8/2$."]}
    columns = {
        "data_source": source,
        "extra_info": given,
        "raw_prompt": [{"role": "user", "content": "What is $2+2$?"}],
        "tool_extra_fields": {"template": template, **fields},
    }
    arrays = {}
    for key, value in columns.items():
        arrays[key] = np.empty(1, dtype=object)
        arrays[key][0] = value
    width = len(texts)
    mask = torch.tensor([[1] * (prompt + length) + [0] * (width - length)])
    batch = TensorDict({"responses": torch.arange(width)[None], "attention_mask": mask}, [1])
    manager = RecipeRewardManager(config, Words(texts), None)
    return asyncio.run(manager.run_single(DataProto(batch=batch, non_tensor_batch=arrays)))


def test_unworked_arithmetic_is_paid_or_refused() -> None:
    for setting, accuracy in (("pay", 1.0), ("refuse", 0.0)):
        result = score(["\\boxed{(16-3-4)*2}"], 1, "abel", ["18"], unworked=setting)
        assert result["reward_extra_info"]["acc"] == accuracy
        assert result["reward_extra_info"]["status"] == "unworked"


def test_the_manager_grades_and_adds_the_drawn_templates_format() -> None:
    good = ["<think>2+2=4</think> ", "<answer>\\boxed{4}</answer>", "<eos>", " junk"]
    result = score(good, 3, "deepseek-r1", ["4"])
    assert result["reward_score"] == 2.0
    assert result["reward_extra_info"]["acc"] == 1.0
    assert result["reward_extra_info"]["status"] == "correct"
    assert result["reward_extra_info"]["response"] == good[0] + good[1]  # no end token, no padding
    assert score(good, 3, "deepseek-r1", ["4"], prompt=5) == result
    # the same text under a template with other markers: right answer, less format
    assert score(good, 2, "reflective_prompt", ["4"])["reward_score"] < 2.0
    wrong = score(good, 2, "deepseek-r1", ["5"])
    assert wrong["reward_score"] == 1.0
    assert wrong["reward_extra_info"]["status"] == "wrong"


def test_the_reward_reads_tags_that_are_special_tokens_and_nothing_after_the_turn() -> None:
    tags = ["<think>", "2+2=4", "</think>", "<answer>", "\\boxed{4}", "</answer>"]
    assert score(tags, 6, "deepseek-r1", ["4"])["reward_score"] == 2.0
    goes_on = ["\\boxed{4}", "<|im_end|>", "\n", "<|im_start|>", "user\n3+4?", "\\boxed{7}"]
    result = score(goes_on, 6, "qwen-math", ["4"])["reward_extra_info"]
    assert (result["acc"], result["response"]) == (1.0, "\\boxed{4}")


def test_a_verifiers_score_with_format_and_length_on_top() -> None:
    """Half a point for the part that is there; the format of a wrong answer is paid, as without."""
    for text, base, accuracy in (("long enough", 1.0, 1.0), ("short", 0.5, 0.0), ("", 0.0, 0.0)):
        parts = [text, "", "", ""]
        result = score(parts, 3, "qwen-math", ["4"], overlong=True, source="own")
        info = result["reward_extra_info"]
        assert info["source"] == "own"
        assert info["overlong"] == 0.5
        assert result["reward_score"] == base + info["format"] - 0.5
        assert info["acc"] == accuracy
        more = {"characters": float(len(text))} if text else {}  # of a result alone
        assert info["parts"] == {"score": base, **more}
        assert info["status"] == ("error" if not text else "correct" if accuracy else "wrong")
    math = score(["\\boxed{4}", "", "", ""], 1, "qwen-math", ["4"])["reward_extra_info"]
    assert (math["acc"], math["parts"], math["source"]) == (1.0, {}, "math")


def test_a_formula_of_the_question_or_of_a_rephrasing_scores_nothing() -> None:
    for copied in ("2+2", "8/2"):
        info = score([f"\\boxed{{{copied}}}", "", "", ""], 1, "qwen-math", ["4"])
        graded = info["reward_extra_info"]
        assert (graded["acc"], graded["status"]) == (0.0, "echo"), copied


@pytest.mark.parametrize(
    ("text", "length", "answers", "more", "wanted"),
    [
        ("4", 1, ["7", "4"], {}, 1.0),  # any of several answers
        ("4", 3, ["4"], {"overlong": True}, 0.5),
        ("4", 4, ["4"], {"overlong": True}, 0.0),
        ("4", 3, ["4"], {"overlong": True, "limit": 3}, 0.0),  # what a long prompt leaves
        ("(B) 2+2", 1, ["B"], {"options": ["5", "2+2"]}, 1.0),
        ("(B) 2+2", 1, ["A"], {"options": ["5", "2+2"]}, 0.0),
    ],
)
def test_answers_options_and_length(
    text: str, length: int, answers: list[str], more: dict[str, Any], wanted: float
) -> None:
    if "options" in more:
        more = {"options": np.array(more["options"], dtype=object)}
    result = score([f"\\boxed{{{text}}}", "", "", ""], length, "qwen-math", answers, **more)
    info = result["reward_extra_info"]
    assert info["acc"] - info["overlong"] == wanted
    assert result["reward_score"] == wanted + info["format"]
