"""A world is built once; the start model: tokenizer, what is in the loss, that it learns."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import open_dict
from safetensors.torch import load_file

from prompt_aug.templates import Bank, load_bank, render
from recipe.toy import build, warmup
from recipe.toy.world import Problem, load_world

SUMS = load_world("sums")


@pytest.fixture
def bank() -> Bank:
    return load_bank(None)


@pytest.fixture
def settings() -> build.Settings:
    return build.Settings(world=load_world("sums"), templates=("qwen-math",), seed=0)


def test_two_that_want_a_world_at_once_build_it_once(
    tmp_path: Path, bank: Bank, settings: build.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught, begun, go_on = [], threading.Event(), threading.Event()

    def teach(settings: build.Settings, bank: Bank, folder: Path) -> None:
        folder.mkdir(parents=True)
        taught.append(folder)
        begun.set()
        assert go_on.wait(30)
        (folder / build.MANIFEST).write_text("{}")

    monkeypatch.setattr(build, "_teach", teach)
    result: list[Path] = []
    both = [
        threading.Thread(target=lambda: result.append(build.make(settings, bank, tmp_path)))
        for _ in range(2)
    ]
    both[0].start()
    assert begun.wait(30)
    both[1].start()
    time.sleep(0.1)  # without a turn the second begins to teach
    go_on.set()
    for thread in both:
        thread.join(30)
    assert len(taught) == 1
    assert result == [tmp_path.resolve() / build.digest(settings, bank)] * 2
    assert (result[0] / build.MANIFEST).is_file()


def test_the_quick_start_begins_with_the_shipped_model_and_other_settings_do_not(
    toy_config: Any, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = build.settings_of(toy_config, bank)
    shipped = build.shipped_start(settings, bank)
    assert shipped.is_file(), "the settings of examples/toy changed: see scripts/ship_start.py"
    fewer = settings.world.questions.model_copy(update={"train": 20})  # no part of the teaching
    same = settings.world.model_copy(update={"questions": fewer})
    assert build.shipped_start(dataclasses.replace(settings, world=same), bank) == shipped
    others = [
        dataclasses.replace(settings, seed=settings.seed + 1),
        dataclasses.replace(settings, templates=settings.templates[:1]),
        dataclasses.replace(settings, world=settings.world.model_copy(update={"updates": 9})),
        dataclasses.replace(settings, world=load_world("sums")),
    ]
    assert not any(build.shipped_start(changed, bank).is_file() for changed in others)

    monkeypatch.setattr("recipe.toy.warmup.train", None)  # a call would fail
    folder = build.make(settings, bank, tmp_path)
    weights = load_file(folder / "model" / "model.safetensors")
    expected = load_file(shipped)  # also has the tied output head
    assert len(weights) >= len(expected) - 1
    assert {str(w.dtype) for w in weights.values()} == {"torch.float32"}
    assert all(
        torch.equal(weights[name], w.float()) for name, w in expected.items() if name in weights
    )


def test_a_world_is_built_and_evaluated_only_if_the_run_uses_it(
    toy_config: Any, tmp_path: Path
) -> None:
    own, config = ["own.parquet"], toy_config.copy()
    with open_dict(config):
        config.recipe.toy.cache, config.recipe.model_path = str(tmp_path), None
    without = config.copy()
    folder = build.attach(config)
    assert config.eval.benchmarks[0].name == "toy_test" and build.is_missing(config)
    without.data.train_files = without.data.val_files = own
    build.attach(without)  # the start model is the world's
    assert list(without.eval.benchmarks) == [] and build.is_missing(without)
    without.recipe.model_path = without.actor_rollout_ref.model.path = "own/model"
    without.critic.model.path = "own/model"
    assert build.attach(without) is None and not build.is_missing(without)
    folder.mkdir()
    (folder / build.MANIFEST).touch()
    assert not build.is_missing(config)


def test_with_an_own_model_none_is_taught(
    toy_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_teach_model", None)  # a call would fail
    config = toy_config.copy()
    with open_dict(config):
        config.recipe.toy.cache, config.recipe.model_path = str(tmp_path), "some/model"
    folder = build.attach(config)
    assert folder is not None and folder == build.build(config) == build.attach(config)
    assert config.recipe.model_path == "some/model"
    assert all(Path(path).is_file() for path in (*config.data.train_files, *config.data.val_files))
    assert not (folder / "model").exists()


def test_with_own_model_and_data_no_world_is_made(toy_config: Any, tmp_path: Path) -> None:
    for key in ("model", "train", "val"):  # the one that is missing
        config = toy_config.copy()
        with open_dict(config):
            config.recipe.toy.cache = str(tmp_path)
            config.recipe.model_path = None if key == "model" else "some/model"
            config.data.train_files = None if key == "train" else ["own.parquet"]
            config.data.val_files = None if key == "val" else "own.parquet"
        for _ in range(2):  # the second time with the paths of the first
            folder = build.attach(config)
            assert folder is not None and config.recipe.toy.enable
            taught = build.settings_of(config, load_bank(None)).templates
            assert bool(taught) == (key == "model")
    with open_dict(config):
        config.data.val_files = "own.parquet"
    assert build.attach(config) is None and not config.recipe.toy.enable


def tokenizer() -> Any:
    return warmup.build_tokenizer(build.corpus(SUMS, load_bank()))


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
