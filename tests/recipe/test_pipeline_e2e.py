"""A small run on the CPU: real trainer and engine, an early end, a resume, export, evaluation.

A fifth of its questions are from MATH, if the folder of real data exists. The run is ended early by
SIGTERM, and steps that are trained again must have the same results. The asynchronous trainers with
no window must have them, too; one of these runs is ended by SIGKILL.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from prompt_aug.base.files import read_json, read_lines
from prompt_aug.draw import draw
from prompt_aug.questions import Question, make_question, read_parquet, write_parquet
from prompt_aug.templates import load_bank
from recipe.run import checkpoints, processes
from recipe.run import folder as run_folder

# A busy machine takes several times longer than an idle one.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
NAMES = ["qwen-math", "deepseek-r1", "lm_eval_prompt4", "reflective_prompt"]
STEPS = 6
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


MATH = "math_level3to5/SimpleRL-simplelr_qwen_level3to5.train.parquet"
REAL = 8


def make_questions(folder: Path) -> Path:
    """40 questions: sums, and short real ones prepared by their command."""
    real: list[Question] = []
    if (SHARED_DATA / MATH).is_file():
        prepared = folder / "math.parquet"
        options = ["--preset=math-level3to5", "--no-benchmarks"]
        done = call(
            sys.executable, "-m", "prompt_aug.prepare", SHARED_DATA / MATH, prepared, *options
        )
        assert done.returncode == 0, done.stderr[-3000:]
        latex = [q for q in read_parquet(prepared) if "\\" in q.text]
        real = sorted(latex, key=lambda q: (len(q.text), q.uid))[:REAL]
    sums = [
        make_question(text=f"What is {n} + {n + 7}?", answers=[str(2 * n + 7)], source="sums")
        for n in range(40 - len(real))
    ]
    path = folder / "train.parquet"
    write_parquet([*real, *sums], path)
    return path


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def command(run: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "recipe.train", "toy"),
        *(f"recipe.run_dir={run}", "eval.max_questions=20", "data.val_max_samples=20"),
        *("data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=4", f"{ROLLOUT}.n=4"),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16",
        f"data.train_files=[{run.parent}/train.parquet]",
        # LaTeX takes about a token for every byte.
        *("data.max_prompt_length=320", f"{ROLLOUT}.max_model_len=400"),
        *("trainer.logger=[tensorboard,wandb]", f"trainer.validation_data_dir={run}/validation"),
        *(f"trainer.total_training_steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=2"),
        *more,
    ]


def call(*arguments: Any, timeout: float = 600) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(a) for a in arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "WANDB_MODE": "offline"},
    )


@dataclass
class Launched:
    """A start of the run and its output."""

    run: Path
    process: subprocess.Popen
    log: Path

    def wait_for(self, condition: Any) -> None:
        end = time.monotonic() + 1200
        while not condition():
            assert self.process.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < end, "the run did not get there in time"
            time.sleep(0.2)

    def wait_for_three_steps(self) -> None:
        self.wait_for(lambda: len(run_folder.read_metrics(self.run)) >= 3)


def launch(run: Path, *more: str) -> Launched:
    log = run.with_suffix(".log")
    environment = {**os.environ, "WANDB_MODE": "offline"}
    with log.open("w") as file:
        process = subprocess.Popen(command(run, *more), stdout=file, stderr=file, env=environment)
    return Launched(run, process, log)


def records(run: Path) -> dict[int, tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The rollouts and the metrics of each step on disk now."""
    return {m["step"]: (rollouts(run, m["step"]), m) for m in run_folder.read_metrics(run)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A run that gets SIGTERM, loses its last checkpoint, resumes and finishes."""
    base = tmp_path_factory.mktemp("pipeline")
    run = base / "run"
    make_questions(base)
    seen: dict[str, Any] = {"run": run}
    terminate(launch(run), seen)
    seen["resumed"] = call(*command(run))
    seen["again"] = call(*command(run))
    yield seen
    processes.end(str(run))


def terminate(first: Launched, seen: dict[str, Any]) -> None:
    """SIGTERM after the third step; then the checkpoint that it saved is damaged."""
    run = first.run
    first.wait_for((run / "config.yaml").exists)
    seen["second_start"] = call(*command(run))
    first.wait_for_three_steps()
    first.process.send_signal(signal.SIGTERM)
    seen["code"] = first.process.wait(300)
    seen["log"] = first.log.read_text()
    seen["left"] = processes.marked(str(run))
    seen["steps"] = [m["step"] for m in run_folder.read_metrics(run)]
    seen["saved"] = saved = checkpoints.tracked_step(run / "checkpoints")
    seen["before"] = {step: record for step, record in records(run).items() if step >= 3}
    folder = run / "checkpoints" / f"global_step_{saved}"
    seen["damage"] = checkpoints.damage(folder)
    shard = folder / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:5000])


def test_sigterm_saves_and_exits_with_75(finished: dict[str, Any]) -> None:
    assert finished["code"] == 75, finished["log"][-3000:]
    assert "the same command continues" in finished["log"]
    assert finished["left"] == []
    assert finished["saved"] in (3, 4)  # 2 was the last one by save_freq
    assert finished["damage"] is None
    assert finished["steps"] == list(range(1, finished["saved"] + 1))
    # A second start meanwhile was rejected.
    assert finished["second_start"].returncode == 1
    assert "in use by process" in finished["second_start"].stderr
    assert "Traceback" not in finished["second_start"].stderr


def test_the_resumed_run_has_every_step_once_and_a_finished_one_starts_nothing(
    finished: dict[str, Any],
) -> None:
    assert finished["resumed"].returncode == 0, finished["resumed"].stderr[-3000:]
    output = finished["resumed"].stdout + finished["resumed"].stderr
    assert f"step {finished['saved']} is not whole" in output
    assert "going on from step 2" in output
    lines = run_folder.read_metrics(finished["run"])
    assert [m["step"] for m in lines] == list(range(1, STEPS + 1))
    assert [m["train/optimizer_steps"] for m in lines] == [2, 4, 6, 8, 10, 12]
    seconds = [m["train/wall_seconds"] for m in lines]
    assert seconds == sorted(seconds)
    assert finished["again"].returncode == 0
    environment = read_json(finished["run"] / "environment.json")
    assert len(environment["resumed"]) == 1  # not the call for a finished run
    assert "done already" in finished["again"].stdout
    assert "starting Ray" not in finished["again"].stdout + finished["again"].stderr
    assert processes.marked(str(finished["run"])) == []
    assert list((finished["run"] / "tensorboard").rglob("events.out.tfevents.*"))
    assert list((finished["run"] / "wandb").glob("offline-run-*"))


def rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    path = run / "rollouts" / f"step_{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_templates_are_the_draws_of_seed_epoch_and_question(finished: dict[str, Any]) -> None:
    used = set()
    for step in range(1, STEPS + 1):
        rows = rollouts(finished["run"], step)
        assert len(rows) == 8 * 4
        for row in rows:
            # 40 questions, 8 a step: five steps of epoch 0, also those after the resume
            epoch = (step - 1) // 5
            assert row["template"] == draw(seed=0, epoch=epoch, uid=row["uid"], names=NAMES)
            used.add(row["template"])
    assert used == set(NAMES)
    uids = [r["uid"] for s in range(1, 6) for r in rollouts(finished["run"], s)]
    assert len(set(uids)) == 8 * 5  # no question twice within the epoch


# Values that depend on the clock, the machine's load or the order of arrival.
TIMED = ("timing", "perf/", "actor/perf", "train/wall_seconds", "replay_buffer/")


def assert_equal(
    one: tuple[Any, dict[str, Any]], two: tuple[Any, dict[str, Any]], keys: set[str]
) -> None:
    """The same tokens, and metrics equal to 1e-6: the last bits of log-probabilities depend on
    which requests share the engine's batch."""
    assert one[0] == two[0]
    assert one[1]["actor/grad_norm"] > 0  # so the tokens of the next step depend on this one
    assert {"train/entropy", "actor/loss", "actor/grad_norm"} <= keys
    for key in keys:
        assert one[1][key] == pytest.approx(two[1][key], abs=1e-6, nan_ok=True), key


def test_steps_trained_again_have_the_same_results(finished: dict[str, Any]) -> None:
    again = records(finished["run"])
    assert 3 in finished["before"]
    for step, record in finished["before"].items():
        keys = {key for key in record[1] if not key.startswith(TIMED)}
        assert_equal(record, again[step], keys)


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_without_a_window_an_asynchronous_trainer_trains_the_same_tokens(
    finished: dict[str, Any], mode: str
) -> None:
    """Two updates a step. A SIGKILL then leaves no process."""
    run = finished["run"].with_name(mode)
    settings = [f"trainer.v1.trainer_mode=recipe_{mode}"]
    settings += [f"trainer.v1.{mode}.num_warmup_batches=0"]
    settings += ["algorithm.rollout_correction.rollout_is=null"]
    settings += ["trainer.save_freq=-1", "trainer.test_freq=-1"]
    settings += [f"{ROLLOUT}.nnodes=1"] * (mode == "separate_async")
    training = launch(run, *settings)
    try:
        training.wait_for_three_steps()
        assert len(processes.marked(str(run))) > 3  # Ray and vLLM
        training.process.kill()
        training.process.wait()
        end = time.monotonic() + 60
        while processes.marked(str(run)) and time.monotonic() < end:
            time.sleep(0.5)
        assert processes.marked(str(run)) == []
    finally:
        processes.end(str(run))
    seen, synchronous = records(run), records(finished["run"])
    for step in (1, 2, 3):
        both = seen[step][1].keys() | synchronous[step][1].keys()
        # Only the synchronous run validates, only the other one measures staleness.
        keys = {key for key in both if not key.startswith((*TIMED, "val/", "staleness/"))}
        assert_equal(seen[step], synchronous[step], keys)
        assert seen[step][1]["staleness/max"] == seen[step][1]["staleness/mixed"] == 0


def test_rewards_are_accuracy_plus_format_and_metrics_are_their_means(
    finished: dict[str, Any],
) -> None:
    for m in run_folder.read_metrics(finished["run"]):
        rows = rollouts(finished["run"], m["step"])
        assert all(r["reward"] == r["accuracy"] + r["format"] for r in rows)
        mean = sum(r["reward"] for r in rows) / len(rows)
        assert m["critic/score/mean"] == pytest.approx(mean, abs=1e-6)
        assert m["train/accuracy"] == pytest.approx(sum(r["accuracy"] for r in rows) / len(rows))


def test_engine_and_actor_agree_after_every_update(finished: dict[str, Any]) -> None:
    # The engine's weights follow the actor's: their log-probs of the same tokens are equal.
    for m in run_folder.read_metrics(finished["run"]):
        assert m["training/rollout_actor_probs_pearson_corr"] > 0.999
        assert m["training/rollout_probs_diff_max"] < 1e-3


def test_validation_uses_the_fixed_template(finished: dict[str, Any]) -> None:
    lines = run_folder.read_metrics(finished["run"])
    assert lines[1]["val/toy_arithmetic/questions"] >= 18
    fixed = load_bank()["qwen-math"].system
    dumped = (finished["run"] / "validation" / f"{STEPS}.jsonl").read_text().splitlines()
    assert len(dumped) >= 18
    assert all(fixed in json.loads(line)["input"] for line in dumped)
    assert "val/toy_arithmetic/accuracy" not in lines[0]


def test_export_evaluation_and_report(finished: dict[str, Any]) -> None:
    run = finished["run"]
    done = call(sys.executable, "-m", "recipe.export", run)
    damaged = finished["saved"] == 3  # otherwise it was trained and saved again
    assert done.returncode == int(damaged), done.stderr[-3000:]
    assert ("recipe.export: step 3: " in done.stderr) == damaged  # and all others are exported
    manifest = read_json(run / "hf" / f"step_{STEPS}" / "manifest.json")
    assert manifest["step"] == STEPS
    trained = AutoModelForCausalLM.from_pretrained(run / "hf" / f"step_{STEPS}").state_dict()
    start_path = read_json(run / "hf" / "step_0" / "manifest.json")["model_path"]
    start = AutoModelForCausalLM.from_pretrained(start_path).state_dict()
    assert any(not torch.equal(trained[name], start[name]) for name in start)
    done = call(sys.executable, "-m", "eval.sweep", run)
    assert done.returncode == 0, done.stderr[-3000:]
    for step in (0, 2, 4, 6):
        (path,) = run.glob(f"eval/*/step_{step}/scores.json")
        scores = read_json(path)
        assert "toy_test" in json.dumps(scores)
    done = call(sys.executable, "-m", "eval.report", run)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = read_json(run / "report" / "summary.json")
    assert [c["step"] for c in summary["checkpoints"]] == [2, 4, 6]
    assert summary["optimizer_steps"] == 12
    assert summary["seed"] == 0
    assert (run / "report" / "index.html").stat().st_size > 10_000


def test_real_questions_are_trained_on_and_asked(
    finished: dict[str, Any], shared_data: Path
) -> None:
    run = finished["run"]
    questions = {q.uid: q for q in read_parquet(run.parent / "train.parquet") if "\\" in q.text}
    assert len(questions) == REAL
    rows = [r for s in range(1, STEPS + 1) for r in rollouts(run, s) if r["uid"] in questions]
    assert len({r["uid"] for r in rows}) == REAL  # five steps are an epoch
    for row in rows:
        assert questions[row["uid"]].text in row["prompt"]
        assert row["gold"] == list(questions[row["uid"]].answers)
        assert row["status"] and not row["accuracy"]
    suite = shared_data / "evaluation_suite" / "math"
    done = call(
        *(sys.executable, "-m", "eval.sweep", run, "--steps", "4", "--out", run / "real"),
        *("--benchmark", f"math500={suite}", "--max-questions", "4", "--max-model-len", "1024"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "math500: accuracy" in done.stdout
    (step,) = (run / "real").glob("*/step_4")
    assert read_json(step / "scores.json")["benchmarks"]["math500"]["questions"] == 4
    (path,) = (step / "math500").glob("samples-*.jsonl")
    samples = read_lines(path)[1:]  # the first line is of the model and the engine
    assert len(samples) == 4 and all(sample["response"] for sample in samples)
