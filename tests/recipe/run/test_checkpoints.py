"""Whole and damaged checkpoints, from which one a run goes on, and which ones are deleted."""

import struct
import zipfile
from pathlib import Path

import pytest
import torch
from saved_checkpoint import save

from recipe.errors import ConfigError
from recipe.run import checkpoints


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 2, 10 and 12, the last one tracked."""
    for step in (2, 10, 12):
        save(tmp_path, step, ranks=2)
    (tmp_path / checkpoints.TRACKER).write_text("12")
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    """Change the first number of a shard, which torch.load then returns in silence."""
    with zipfile.ZipFile(path) as archive:
        place = next(x for x in archive.infolist() if "/data/" in x.filename)
    content = bytearray(path.read_bytes())
    start = content.index(place.filename.encode(), place.header_offset)
    tensor = content.index(struct.pack("<f", 1.0), start)
    content[tensor : tensor + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(content)
    assert torch.load(path)["w"][0] != 1


HARM = {
    "a tensor flipped": lambda p: flip(p / "actor/model_world_size_2_rank_1.pt"),
    "a shard cut": lambda p: cut(p / "actor/model_world_size_2_rank_1.pt"),
    "an empty shard": lambda p: (p / "actor/optim_world_size_2_rank_0.pt").write_bytes(b""),
    "no shard of a rank": lambda p: (p / "actor/extra_state_world_size_2_rank_1.pt").unlink(),
    "no data loader": lambda p: (p / "data.pt").unlink(),
    "a data loader cut": lambda p: cut(p / "data.pt"),
    "no state": lambda p: (p / "recipe_state.json").unlink(),
    "a state cut": lambda p: (p / "recipe_state.json").write_text('{"memory": {'),
    "a state of another kind": lambda p: (p / "recipe_state.json").write_text("[]"),
    "an empty state": lambda p: (p / "recipe_state.json").write_text("{}"),
    "a line of another kind": lambda p: (p / "recipe_state.json").write_text(
        '{"batches_fetched": 1, "line": []}'
    ),
    "statistics of another kind": lambda p: (p / "recipe_state.json").write_text(
        '{"batches_fetched": 1, "question_stats": {"shortest": []}}'
    ),
    "no ranks": lambda p: (p / "actor/fsdp_config.json").write_text('{"world_size": 0}'),
    "ranks as text": lambda p: (p / "actor/fsdp_config.json").write_text('{"world_size": "2"}'),
    "no description": lambda p: (p / "actor/fsdp_config.json").unlink(),
    "a description cut": lambda p: (p / "actor/fsdp_config.json").write_text('{"FSDP_'),
    "gone": lambda p: p.rename(p.with_name("elsewhere")),
}


def test_whole_checkpoints_are_left_alone(folder: Path) -> None:
    assert [checkpoints.damage(folder / f"global_step_{n}") for n in (2, 10, 12)] == [None] * 3
    for tracked in ("12", "2"):  # a user who goes back by hand is believed
        (folder / checkpoints.TRACKER).write_text(tracked)
        assert checkpoints.repair(folder) == []
        assert (folder / checkpoints.TRACKER).read_text() == tracked


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_last_checkpoint_falls_back_to_the_whole_one_before(
    folder: Path, harm: str
) -> None:
    HARM[harm](folder / "global_step_12")
    messages = checkpoints.repair(folder)
    assert (
        len(messages) == 1
        and "step 12 is not whole" in messages[0]
        and "from step 10" in messages[0]
    )
    assert (folder / checkpoints.TRACKER).read_text() == "10"  # by number: "2" is later by name
    assert checkpoints.repair(folder) == []


def test_contents_that_were_not_saved_are_not_missed(folder: Path) -> None:
    for path in (folder / "global_step_12" / "actor").glob("optim_*"):
        path.unlink()
    assert "optim" in str(checkpoints.damage(folder / "global_step_12"))
    assert checkpoints.repair(folder, ["model", "extra", "hf_model"]) == []


@pytest.mark.parametrize(
    ("tracker", "harmed", "chosen"),
    [
        *((None, [12], 10), ("", [12], 10), ("1x", [12], 10)),  # an illegible tracker
        ("10", [10], 2),  # one of an abandoned branch comes last, but before nothing
        ("10", [10, 2], 12),
    ],
)
def test_the_checkpoint_to_resume_from(
    folder: Path, tracker: str | None, harmed: list[int], chosen: int
) -> None:
    (folder / checkpoints.TRACKER).unlink()
    if tracker is not None:
        (folder / checkpoints.TRACKER).write_text(tracker)
    for step in harmed:
        (folder / f"global_step_{step}" / "data.pt").unlink()  # a kill in the middle of saving
    assert f"from step {chosen}" in checkpoints.repair(folder)[0]
    assert (folder / checkpoints.TRACKER).read_text() == str(chosen)


def test_with_nothing_whole_a_run_never_starts_from_scratch_by_itself(folder: Path) -> None:
    for step in (2, 10, 12):
        HARM["no data loader"](folder / f"global_step_{step}")
    for tracker, message in (("12", "names step 12.*step 2: data.pt is missing"), ("", "is there")):
        (folder / checkpoints.TRACKER).write_text(tracker)
        with pytest.raises(ConfigError, match=message):
            checkpoints.repair(folder)
    assert (folder / checkpoints.TRACKER).exists()


def test_a_first_checkpoint_that_a_kill_cut_is_no_reason_not_to_start(tmp_path: Path) -> None:
    assert checkpoints.repair(tmp_path / "none") == []
    (save(tmp_path, 5) / "data.pt").unlink()
    assert "step 5 is not whole" in checkpoints.repair(tmp_path)[0]
    assert not (tmp_path / checkpoints.TRACKER).exists()


def test_saving_over_an_old_try_is_never_taken_for_whole(folder: Path) -> None:
    checkpoints.begin(folder / "global_step_12")
    assert checkpoints.damage(folder / "global_step_12") == "data.pt is missing"
    checkpoints.begin(folder / "global_step_14")


@pytest.mark.parametrize(
    ("tracked", "last", "every", "best", "gone"),
    [
        (50, None, None, None, []),
        (50, 1, None, None, [10, 20, 30, 40]),
        (50, 2, None, None, [10, 20, 30]),
        (50, 2, 20, None, [10, 30]),
        (50, 2, 20, 10, [30]),
        (50, 9, None, None, []),
        (30, 1, None, None, [10, 20]),
        (None, 1, None, None, []),
    ],
)
def test_retention(
    tracked: int | None, last: int | None, every: int | None, best: int | None, gone: list[int]
) -> None:
    # Those after the tracked one are being written, or of a branch that was left: not touched.
    assert checkpoints.surplus([30, 10, 50, 40, 20, 60], tracked, last, every, best) == gone


def test_a_deletion_that_a_kill_cut_leaves_no_half_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *a, **k: None)  # killed right after the renaming
        checkpoints.delete(folder, [2])
    assert checkpoints.saved_steps(folder) == [10, 12]
    assert len(list(folder.glob(".deleted_*"))) == 1
    checkpoints.repair(folder)
    assert not list(folder.glob(".deleted_*"))
