"""A world is built once, whoever wants it at the same time."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import open_dict
from safetensors.torch import load_file

from prompt_aug.templates import Bank, load_bank
from recipe.toy import build
from recipe.toy.world import load_world


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
    found: list[Path] = []
    both = [
        threading.Thread(target=lambda: found.append(build.make(settings, bank, tmp_path)))
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
    assert found == [tmp_path.resolve() / build.digest(settings, bank)] * 2
    assert (found[0] / build.MANIFEST).is_file()


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
    assert not any(build.shipped_start(other, bank).is_file() for other in others)

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
