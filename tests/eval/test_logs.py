"""verl's console output as a run folder: small logs in the formats of several versions of verl."""

import math
from pathlib import Path

import numpy as np
import pytest

from eval.show.data import collect
from eval.show.logs import as_run, overrides, read_log
from eval.show.report import main
from eval.show.tables import configurations_table
from prompt_aug.base.files import write_json
from recipe.run.folder import read_config, read_metrics

PREFIX = "\x1b[36m(TaskRunner pid=7)\x1b[0m "
OLD = """\
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=8 \\
    "trainer.logger=['console','wandb']" \\
    +trainer.val_before_train=False \\
    actor_rollout_ref.actor.optim.lr=1.5e-06

Training from scratch
step:0 - timing/gen:1.500 - critic/lr(1e-4):0.100 - val/test_score/openai/gsm8k:0.250
the next step:1 is fine, and so is step:9
step:1 - timing/gen:2.000 - actor/ppo_kl:-0.001 - perf/throughput:10.250Progress:  50%|##
"""


def test_an_old_log_by_hand() -> None:
    zero = {"timing_s/gen": 1.5, "critic/lr(1e-4)": 0.1, "val/openai/gsm8k/accuracy": 0.25}
    one = {"timing_s/gen": 2.0, "actor/ppo_kl": -0.001, "perf/throughput": 10.25}
    assert read_log(OLD) == [{"step": 0, **zero}, {"step": 1, **one}]
    assert dict(overrides(OLD)) == {
        "data.train_batch_size": 8,
        "trainer.logger": ["console", "wandb"],
        "trainer.val_before_train": False,
        "actor_rollout_ref.actor.optim.lr": 1.5e-06,
    }


def test_lines_of_a_step_are_merged_and_a_restart_discards_what_it_repeats() -> None:
    lines = ["step:1 - a:1.0", "step:2 - a:2.0", "step:2 - val-core/my/data/acc/mean@4:0.5"]
    lines += ["step:3 - a:3.0 - b:3.0", "step:2 - a:np.float64(5.0)", "step:3 - a:1e-06"]
    found = read_log("\n".join(PREFIX + line for line in lines))
    assert found == [{"step": n, "a": a} for n, a in ((1, 1.0), (2, 5.0), (3, 1e-06))]


def test_what_verl_prints_is_read() -> None:
    """Round trip through the function of the installed verl."""
    from verl.utils.logger.aggregate_logger import concat_dict_to_str

    metrics = {
        "critic/score/mean": np.float64(0.1) + 0.2,
        "perf/total_num_tokens": 1234567,
        "actor/lr": 1e-06,
        "actor/ppo_kl": -3.5e-05,
        "actor/grad_norm": math.inf,
        "actor/entropy": math.nan,
        "text": "left out by verl",
    }
    (line,) = read_log(PREFIX + concat_dict_to_str(metrics, step=12) + "\n")
    finite = {key: value for key, value in metrics.items() if not isinstance(value, str)}
    finite |= {"step": 12, "actor/grad_norm": None, "actor/entropy": None}
    assert line == finite


@pytest.mark.config
def test_a_report_of_a_log(tmp_path: Path) -> None:
    log, out = tmp_path / "run.log", tmp_path / "out"
    log.write_bytes(b"\xff" + OLD.encode() + b"step:2 - critic/score/mean:0.75 - c:1.0\n")
    assert main(["--log", str(log), "--out", str(out)]) == 0
    run = out / "logs" / "run"
    assert [line["step"] for line in read_metrics(run)] == [0, 1, 2]
    assert read_config(run)["data"] == {"train_batch_size": 8}
    assert "2,0.75" in (out / "reward.csv").read_text()
    assert "0,25" in (out / "validation.csv").read_text()
    assert "eval.sweep" not in (out / "index.html").read_text()  # it is no run of ours


@pytest.mark.config
def test_a_log_beside_a_run_has_no_table_of_its_keys(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.log").write_text(OLD)
    run = as_run(tmp_path / "a.log", tmp_path / "run")
    write_json(
        run / "config.yaml", {"data": {"train_batch_size": 16}, "k": dict.fromkeys("xyz", 1)}
    )
    table = configurations_table(
        [collect(run), collect(as_run(tmp_path / "b.log", tmp_path / "b"))]
    )
    assert table[1:] == [["data.train_batch_size", "16", "8"]]
