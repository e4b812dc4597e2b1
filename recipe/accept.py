"""Accept a node: ``python -m recipe.accept [--cpu | --gpus N] [--only STAGE ...]``.

Run this first on a new site. Its stages are the doctor, a model with random weights, loss and
gradient against float32, three short trainings, the transfer of weights, exports in both dtypes
and an evaluation. On a GPU one training has vLLM's model runner V2, as Qwen3 and Llama have. Each
stage is a separate process; after a failure only the stages that need the failed one are skipped.
Prints a page of figures and writes it to FOLDER/accept.md. ``--cpu`` uses the toy model. Nothing is
downloaded. What it showed on a GPU: requirements/README.md.
"""

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prompt_aug.base.commands import make_parser
from prompt_aug.base.files import read_json, write_text
from prompt_aug.base.progress import Progress
from recipe.run.folder import read_metrics

Figures = dict[str, float]
OWN_MARK = ".acceptance"  # in every folder that this command made and may delete
WORK = "recipe.preflight.accept_work"
LEAST_CORRELATION = 0.99  # of the engine's and the actor's probabilities of the same tokens
MOST_KL = 0.005  # nats a token between them; its estimator k3 is never negative
MOST_LOGPROB_ERROR = 0.1  # nats, bfloat16 against float32
LEAST_COSINE = 0.99  # of their gradients
RUNS = {"prompt_aug": 2, "ta_grpo": 1, "cw_grpo": 2}  # steps of each method
# vLLM 0.24 runs this model, a Qwen2, in its model runner V1, but Qwen3 and Llama in V2. env(1) sets
# the variable for one training.
SECOND_RUNNER = "cw_grpo"
IN_SECOND_RUNNER = ["env", "VLLM_USE_V2_MODEL_RUNNER=1"]
# Random weights earn no reward: an advantage without it. At this rate an engine that missed the
# first update would have a KL of 0.011 and correlate at 0.82 (toy model; measured).
MOVED = ("prompt_aug", SECOND_RUNNER)
MOVING = [f"recipe.advantage.name={WORK}.alternating", "actor_rollout_ref.actor.optim.lr=3e-4"]
# From two runs, since a step exported in one dtype cannot be exported in another.
EXPORTED = {"cw_grpo": "bfloat16", "prompt_aug": "float32"}
# Key of metrics.jsonl -> its line on the page.
TRAINING = {
    "timing_s/gen": "rollouts, s",
    "timing_s/old_log_prob": "log-probs, s",
    "timing_s/update_actor": "update, s",
    "timing_s/update_weights": "weights to the engine, s",
    "timing_s/step": "step, s",
    "perf/throughput": "tokens/s per GPU, whole step",
    "perf/mfu/actor": "MFU of the update",
    "actor/perf/max_memory_allocated_gb": "peak memory of the actor, GiB",
}
ENGINE_SHARE = 0.2  # of the GPU's memory
GPU_SIZES = (
    "trainer.nnodes=1 trainer.test_freq=-1 data.train_batch_size=16 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=8 data.max_prompt_length=512 "
    "data.max_response_length=1024 actor_rollout_ref.rollout.max_model_len=1536 "
    f"actor_rollout_ref.rollout.gpu_memory_utilization={ENGINE_SHARE}"
).split()
CPU_SIZES = (
    "recipe.toy.enable=false data.train_batch_size=4 actor_rollout_ref.rollout.n=8 "
    "trainer.test_freq=-1 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32"
).split()


class StageError(Exception):
    """A figure is outside its limits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A process, or a check of figures if `command` is empty; `needs` names earlier stages."""

    name: str
    command: list[str]
    needs: tuple[str, ...] = ()
    figures: Callable[[], Figures] = dict
    seconds: float = 600.0


@dataclass(kw_only=True, slots=True)
class Result:
    """Outcome of a stage; `why` is empty where it went well."""

    name: str
    why: str = ""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)


