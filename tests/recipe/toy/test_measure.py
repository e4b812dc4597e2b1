"""Samples against the model that they are of."""

import pytest
import torch

from prompt_aug.templates import load_bank, render
from recipe.toy.measure import Sampler
from recipe.toy.tokenizer import build_tokenizer
from recipe.toy.warmup import build_model


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Sampler:
    """An untrained model: its distribution is broad, nothing comes out right by accident."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["What is 7 + 8?", "\\boxed{15}"])
    model = build_model(tokenizer, seed=0)
    # A generation_config of its own must change nothing.
    model.generation_config.update(do_sample=True, top_k=1, temperature=0.01)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Sampler(folder, max_tokens=5, seed=3)


def test_entropy_is_that_of_a_second_forward_pass(sampler: Sampler) -> None:
    texts, template = ["What is 7 + 8?", "Add 7 and 8 and 9 and 10."], load_bank()["qwen-math"]
    drawn = sampler.sample(texts, [("15",), ("34",)], template, samples=3)
    assert [len(group) for group in drawn] == [3, 3]
    assert len({s.text for group in drawn for s in group}) > 3  # top_k=1 would give two
    for text, group in zip(texts, drawn, strict=True):
        prompt = sampler.tokenizer.encode(render(template, text, sampler.tokenizer).text)
        for s in group:
            response = sampler.tokenizer.encode(s.text)
            if len(response) != s.tokens:
                continue  # bytes that are no text, or a special token: not read back alike
            with torch.no_grad():
                logits = sampler.model(torch.tensor([prompt + response])).logits[0]
            logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
            assert s.entropy == pytest.approx(float(-(logp.exp() * logp).sum(-1).mean()), abs=1e-4)


def test_greedy_is_the_argmax(sampler: Sampler) -> None:
    template = load_bank()["qwen-math"]
    [[best]] = sampler.sample(["Add 1 and 2."], [("3",)], template, samples=1, temperature=0.0)
    ids = sampler.tokenizer.encode(render(template, "Add 1 and 2.", sampler.tokenizer).text)
    start = len(ids)
    with torch.no_grad():
        for _ in range(best.tokens):
            ids.append(int(sampler.model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert best.text == sampler.tokenizer.decode(ids[start:], skip_special_tokens=True)
    assert not best.right


def test_answer_and_format_are_graded_apart(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = torch.tensor([sampler.tokenizer.encode("\\boxed{15}")])
    monkeypatch.setattr(sampler, "draw", lambda *_: (said, torch.zeros(said.shape)))
    for name, formatted in (("qwen-math", 1.0), ("reflective_prompt", 0.0)):
        [[sample]] = sampler.sample(["7 + 8?"], [("15",)], load_bank()[name], samples=1)
        assert (sample.right, sample.format) == (True, formatted)
