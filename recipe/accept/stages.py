"""The stages of the acceptance run: what each starts, what it needs, what figures it gives."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prompt_aug.base.files import read_json
from recipe.run import folder as run_folder

Figures = dict[str, float]
LEAST_CORRELATION = 0.99  # of the engine's and the actor's probabilities of the same tokens
MOST_LOGPROB_ERROR = 0.1  # nats, bfloat16 against float32
LEAST_COSINE = 0.99  # of their gradients
RUNS = {"prompt_aug": 2, "ta_grpo": 1, "cw_grpo": 1}  # steps of each method
# Key of metrics.jsonl -> its line on the page.
TRAINING = {
    "timing_s/gen": "rollouts, s",
    "timing_s/old_log_prob": "log-probs, s",
    "timing_s/update_actor": "update, s",
    "timing_s/update_weights": "weights to the engine, s",
    "timing_s/step": "step, s",
    "perf/throughput": "tokens/s per GPU, whole step",
    "perf/mfu/actor": "MFU of the update",
    "perf/max_memory_allocated_gb": "peak memory of the actor, GB",
}
SIZES = [
    *("trainer.nnodes=1", "trainer.n_gpus_per_node=1", "trainer.test_freq=-1"),
    *("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
    *("data.max_prompt_length=512", "data.max_response_length=1024"),
    "actor_rollout_ref.rollout.max_model_len=1536",
]


class StageError(Exception):
    """A figure is outside its limits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """`command` is started in a process of its own, unless the stage only reads figures."""

    name: str
    command: list[str]
    needs: tuple[str, ...] = ()
    figures: Callable[[], Figures] = dict
    seconds: float = 600.0


def module(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", name, *map(str, arguments)]


def last_line(run: Path) -> dict[str, float]:
    lines = run_folder.read_metrics(run)
    if not lines:
        raise StageError(f"{run} has no step")
    return lines[-1]


def training(run: Path) -> Figures:
    """What the last step of a run says of itself; the first one also compiles and warms up."""
    line = last_line(run)
    return {label: float(line[key]) for key, label in TRAINING.items() if key in line}


def hand_over(run: Path) -> Figures:
    """Whether the engine has the actor's weights: same tokens, same probabilities."""
    key = "training/rollout_actor_probs_pearson_corr"
    value = float(last_line(run).get(key, float("nan")))
    if not value >= LEAST_CORRELATION:
        raise StageError(f"{key} is {value:.4f}, wanted {LEAST_CORRELATION} or more")
    return {"correlation of engine and actor": value}


def reference(path: Path) -> Figures:
    """The figures of recipe.accept.reference, inside their limits."""
    found = read_json(path)
    if not found["largest log-prob error, nats"] <= MOST_LOGPROB_ERROR:
        raise StageError(f"log-probs are off: {found}")
    if not found["cosine of the gradients"] >= LEAST_COSINE:
        raise StageError(f"gradients are off: {found}")
    return found


def stages(folder: Path, cpu: bool) -> list[Stage]:
    """Three short trainings: on the CPU of the toy model, on a GPU of one of 1.5B."""
    model = folder / "model"
    made = [
        Stage(name="doctor", command=module("recipe.doctor", "--runs", folder)),
        Stage(name="model", command=module("recipe.accept.model", folder, *["--cpu"] * cpu)),
        Stage(
            name="loss and gradient",
            command=module("recipe.accept.reference", model, folder / "reference.json"),
            needs=("model",),
            figures=lambda: reference(folder / "reference.json"),
        ),
    ]
    for method, steps in RUNS.items():
        run = folder / method
        made.append(
            Stage(
                name=f"train {method}",
                command=module("recipe.train", *train(folder, method, steps, cpu)),
                needs=("model",),
                figures=functools.partial(training, run),
            )
        )
    return [*made, *after_training(folder)]


def after_training(folder: Path) -> list[Stage]:
    """What examines the trained runs: the transfer of weights, the exports, the evaluation."""
    run, made = folder / "prompt_aug", f"made={folder}/data/test.parquet"
    # Of two runs, since a step that is exported in one dtype is refused in another.
    exports = [
        Stage(
            name=f"export {dtype}",
            command=module("recipe.export", folder / method, "--dtype", dtype),
            needs=(f"train {method}",),
        )
        for method, dtype in (("cw_grpo", "bfloat16"), ("prompt_aug", "float32"))
    ]
    return [
        Stage(
            name="weights",
            command=[],
            needs=("train prompt_aug",),
            figures=lambda: hand_over(run),
        ),
        *exports,
        # The start model and the trained one: an engine, then another in its place.
        Stage(
            name="evaluation",
            command=module("eval.sweep", run, "--benchmark", made, "--max-questions", 8),
            needs=("export float32",),
        ),
    ]


def train(folder: Path, method: str, steps: int, cpu: bool) -> list[str]:
    """The arguments of recipe.train; every run saves its last step."""
    data = [f"data.train_files=[{folder}/data/train.parquet]"]
    data += [f"data.val_files=[{folder}/data/validation.parquet]"]
    where = [f"recipe.run_dir={folder / method}", f"recipe.model_path={folder / 'model'}", *data]
    count = [f"trainer.total_training_steps={steps}", f"trainer.save_freq={steps}"]
    if cpu:
        small = ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=8", "trainer.test_freq=-1"]
        small += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16"]
        small += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32"]
        toy = ["recipe.toy.enable=false"]
        return ["toy_methods", f"method={method}", *where, *count, *toy, *small]
    return [method, *where, *count, *SIZES]
