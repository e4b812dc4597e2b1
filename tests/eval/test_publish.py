"""Exports of scores and model cards: the files by hand, and the readers of other tools."""

import contextlib
import hashlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fake_engine import changing, write_checkpoint
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eval.ask.checkpoints import from_manifest
from eval.show import publish
from eval.show.publish import main
from prompt_aug.base.files import write_json
from prompt_aug.questions import make_question, write_parquet

OUTCOMES = {"toy": [[1, 0], [1, 1], [0, 0], [1, 1]]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "grpo"
    write_checkpoint(folder / "eval" / "s", 0, {"toy": [[0, 0]] * 4})
    write_checkpoint(folder / "eval" / "s", 20, OUTCOMES, response="thus \ud800<b>", gold="7")
    exported = folder / "hf" / "step_20"
    exported.mkdir(parents=True)
    (exported / "config.json").write_text("{}")
    files = {"config.json": hashlib.sha256(b"{}").hexdigest()}
    write_json(exported / "manifest.json", {"step": 20, "files": files})
    with changing(folder / "eval" / "s" / "step_20" / "scores.json") as record:
        record["identity"] = from_manifest(exported, 20).identity
    write_json(folder / "hf" / "step_0" / "manifest.json", {"step": 0, "model_path": "some/model"})
    return folder


@pytest.mark.config  # imports torch
def test_scores_in_tensorboard_are_replaced_and_not_repeated(run: Path) -> None:
    training = run / "tensorboard" / "events.out.tfevents.1.host"
    training.parent.mkdir()
    training.write_bytes(b"")
    for _ in range(2):
        assert main([str(run), "--log", "tensorboard"]) == 0
    assert training.exists()
    assert list(training.parent.glob("events*")) == [training]  # an open TensorBoard reads it on
    events = EventAccumulator(str(training.parent / "eval")).Reload()
    points = [(e.step, e.value) for e in events.Scalars("eval/toy/accuracy")]
    assert points == [(0, 0.0), (20, 0.625)]


def test_scores_in_a_wandb_run_beside_that_of_the_training(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the calls of wandb: it drops steps below the last one, so the training's are its own."""
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    (run / ".wandb_run_id").write_text("abcd1234")
    (run / "config.yaml").write_text("trainer: {project_name: p, experiment_name: grpo}\n")
    started, axes, rows = list[dict[str, Any]](), dict[str, Any](), list[dict[str, Any]]()

    @contextlib.contextmanager
    def init(**settings: Any) -> Iterator[SimpleNamespace]:
        started.append(settings)
        define = lambda name, step_metric=None: axes.update({name: step_metric})  # noqa: E731
        log = lambda row, step: rows.append({"at": step, **row})  # noqa: E731
        yield SimpleNamespace(id=settings["id"], define_metric=define, log=log)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    assert main([str(run), "--log", "wandb"]) == 0
    assert axes == {"eval/step": None, "eval/*": "eval/step"}
    points = [(row["at"], row["eval/step"], row["eval/toy/accuracy"]) for row in rows]
    assert points == [(0, 0, 0.0), (20, 20, 0.625)]
    assert main([str(run), "--log", "wandb"]) == 0
    assert started[0] == started[1]  # wandb ignores the steps that it has
    assert started[0].items() >= {"project": "p", "group": "grpo", "resume": "allow"}.items()
    write_checkpoint(run / "eval" / "s", 0, {"toy": [[1, 0]] * 4})
    assert main([str(run), "--log", "wandb"]) == 0
    ids = {settings["id"] for settings in started}
    assert len(ids) == 2 and all(name.startswith("abcd1234-") for name in ids)


def test_wandb_without_a_login_has_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("no key\nand more")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=ValueError))
    assert main([str(run), "--log", "wandb"]) == 1
    error = capsys.readouterr().err
    assert "--log wandb: no key" in error and "WANDB_MODE" in error and error.count("\n") == 1


# ------------------------------------------------------------------------- model card


def card_of(run: Path, **sections: Any) -> ModelCard:
    """Return the card of a run with this configuration."""
    if sections:
        (run / "config.yaml").write_text(yaml.safe_dump(sections))
    assert main([str(run), "--card"]) == 0
    return ModelCard.load(run / "hf" / "step_20" / "README.md")


def start(model: object) -> dict[str, Any]:
    return {"actor_rollout_ref": {"model": {"path": str(model)}}}


