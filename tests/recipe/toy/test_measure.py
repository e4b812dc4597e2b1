"""pass@k and groups without signal by hand and against all subsets; samples against the model."""

import random
from itertools import combinations

import pytest
import torch

from prompt_aug.templates import load_bank, render
from recipe.toy.measure import Sampler, no_signal, pass_at_k
from recipe.toy.tokenizer import build_tokenizer
from recipe.toy.warmup import build_model


def test_by_hand() -> None:
    # Four samples of two questions, 1 and 3 of them right; pairs: 6. All wrong: 3 pairs and 0.
    assert pass_at_k([1, 3], 4, 2) == pytest.approx((3 / 6 + 6 / 6) / 2)
    assert pass_at_k([1, 3], 4, 1) == pytest.approx(0.5)
    # equal pairs: of (1 right, 3 wrong) 3 of 6, of (3 right, 1 wrong) 3 of 6
    assert no_signal([1, 3], 4, 2) == pytest.approx(0.5)
    assert no_signal([0, 4], 4, 4) == 1.0
    assert no_signal([2], 4, 4) == 0.0
    assert no_signal([2], 4, 1) == 1.0  # one response alone has nothing to differ from


def test_against_all_subsets() -> None:
    rng, n, size = random.Random(0), 7, 3
    for _ in range(20):
        samples = [rng.random() < 0.4 for _ in range(n)]
        subsets = list(combinations(samples, size))
        hit = sum(any(s) for s in subsets) / len(subsets)
        equal = sum(len(set(s)) == 1 for s in subsets) / len(subsets)
        assert pass_at_k([sum(samples)], n, size) == pytest.approx(hit)
        assert no_signal([sum(samples)], n, size) == pytest.approx(equal)


def test_more_than_there_are_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@5 wants at least 5"):
        pass_at_k([1], 4, 5)
    with pytest.raises(ValueError, match="groups of 5"):
        no_signal([1], 4, 5)


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


def test_the_same_seed_gives_the_same_samples(sampler: Sampler) -> None:
    template = load_bank()["qwen-math"]
    one, two = (sampler.sample(["Add 1 and 2."], [("3",)], template, samples=4) for _ in range(2))
    assert one == two


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
