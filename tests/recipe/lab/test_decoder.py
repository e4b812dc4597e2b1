"""The plain decoder against transformers: values, gradients, greedy and seeded samples."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import save_tiny
from transformers import AutoModelForCausalLM

from prompt_aug.base.files import read_json, write_json
from recipe.errors import ConfigError
from recipe.lab.decoder import Decoder
from recipe.lab.rollouts import engine_draw, fast_draw, greedy_draw

pytestmark = pytest.mark.config

END = 1
PROMPTS = [[5, 6, 7], [5, 6, 8, 9], [5, 6, 7], [30]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    save_tiny(made, seed=3)
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for weight in model.parameters():  # so that tokens differ in probability
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(folder)
    return model


def sampled(model: Decoder, draw: Any, most: int = 12) -> Any:
    return model.sample(PROMPTS, draw, temperature=1.0, max_tokens=most, end=END)


def logprobs(model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
    rows = torch.tensor([[*prompt, *ids]])
    logp = model(rows).logits[0].log_softmax(-1)
    return logp[len(prompt) - 1 : -1].gather(1, torch.tensor(ids)[:, None])[:, 0]


@pytest.mark.parametrize("draw", [fast_draw(7), engine_draw([1, 2, 1, 3]), greedy_draw])
def test_samples_have_the_log_probabilities_of_transformers(
    folder: Path, reference: Any, draw: Any
) -> None:
    model = Decoder.load(folder)
    drawn = sampled(model, draw)
    rows = [[*p, *ids.tolist()] for p, ids in zip(PROMPTS, drawn.ids, strict=True)]
    again = model.logprobs(rows, 1.0, entropy=True)
    starts = torch.tensor([0, *map(len, rows)]).cumsum(0).tolist()
    for i, (prompt, ids) in enumerate(zip(PROMPTS, drawn.ids, strict=True)):
        wanted = logprobs(reference, prompt, ids.tolist()).detach()
        torch.testing.assert_close(drawn.logprobs[i], wanted, atol=1e-5, rtol=0)
        place = slice(starts[i] + len(prompt) - 1, starts[i + 1] - 1)
        torch.testing.assert_close(again["log_probs"][place], wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(again["entropy"][place], drawn.entropy[i], atol=1e-5, rtol=0)
    assert torch.cat(drawn.logprobs).std() > 0.03


def test_greedy_samples_are_those_of_generate(folder: Path, reference: Any) -> None:
    drawn = sampled(Decoder.load(folder), greedy_draw)
    for prompt, ids in zip(PROMPTS, drawn.ids, strict=True):
        rows = torch.tensor([prompt])
        wanted = reference.generate(
            rows, attention_mask=rows > 0, do_sample=False, max_new_tokens=12, pad_token_id=0
        )
        assert ids.tolist() == wanted[0, len(prompt) :].tolist()


def test_a_response_depends_on_its_own_seed_only(folder: Path, reference: Any) -> None:
    model = Decoder.load(folder)
    first = sampled(model, engine_draw([1, 2, 1, 3]))
    assert first.ids[0].tolist() == first.ids[2].tolist()  # one prompt, one seed
    other = sampled(model, engine_draw([1, 9, 4, 3]))
    same = [torch.equal(a, b) for a, b in zip(first.ids, other.ids, strict=True)]
    assert same == [True, False, False, True]


def test_a_fast_draw_has_the_frequencies_of_the_policy() -> None:
    probabilities = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    rows = torch.arange(40_000)
    drawn = fast_draw(0)(probabilities, rows % 2, rows)
    for prefix in (0, 1):
        shares = drawn[prefix::2].bincount(minlength=4) / 20_000
        # Five standard errors of a share of 0.5.
        torch.testing.assert_close(shares, probabilities[prefix], atol=0.018, rtol=0)


def test_gradients_are_those_of_transformers(folder: Path, reference: Any) -> None:
    model = Decoder.load(folder)
    for weight in model.weights.values():
        weight.requires_grad_()
    rows = [[5, 6, 7, 9, 11], [5, 6, 7, 9, 12, 13], [30, 2]]
    (model.logprobs(rows, 0.7, entropy=False)["log_probs"][[3, 9]].sum()).backward()
    reference.zero_grad()
    total = torch.zeros(())
    for row, place in ((rows[0], 3), (rows[1], 4)):
        logits = reference(torch.tensor([row])).logits[0, place] / 0.7
        total = total + logits.log_softmax(-1)[row[place + 1]]
    total.backward()
    for name, weight in reference.named_parameters():
        if name != "lm_head.weight":
            torch.testing.assert_close(model.weights[name].grad, weight.grad, atol=1e-5, rtol=1e-4)


def test_a_response_ends_with_its_end_or_at_the_limit(folder: Path, reference: Any) -> None:
    drawn = sampled(Decoder.load(folder), fast_draw(3), most=200)
    for ids in drawn.ids:
        assert (ids == END).sum() == (1 if len(ids) < 200 else 0) or ids[-1] == END
        assert END not in ids[:-1]


def test_a_config_of_older_transformers_is_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = read_json(tmp_path / "config.json")
    del config["rope_parameters"]
    write_json(tmp_path / "config.json", {**config, "rope_theta": 500.0})
    found = Decoder.load(tmp_path)
    assert found.frequencies[1].item() == pytest.approx(500.0 ** (-2 / 32))
    write_json(tmp_path / "config.json", {**config, "tie_word_embeddings": False})
    with pytest.raises(ConfigError, match=r"a qwen2 model\. The simulator"):
        Decoder.load(tmp_path)