def test_the_card_has_scores_and_prompt(run: Path) -> None:
    read = card_of(run)
    (result,) = read.data.eval_results or []
    assert (result.dataset_name, result.metric_value) == ("toy", 62.5)
    assert "| toy | 4 of 4 x 2 | 62.5" in read.text
    assert "\n- role: user\n  content: '{question}'\n" in read.text
    assert not (run / "hf" / "step_0" / "README.md").exists()  # another owner's model
    picked = {"benchmark": "toy", "kind": "validation", "step": 20, "reason": ""}
    write_json(run / "eval" / "s" / "selection.json", {**picked, "scores": {"20": 0.625}})
    assert "too high" in card_of(run).text
    (run / "hf" / "step_20" / "manifest.json").unlink()
    assert main([str(run), "--steps", "20", "--card"]) == 1


def test_the_card_names_base_model_license_data_and_method(run: Path, tmp_path: Path) -> None:
    (run / "data").mkdir()
    questions = [make_question(text="1+1?", answers=["2"], source=s) for s in ("gsm8k", "mine")]
    write_parquet(questions, run / "data" / "train.parquet")
    recipe = {"advantage": {"name": "ta_grpo"}, "augment": {"templates": ["abel", "qwen-math"]}}
    card = card_of(run, **start("Owner/Base-1.5B"), recipe=recipe)
    assert (card.data.base_model, card.data.datasets) == ("Owner/Base-1.5B", ["openai/gsm8k"])
    assert "| method | advantage ta_grpo |" in card.text and "abel, qwen-math" in card.text
    assert "| training data | gsm8k, mine |" in card.text
    snapshot = tmp_path / "hub" / "models--Owner--Base" / "snapshots" / "1f"
    assert card_of(run, **start(snapshot)).data.base_model == "Owner/Base"
    base = tmp_path / "private" / "base"
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: [mit\n---\n# Base\n")
    assert card_of(run, **start(base)).data.license is None
    (base / "README.md").write_text("---\nlicense: mit\n---\n# Base\n")
    card = card_of(run, **start(base))
    assert (card.data.license, card.data.base_model) == ("mit", None)
    assert "| base model | base |" in card.text and "private" not in card.content


def test_the_card_keeps_a_license_and_names_the_command_of_its_upload(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a run may have a space; nothing is sent."""
    run = run.rename(tmp_path / "my run")
    page = run / "hf" / "step_20" / "README.md"
    assert main([str(run), "--steps", "20", "--card"]) == 0
    page.write_text(page.read_text().replace("---\n", "---\nlicense: mit\n", 1))
    assert main([str(run), "--steps", "20", "--card"]) == 0
    assert ModelCard.load(page).data.license == "mit"
    (line,) = re.findall(r"hf upload .*", capsys.readouterr().out.splitlines()[-1])
    name, *rest = shlex.split(line)[2:]
    validate_repo_id(name)
    assert name.endswith("step_20") and rest == [str(page.parent), "--private"]
    terms = "license: other\nlicense_name: mine\nlicense_link: LICENSE\n"
    page.write_text(page.read_text().replace("license: mit\n", terms, 1))
    assert main([str(run), "--steps", "20", "--card"]) == 0
    data = ModelCard.load(page).data
    assert (data.license, data.license_name, data.license_link) == ("other", "mine", "LICENSE")


def test_a_relative_path_is_no_hub_id(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one if the run's export of step 0 found no folder, or if it is in the cache."""
    assert card_of(run, **start("models/base")).data.base_model is None
    (run / "own" / "base").mkdir(parents=True)
    assert card_of(run, **start("own/base")).data.base_model is None
    with changing(run / "hf" / "step_0" / "manifest.json") as manifest:
        manifest["files"] = {"config.json": "0"}
    assert card_of(run, **start("Owner/Base")).data.base_model is None
    (run / "hf" / "step_0" / "manifest.json").unlink()
    assert card_of(run, **start("Owner/Base")).data.base_model is None
    monkeypatch.setattr(publish, "try_to_load_from_cache", lambda *_: "/cache/file")
    assert card_of(run, **start("Owner/Base")).data.base_model == "Owner/Base"


def test_other_weights_than_those_of_the_scores_are_not_published(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exported again after a roll-back, for instance."""
    exported = run / "hf" / "step_20"
    (exported / "config.json").write_text("[]")
    files = {"config.json": hashlib.sha256(b"[]").hexdigest()}
    write_json(exported / "manifest.json", {"step": 20, "files": files})
    assert main([str(run), "--steps", "20", "--card"]) == 1
    assert "other weights now: s/step_20" in capsys.readouterr().out
    assert not (exported / "README.md").exists()
    assert main([str(run), "--card"]) == 0 and not (exported / "README.md").exists()
