"""One launch script under verl's own main_ppo and under `recipe.train --script`: the same training.

A model of two layers, three steps, the same recorded responses (tests/helpers/referee.py). A run
whose advantages have the other sign must differ in every way.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from referee import GROUP, STEPS
from tiny_model import save_tiny

from recipe.config.base import CONFIG, flat
from recipe.machine.environment import COMMON, CPU

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
HELPERS = Path(__file__).resolve().parents[1] / "helpers"
QUESTIONS = 4  # a step, in one mini-batch: its order then does not matter
SETTINGS = """
algorithm.adv_estimator=grpo data.train_files=q.parquet data.val_files=q.parquet data.shuffle=False
data.train_batch_size={questions} data.max_prompt_length=96 data.max_response_length=12
data.dataloader_num_workers=0 actor_rollout_ref.model.path=model actor_rollout_ref.rollout.n={group}
actor_rollout_ref.actor.ppo_mini_batch_size={questions} actor_rollout_ref.actor.optim.lr=1e-4
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows}
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={rows}
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={rows}
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.05
actor_rollout_ref.actor.entropy_coeff=0.01 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.dtype=float32 actor_rollout_ref.rollout.max_model_len=108
actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16
reward.custom_reward_function.path=$HELPERS/referee.py reward.reward_manager.name=dapo
+reward.custom_reward_function.reward_kwargs.scale=0.5
+reward.reward_kwargs.overlong_buffer_cfg.enable=True +reward.reward_kwargs.max_resp_len=12
+reward.reward_kwargs.overlong_buffer_cfg.len=4
+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
+reward.reward_kwargs.overlong_buffer_cfg.log=False ++ray_kwargs.ray_init.address=local
trainer.logger=[console] trainer.val_before_train=False trainer.total_epochs=1
trainer.default_local_dir=verl
"""


def write_files(folder: Path) -> None:
    """The model, questions with and without a system message, and the script."""
    save_tiny(folder / "model", seed=0)
    system = [{"role": "system", "content": "Only digits.\n"}]
    rows = [
        {
            "data_source": "own",
            "prompt": [*(system if i % 2 else []), {"role": "user", "content": f" {i} + 1?\n"}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 10)},
            "extra_info": {"index": i},
        }
        for i in range(STEPS * QUESTIONS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "q.parquet")
    words = SETTINGS.format(questions=QUESTIONS, group=GROUP, rows=QUESTIONS * GROUP).split()
    machine = yaml.safe_load((CONFIG / "machine" / "cpu.yaml").read_text())
    for key, value in flat(machine):
        if value is not None and not key.startswith(("recipe.", "critic.")):
            text = "float32" if "${" in str(value) else str(value)
            words.append(f"++{key}={text}")
    words.append("actor_rollout_ref.model.external_lib=recipe.patches.cpu.engines")
    script = " \\\n    ".join(["python3 -m verl.trainer.main_ppo", *words])
    (folder / "run.sh").write_text(f'set -ex\nHELPERS={HELPERS}\n{script} "$@"\n')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("referee")
    write_files(folder)
    train = [sys.executable, "-m", "recipe.train", "--script", "run.sh"]
    commands = {
        "verl": ["bash", "run.sh"],
        "ours": [*train, "recipe.run_dir=run"],
        "flipped": [*train, "recipe.run_dir=other", "recipe.advantage.name=referee.flipped"],
    }
    paths = [str(HELPERS), str(HELPERS.parents[1]), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    for name, command in commands.items():
        (folder / name).mkdir()
        own = {
            **{"REFEREE": str(folder / name), "OMP_NUM_THREADS": "1", "RECIPE_ENGINE_THREADS": "1"},
            **{"PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)},
            "VERL_USE_EXTERNAL_MODULES": "recipe.plugin,referee",
        }
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **COMMON, **CPU, **own},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    yield folder


def distances(run: Path, other: Path) -> dict[str, float]:
    """The largest differences of two runs over their steps: absolute of rows, else relative."""
    largest = dict.fromkeys(("tokens", "rewards", "advantages", "gradients"), 0.0)

    def see(name: str, value: float) -> None:
        largest[name] = max(largest[name], value)

    for step in range(1, STEPS + 1):
        rows = [json.loads((x / f"rows_{step}.json").read_text()) for x in (run, other)]
        assert len(rows[0]) == len(rows[1]) == QUESTIONS * GROUP
        for first, second in zip(*rows, strict=True):
            see("tokens", float(first[:2] != second[:2]))
            for name, a, b in zip(("rewards", "advantages"), first[2:], second[2:], strict=True):
                see(name, max(abs(x - y) for x, y in zip(a, b, strict=True)))
        one, two = (torch.load(x / f"gradients_{step}.pt") for x in (run, other))
        see("gradients", relative(one, two, {}))
    start, *ends = (torch.load(run / "start.pt"), *(torch.load(x / "end.pt") for x in (run, other)))
    return {**largest, "weights": relative(*ends, start)}


def relative(one: dict, two: dict, start: dict) -> float:
    """|one - two| / |two - start|, over all parameters."""
    assert one.keys() == two.keys() != set()
    apart = sum(((one[name] - two[name]) ** 2).sum() for name in one)
    moved = sum(((two[name] - start.get(name, 0)) ** 2).sum() for name in two)
    return float((apart / moved) ** 0.5)


LIMITS = {"tokens": 0.0, "rewards": 1e-12, "advantages": 1e-12, "gradients": 1e-5, "weights": 0.01}


def test_a_script_trains_as_under_verl(folder: Path) -> None:
    found = distances(folder / "ours", folder / "verl")
    assert all(found[name] <= limit for name, limit in LIMITS.items()), found
    rows = json.loads((folder / "verl" / "rows_1.json").read_text())
    assert len({tuple(row[2]) for row in rows}) > QUESTIONS  # the rewards say something


def test_a_flipped_sign_is_seen(folder: Path) -> None:
    found = distances(folder / "flipped", folder / "verl")
    assert (found["tokens"], found["rewards"]) == (0.0, 0.0)
    assert all(found[name] > 0.5 for name in ("advantages", "gradients", "weights")), found
