"""Findings in launch scripts: keys, values, dead keys; and scripts that are fine or skipped."""

from pathlib import Path

import pytest

from recipe import lint

pytestmark = pytest.mark.config
HEAD = "set -x\nsteps=3\nn=${N:-8}\npython3 -m verl.trainer.main_ppo "
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("data.train_batch_sise=8", "data.train_batch_sise=8: no key"),
        (f"{R}.n_val=2", f"set {R}.val_kwargs.n"),
        (f"{R}.top_p=$steps", f"{R}.top_p=3: should be less"),
        (f"{A}.kl_loss_coef=0.1", f"no effect with {A}.use_kl_loss=false"),
        ("critic.model.path=m algorithm.adv_estimator=grpo", "no effect with critic.enable=null"),
        # Negative controls
        ("data.train_batch_size=$UNSET trainer.total_training_steps=$((2 * steps))", None),
        (f"{A}.use_kl_loss=False {A}.kl_loss_coef=0.1  # trainer.typo=1", None),
        ("model_engine=megatron trainer.typo=1", None),
    ],
)
def test_findings(
    settings: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(HEAD + " \\\n    ".join(["", *settings.split(" ", 1)]) + "\n")
    assert lint.main([str(script)]) == bool(message)
    output = capsys.readouterr().out
    assert message is None or (message in output and f"{script}:5: " in output)


def test_a_configuration_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("defaults: [recipe]\nrecipe:\n  name: x\n  sede: 3\n")
    assert lint.main([str(path), "recipe.seed=x"]) == 1
    output = capsys.readouterr().out
    assert f"{path}:4: recipe.sede=3: no key 'recipe.sede', did you mean recipe.seed?" in output
