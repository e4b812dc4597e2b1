"""Where a response ends and which texts may stand in a prompt, for the tokenizers of users' models.

The special tokens are those that the models' tokenizer files list.
"""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from made_tokenizers import deepseek, gemma, gpt_oss, llama_3, phi, qwen_base, tokenizer

from prompt_aug.base.tokenizers import TokenizerError, load_tokenizer
from prompt_aug.turns import control_token, end_of_turn

ENDS = {
    qwen_base: ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<pad>"],
    llama_3: ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "<pad>"],
    gemma: ["<end_of_turn>", "<start_of_turn>", "<eos>", "<pad>"],
    deepseek: ["<｜end▁of▁sentence｜>", "<｜User｜>", "<pad>"],
    phi: ["<|end|>", "<|user|>", "<|endoftext|>", "<pad>"],
    gpt_oss: ["<|return|>", "<pad>"],  # its other tokens stand between the messages of a response
}
REFUSED = {
    qwen_base: "<|im_start|>",
    llama_3: "<|start_header_id|>",
    gemma: "<start_of_turn>",
    deepseek: "<｜User｜>",
    phi: "<|assistant|>",
}


def ids_of(made: Any, text: str) -> list[int]:
    return list(made.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", ENDS)
def test_a_response_ends_at_every_end_of_the_turn_and_at_nothing_else(kind: Any) -> None:
    made, response = kind(), "<think>\n\na user <b>7</b>\n</think> \\boxed{7}"
    end = end_of_turn(made)
    assert end.ids == set(made.convert_tokens_to_ids(ENDS[kind]))
    for marker in ENDS[kind]:
        assert end.text(ids_of(made, f"{response}{marker}user\n3+4?\\boxed{{8}}")) == response
    assert end.text(ids_of(made, response)) == end.cut(response) == response
    assert end.text(ids_of(made, "a END b END"), stop=("b", "END")) == "a END"


def test_tags_that_are_special_tokens_stay_and_markers_in_letters_end_it() -> None:
    made = qwen_base(tags=True)
    text = "<think>1</think><answer>2</answer>"
    assert "<think>" in made.all_special_tokens
    assert end_of_turn(made).text(ids_of(made, f"{text}<|im_end|>")) == text
    letters = tokenizer(None, ())  # has no such token
    assert end_of_turn(letters).text(ids_of(letters, "2<|im_end|>\n<|im_start|>user\n3")) == "2"


def test_ends_of_the_generation_configuration(tmp_path: Path) -> None:
    made = tokenizer(None, ("<a>", "<b>"), eos="<c>")
    made.save_pretrained(tmp_path)
    a, b, c, pad = made.convert_tokens_to_ids(["<a>", "<b>", "<c>", "<pad>"])
    for file, ends, wanted in (
        ("config.json", a, {a}),
        ("generation_config.json", [a, b], {a, b}),
        ("generation_config.json", None, set()),
    ):
        (tmp_path / file).write_text(json.dumps({"eos_token_id": ends}))
        assert end_of_turn(load_tokenizer(str(tmp_path))).ids == {c, pad} | wanted


def test_mistrals_own_tokenizer_is_refused_and_that_of_tokenizer_json_is_not(
    tmp_path: Path,
) -> None:
    """verl and vLLM, too, take tekken.json before tokenizer.json."""
    qwen_base().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert end_of_turn(load_tokenizer(str(tmp_path))).ids
    tokens = [b64encode(bytes([i])).decode() for i in range(256)]
    vocab = [{"rank": i, "token_bytes": t, "token_str": None} for i, t in enumerate(tokens)]
    sizes = {"num_vocab_tokens": 256, "default_vocab_size": 276, "default_num_special_tokens": 20}
    config = {"pattern": ".", "version": "v3", **sizes}
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    with pytest.raises(TokenizerError, match=r"tekken\.json"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("kind", REFUSED)
def test_control_tokens_are_found_and_tags_are_text(kind: Any) -> None:
    made = kind()
    assert control_token(["fine", f"a{REFUSED[kind]}b"], made) == REFUSED[kind]
    assert control_token(["<think> <tool_call> </tool_call>\n\n<b>user</b>"], made) is None
    assert control_token(["<think> </think>"], qwen_base(tags=True)) is None