def module(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", name, *map(str, arguments)]


def last_line(run: Path) -> dict[str, float]:
    if lines := read_metrics(run):
        return lines[-1]
    raise StageError(f"{run} has no step")


def training(run: Path) -> Figures:
    """Return the times of a run's last step; the first one also compiles and warms up."""
    line = last_line(run)
    return {label: float(line[key]) for key, label in TRAINING.items() if key in line}


def hand_over(run: Path) -> Figures:
    """Check that the engine has the actor's weights: same tokens, same probabilities.

    The last step's engine has weights after an update. Correlation alone does not see a factor: it
    was 0.998 where the engine drew from 534 of 151,936 tokens.
    """
    line, nan = last_line(run), float("nan")
    correlation = float(line.get(key := "training/rollout_actor_probs_pearson_corr", nan))
    if not correlation >= LEAST_CORRELATION:
        raise StageError(f"{key} is {correlation:.4f}, wanted {LEAST_CORRELATION} or more")
    distance = float(line.get(key := "rollout_corr/k3_kl", nan))
    if not distance <= MOST_KL:
        raise StageError(f"{key} is {distance:.4f}, wanted {MOST_KL} at most")
    return {"correlation of engine and actor": correlation, "KL, nats a token": distance}


def reference(path: Path) -> Figures:
    """Check the figures of the comparison with float32."""
    found = read_json(path)
    if not found["largest log-prob error, nats"] <= MOST_LOGPROB_ERROR:
        raise StageError(f"log-probs are off: {found}")
    if not found["cosine of the gradients"] >= LEAST_COSINE:
        raise StageError(f"gradients are off: {found}")
    return found


def train_arguments(folder: Path, method: str, steps: int, cpu: bool, gpus: int = 1) -> list[str]:
    """Return the arguments of recipe.train; a run to export saves its last step."""
    settings = [
        f"recipe.run_dir={folder / method}",
        f"recipe.model_path={folder / 'model'}",
        f"data.train_files=[{folder}/data/train.parquet]",
        f"data.val_files=[{folder}/data/validation.parquet]",
        f"trainer.total_training_steps={steps}",
        f"trainer.save_freq={steps if method in EXPORTED else -1}",
    ]
    settings += MOVING * (method in MOVED)
    if cpu:
        return ["toy_methods", f"method={method}", *settings, *CPU_SIZES]
    return [method, *settings, *GPU_SIZES, f"trainer.n_gpus_per_node={gpus}"]


def stages(folder: Path, cpu: bool, gpus: int = 1) -> list[Stage]:
    """Return all stages: trainings of the toy model on a CPU, of a model of 1.5B on GPUs."""
    run = folder / "prompt_aug"
    trainings = [
        Stage(
            name=f"train {method}",
            command=[
                *IN_SECOND_RUNNER * (method == SECOND_RUNNER and not cpu),
                *module("recipe.train", *train_arguments(folder, method, steps, cpu, gpus)),
            ],
            needs=("model",),
            figures=functools.partial(training, folder / method),
        )
        for method, steps in RUNS.items()
    ]
    exports = [
        Stage(
            name=f"export {dtype}",
            command=module("recipe.export", folder / method, "--dtype", dtype),
            needs=(f"train {method}",),
        )
        for method, dtype in EXPORTED.items()
    ]
    sweep = ["--benchmark", f"made={folder}/data/test.parquet", "--max-questions", 8]
    if not cpu:
        sweep += ["--gpu-memory-utilization", ENGINE_SHARE]
    return [
        Stage(name="doctor", command=module("recipe.doctor", "--runs", folder)),
        Stage(name="model", command=module(WORK, "model", folder, *["--cpu"] * cpu)),
        Stage(
            name="loss and gradient",
            command=module(WORK, "reference", folder),
            needs=("model",),
            figures=lambda: reference(folder / "reference.json"),
        ),
        *trainings,
        *(
            Stage(
                name=f"weights {method}",
                command=[],
                needs=(f"train {method}",),
                figures=functools.partial(hand_over, folder / method),
            )
            for method in MOVED
        ),
        *exports,
        # The start model and the trained one: an engine, then another in its place.
        Stage(
            name="evaluation",
            command=module("eval.sweep", run, *sweep),
            needs=("export float32",),
        ),
    ]


def run_stage(stage: Stage, logs: Path, failed: set[str]) -> Result:
    """Run one stage to its end or its time limit; its output goes to its log."""
    missing = [name for name in stage.needs if name in failed]
    if missing:
        return Result(name=stage.name, why=f"not run: {missing[0]} failed")
    began, result = time.monotonic(), Result(name=stage.name)
    log = logs / f"{stage.name.replace(' ', '_')}.log"
    try:
        if stage.command:
            with log.open("w") as file:
                done = subprocess.run(
                    stage.command, stdout=file, stderr=subprocess.STDOUT, timeout=stage.seconds
                )
            if done.returncode:
                raise StageError(f"exit code {done.returncode}, see {log}")
        result.figures = stage.figures()
    except subprocess.TimeoutExpired:
        result.why = f"not done within {stage.seconds:.0f} s, see {log}"
    except (StageError, OSError, KeyError, ValueError) as error:
        result.why = str(error)
    result.seconds = time.monotonic() - began
    return result


def take(folder: Path, anew: bool) -> bool:
    """Make `folder`, emptied if `anew`; return False if another program made it.

    A training run has logs/ too, so only the mark shows what may be deleted.
    """
    if folder.exists():
        marked = (folder / OWN_MARK).is_file()
        if not marked and (not folder.is_dir() or any(folder.iterdir())):
            return False
        if anew:
            shutil.rmtree(folder)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / OWN_MARK).touch()
    return True


def figures_page(results: list[Result]) -> str:
    """Return the table of stages and figures, as Markdown."""
    lines = ["| stage | result | seconds |", "|---|---|---:|"]
    lines += [f"| {r.name} | {r.why or 'ok'} | {r.seconds:.0f} |" for r in results]
    lines += ["", "| stage | figure | value |", "|---|---|---:|"]
    lines += [f"| {r.name} | {k} | {v:.4g} |" for r in results for k, v in r.figures.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.accept", __doc__, example="python -m recipe.accept --cpu"
    )
    parser.add_argument("--cpu", action="store_true", help="the toy model on the CPU")
    parser.add_argument("--gpus", type=int, default=1, help="of the trainings: 1, 2, 4, 8 or 16")
    parser.add_argument("--folder", type=Path, default=Path("runs/accept"), help="deleted first")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="in the folder as it is")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    wanted = stages(folder, options.cpu, options.gpus)
    names = [stage.name for stage in wanted]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only: no stage {', '.join(unknown)}; they are {', '.join(names)}")
    if not take(folder, anew=not options.only):
        print(f"recipe.accept: {folder} is not of an acceptance run: choose another --folder")
        return 1
    results: list[Result] = []
    for stage in wanted:
        if options.only and stage.name not in options.only:
            continue
        with Progress(stage.name):
            result = run_stage(stage, folder / "logs", {r.name for r in results if r.why})
        results.append(result)
        print(f"{result.name}: {result.why or 'ok'}, {result.seconds:.0f} s", flush=True)
    write_text(folder / "accept.md", figures_page(results))
    print(f"\n{figures_page(results)}")
    return int(any(result.why for result in results))


if __name__ == "__main__":
    sys.exit(main())
