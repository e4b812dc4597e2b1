"""Every published layer once, from a training step over the export to the scores of a sweep."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from method_runs import Runner, finite

from prompt_aug.base.files import read_json, read_lines
from prompt_aug.prompts import Prompts
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]
# Method and sizes of the toy world: the layers set those of the papers.
LAYERS = {"ta_grpo": "ta_grpo", "cw_grpo": "cw_grpo", "prompt_aug": "prompt_aug"}
SIZES = ["data.max_prompt_length=200", "data.max_response_length=40", "recipe.toy.templates=null"]
SIZES += ["recipe.reward.overlong.buffer=40", "trainer.save_freq=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("published"))
    bank = f"recipe.augment.bank={shared_data / 'published_templates.json'}"
    for layer, method in LAYERS.items():
        limit = 220 if layer == "cw_grpo" else 240  # prompt and response together
        own = [bank] if layer == "prompt_aug" else []
        sizes = [*SIZES, f"actor_rollout_ref.rollout.max_model_len={limit}", *own]
        runner.start(layer, method, f"published={layer}", *sizes, steps=1)
    yield runner
    runner.pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("layer", LAYERS)
def test_one_step_with_a_published_layer(runs: Runner, layer: str) -> None:
    (metrics,) = runs.finish(layer)
    assert finite([metrics])
    folder = RunFolder(runs.base / layer)
    prompts = Prompts.read(folder.prompts)
    assert prompts.form.style == "chat"
    assert prompts.form.instruction == ("user" if layer == "ta_grpo" else "system")
    drawn = {line["template"] for line in read_lines(folder.rollouts(1))}
    assert drawn <= set(prompts.bank.names)
    assert ("actor/kl_loss" in metrics) == (layer != "prompt_aug")


@pytest.mark.parametrize("layer", LAYERS)
def test_its_checkpoint_is_exported_and_evaluated_with_its_prompts(
    runs: Runner, layer: str
) -> None:
    runs.finish(layer)
    run = runs.base / layer
    for command in (
        ("recipe.export", str(run)),
        ("eval.sweep", str(run), "--samples", "1", "--max-questions", "4", "--max-tokens", "8"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    trained = Prompts.read(RunFolder(run).prompts)
    for step in (0, 1):
        (scores,) = (run / "eval").glob(f"*/step_{step}/scores.json")
        settings = read_json(scores)["settings"]
        assert settings["template"] in trained.bank.names
        assert settings["style"] == trained.form.style
        assert settings.get("instruction", "system") == trained.form.instruction
        (samples,) = scores.parent.glob("toy_test/samples-*.jsonl")
        assert len(read_lines(samples)) == 1 + 4  # the first line describes the engine
