"""Tokenizer and start model: round trips, determinism, what is in the loss."""

import pytest
import torch

from prompt_aug.templates import load_bank, render
from recipe.toy import build, warmup
from recipe.toy.problems import Problem
from recipe.toy.tokenizer import build_tokenizer
from recipe.toy.world import load_world

SUMS = load_world("sums")


def tokenizer():
    return build_tokenizer(build.corpus(SUMS, load_bank()))


def test_tokenizer_round_trips_any_text_and_is_deterministic() -> None:
    first, second = tokenizer(), tokenizer()
    text = "Die Größe ist \\frac{1}{2}…\n\t  <think>数</think> 1234"
    assert first.decode(first.encode(text)) == text
    assert first.get_vocab() == second.get_vocab()
    assert len(first.encode("\n")) == 1  # verl's qwen2 builder wants it
    assert len(first.encode("1234")) == 4  # digits stay single
    assert first.encode("<|im_end|>") == [first.eos_token_id]


def test_only_the_demonstration_is_in_the_loss() -> None:
    tok, template = tokenizer(), load_bank()["deepseek-r1-teacher"]
    problem = Problem(a=7, op="+", b=8, level=1)
    ids, labels = warmup.encode(tok, SUMS, template, problem, ("k",), 0)
    start = next(i for i, label in enumerate(labels) if label != warmup.IGNORED)
    assert tok.decode(ids[:start]).endswith("<|im_start|>assistant\n<think>")
    assert labels[start:] == ids[start:]
    assert ids[-1] == tok.eos_token_id
    assert "boxed" in tok.decode(ids[start:])


def test_collate_pads_on_the_right_outside_mask_and_loss() -> None:
    ids, mask, labels = warmup.collate([([5, 6, 7], [-100, 6, 7]), ([8], [8])], pad=0)
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert labels.tolist() == [[-100, 6, 7], [8, -100, -100]]


@pytest.mark.config
def test_model_is_about_a_million_parameters_and_learns() -> None:
    tok, bank = tokenizer(), load_bank()
    model = warmup.build_model(tok, seed=0)
    assert 0.5e6 < model.num_parameters() < 1.5e6
    same = warmup.build_model(tok, seed=0)
    assert torch.equal(model.model.embed_tokens.weight, same.model.embed_tokens.weight)
    settings = warmup.WarmUp(updates=12, batch=4, learning_rate=3e-3)
    problems = [Problem(a=7, op="+", b=8, level=1)]
    prompt = render(bank["qwen-math"], "What is 7 + 8?", tok).text
    before = next_token_loss(model, tok, prompt, "7+8=15")
    warmup.train(model, tok, SUMS, problems, [bank["qwen-math"]], settings)
    assert next_token_loss(model, tok, prompt, "7+8=15") < before - 1.0


def next_token_loss(model, tok, prompt: str, response: str) -> float:
    p, r = tok.encode(prompt), tok.encode(response)
    labels = torch.tensor([[-100] * len(p) + r])
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([p + r]), labels=labels).loss)
