"""A world is built once, whoever wants it at the same time."""

import threading
import time
from pathlib import Path

import pytest

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
    monkeypatch.setattr(build, "POLL", 0.01)
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


def test_a_build_that_was_cut_is_made_again(
    tmp_path: Path, bank: Bank, settings: build.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path.resolve() / f".{build.digest(settings, bank)}" / "new"
    place.mkdir(parents=True)
    (place / "left over").touch()

    def teach(settings: build.Settings, bank: Bank, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / build.MANIFEST).write_text("{}")

    monkeypatch.setattr(build, "_teach", teach)
    folder = build.make(settings, bank, tmp_path)
    assert [path.name for path in folder.iterdir()] == [build.MANIFEST]
