"""TRL's half of `scripts/bench.py peer`, and the comparison.

    PYTHON scripts/bench_peer.py FOLDER

PYTHON is that of an environment made by `environment`. FOLDER/given.json has questions, recorded
responses and settings; TRL's steps go to trl.json, its gradient of each loss to trl_NAME.pt.
"""

import functools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

TRL = "trl==1.16.0"
EPSILON = 1e-4  # beside TRL's standard deviation
EQUAL = 1e-5  # relative: float32 gradients that differ less are equal
LOSSES = ("grpo", "dapo", "dr_grpo")  # names of our methods and of TRL's losses
CONTROLS = {"grpo, sign flipped": -1.0, "grpo, std + 1e-6": 1.0}  # must differ from all of TRL's
QUESTIONS, LAYERS = 2, 2  # of the gradient
Rows = Sequence[Mapping[str, Any]]


def trainer_of(settings: dict[str, Any], rows: Rows, reward: Any, **more: Any) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, data = settings.pop("model"), Dataset.from_list(list(rows))
    config = GRPOConfig(report_to="none", use_cpu=True, save_strategy="no", **settings)
    return GRPOTrainer(model, reward, args=config, train_dataset=data, **more)


def right(completions: Sequence[str], gold: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each response whose last box holds the gold answer, else 0."""
    last = [re.findall(r"\\boxed\{([^{}]*)\}", text)[-1:] for text in completions]
    return [float(found == [answer]) for found, answer in zip(last, gold, strict=True)]


def their_steps(settings: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """Train; return the metrics of each step under verl's names, and all settings."""
    from transformers import TrainerCallback

    class Ends(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        on_step_end = on_train_begin

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = generate(*arguments)
        generation.append(time.perf_counter() - began)
        return result

    ends: list[float] = []
    generation: list[float] = []
    trainer = trainer_of(settings, rows, right, callbacks=[Ends()])
    generate, trainer._generate_single_turn = trainer._generate_single_turn, timed
    trainer.train()
    log = [line for line in trainer.state.log_history if "reward" in line]
    columns = {
        "timing_s/step": [after - before for before, after in pairwise(ends)],
        "timing_s/gen": generation,
        "response_length/mean": [line["completions/mean_length"] for line in log],
    }
    lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"lines": lines, "settings": trainer.args.to_dict()}


def their_gradient(settings: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """Return TRL's gradient for recorded responses, by parameter."""
    import torch

    def recorded(*_: Any) -> dict[str, Any]:
        prompts, responses = ([row[name] for row in rows] for name in ("ids", "response"))
        return {"prompt_ids": prompts, "completion_ids": responses, "logprobs": None}

    def reward(score: list[float], **_: Any) -> list[float]:
        return score

    trainer = trainer_of(settings, rows, reward, rollout_func=recorded)
    trainer.current_gradient_accumulation_steps = 1  # set by its loop
    inputs = trainer._generate_and_score_completions([dict(row) for row in rows])
    old = [torch.tensor(row["old"]) for row in rows]
    inputs["old_per_token_logps"] = torch.nn.utils.rnn.pad_sequence(old, batch_first=True)
    trainer.compute_loss(trainer.model.train(), inputs).backward()
    return {name: weight.grad for name, weight in trainer.model.named_parameters()}


def main(folder: Path) -> None:
    import torch

    given = json.loads((folder / "given.json").read_text(encoding="utf-8"))
    for name, settings in given["losses"].items():
        torch.save(their_gradient(settings, given["recorded"]), folder / f"trl_{name}.pt")
    steps = their_steps(given["settings"], given["rows"])
    (folder / "trl.json").write_text(json.dumps(steps, default=str), encoding="utf-8")


# ------------------------------------------------------------------------- this project's half


def environment(folder: Path, lock: Path) -> Path:
    """Return the Python of an environment with TRL and the versions of `lock`, made once."""
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        import torch

        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        index = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
        for what in (
            ["--no-deps", "--extra-index-url", index, f"torch=={torch.__version__}"],
            ["-c", str(lock), TRL],
        ):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *what], check=True)
        made.touch()
    return python


@contextmanager
def peak_memory(seconds: float = 3.0) -> Iterator[list[float]]:
    """Yield a list whose last entry becomes the peak memory of all child processes, in GiB.

    Proportional (PSS): a page that n processes share counts 1/n in each.
    """
    import psutil

    peaks, ended = [0.0], threading.Event()

    def sample() -> None:
        while not ended.wait(seconds):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:  # it has ended
                    continue
            peaks.append(max(peaks[-1], total / 2**30))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def loss_settings(name: str, actor: Any) -> dict[str, Any]:
    """Return TRL's settings of a loss; `delta` is verl's dual clip."""
    clips = {"epsilon": "low", "epsilon_high": "high", "delta": "c"}
    made = {theirs: actor[f"clip_ratio_{ours}"] for theirs, ours in clips.items()}
    scale = "none" if name == "dr_grpo" else "group"
    return {**made, "loss_type": name, "scale_rewards": scale, "beta": 0.0}


def their_settings(config: Any, model: str, batch: int) -> dict[str, Any]:
    """Return TRL's settings for a run's batch, loss, optimizer and precision."""
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    responses, optim = config["data"]["train_batch_size"] * rollout["n"], actor["optim"]
    batch, steps = math.gcd(batch, responses), config["trainer"]["total_training_steps"]
    made: dict[str, Any] = {
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"}
    }
    made |= {"model": model, "bf16": rollout["dtype"] == "bfloat16", "shuffle_dataset": False}
    made |= {"num_generations": rollout["n"], "temperature": rollout["temperature"]}
    made |= {"max_completion_length": rollout["response_length"], "gradient_checkpointing": False}
    made |= {"max_steps": steps, "logging_steps": 1, "per_device_train_batch_size": batch}
    made |= {"gradient_accumulation_steps": responses // batch, "learning_rate": optim["lr"]}
    made |= {"lr_scheduler_type": "constant_with_warmup", "weight_decay": optim["weight_decay"]}
    made |= {"warmup_steps": optim["lr_warmup_steps"], "max_grad_norm": optim["clip_grad"]}
    return made | loss_settings("grpo", actor)


def record(rollouts: Rows, size: int, model: str, small: str) -> list[dict[str, Any]]:
    """Return responses of the first groups with signal, and save the model of their gradient.

    It is the first layers of `model`. Noise on its log-probabilities makes both clips and the dual
    clip active.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    actor = AutoModelForCausalLM.from_pretrained(model, num_hidden_layers=LAYERS, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(model)
    actor.save_pretrained(small)
    tokenizer.save_pretrained(small)
    groups = [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
    groups = [group for group in groups if len({row["reward"] for row in group}) > 1][:QUESTIONS]
    made, noise = [], torch.Generator().manual_seed(0)
    for number, row in ((n, row) for n, group in enumerate(groups) for row in group):
        ids, response = (tokenizer(row[name])["input_ids"] for name in ("prompt", "response"))
        response += [] if row["truncated"] else [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = actor(torch.tensor([ids + response])).logits[0, len(ids) - 1 : -1]
        old = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
        old = (old + 0.7 * torch.randn(old.shape, generator=noise)).tolist()
        kept = {"prompt": row["prompt"], "score": row["reward"], "group": number}
        made.append({**kept, "ids": ids, "response": response, "old": old})
    return made


def batch_of(rows: Rows, advantages: Any) -> Any:
    """Return the rows as verl passes them to the actor's engine for an update."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    names = {"prompts": "ids", "responses": "response", "old_log_probs": "old"}
    columns = {name: [row[key] for row in rows] for name, key in names.items()}
    ids = [row["ids"] + row["response"] for row in rows]
    ones = [[1] * len(response) for response in columns["responses"]]
    columns |= {"input_ids": ids, "position_ids": [list(range(len(row))) for row in ids]}
    columns |= {"response_mask": ones, "loss_mask": ones}
    columns["advantages"] = [[float(a)] * len(m) for a, m in zip(advantages, ones, strict=True)]
    nested = functools.partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    made = {k: nested([torch.tensor(part) for part in v]) for k, v in columns.items()}
    data = TensorDict(made, batch_size=len(rows))
    settings = {"use_remove_padding": False, "calculate_entropy": False, "temperature": 1.0}
    settings |= {"use_dynamic_bsz": True, "max_token_len_per_gpu": 1024}
    tu.assign_non_tensor(data, global_batch_size=len(rows), **settings)
    return data


def our_gradients(configs: Mapping[str, Any], rows: Rows) -> dict[str, dict[str, Any]]:
    """Return the gradients of the actor's engine in float32, of each loss and of `CONTROLS`."""
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.utils.losses import ppo_loss

    from recipe.algorithms import ADVANTAGES, grpo

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    actors = {n: omega_conf_to_dataclass(c.actor_rollout_ref.actor) for n, c in configs.items()}
    actor, model = actors["grpo"], omega_conf_to_dataclass(configs["grpo"].actor_rollout_ref.model)
    parts = {"optimizer_config": actor.optim, "checkpoint_config": actor.checkpoint}
    parts |= {"model_config": model, "engine_config": actor.engine}
    engine = EngineRegistry.new("language_model", actor.strategy, **parts)
    engine.initialize()
    scores, groups = ([row[name] for row in rows] for name in ("score", "group"))
    made = {}
    for name in (*LOSSES, *CONTROLS):
        method = name.partition(",")[0]
        advantage = configs[method].recipe.advantage.name
        epsilon = grpo.EPSILON if "1e-6" in name else EPSILON
        with mock.patch.object(grpo, "EPSILON", epsilon), engine.train_mode():
            values = ADVANTAGES[advantage](scores, groups) * CONTROLS.get(name, 1.0)
            loss = functools.partial(ppo_loss, config=actors[method])
            engine.forward_backward_batch(batch_of(rows, values), loss)
            made[name] = {n: w.grad.full_tensor() for n, w in engine.module.named_parameters()}
    torch.distributed.destroy_process_group()
    return made


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Return |ours - theirs| / |theirs|, Euclidean over the parameters. KeyError: other names."""
    pairs = [(ours[name].double(), theirs[name].double()) for name in ours.keys() | theirs.keys()]
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    return math.sqrt(apart / sum(float(b.square().sum()) for _, b in pairs))


def gradient_lines(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return a table of all differences, and whether exactly those of the same loss are `EQUAL`."""
    lines, as_expected = [], True
    lines += [f"| gradient: ours, TRL's | {' | '.join(theirs)} |", "|---" * (1 + len(theirs)) + "|"]
    for name, mine in ours.items():
        found = {other: difference(mine, gradient) for other, gradient in theirs.items()}
        lines.append(f"| {name} | {' | '.join(f'{value:.1e}' for value in found.values())} |")
        as_expected &= all((value < EQUAL) == (n == name) for n, value in found.items())
    return lines, as_expected


def time_lines(ours: Rows, theirs: Rows, peaks: Sequence[float]) -> list[str]:
    """Return a table of medians; the ratio's extremes are of the fastest and the slowest steps."""
    lines = [f"| median (min to max) | ours | {TRL} | TRL / ours |", "|---|---|---|---|"]
    names = ("timing_s/step", "timing_s/gen", "response_length/mean")
    for name, less in ((names[0], ""), (names[1], ""), names[:2], (names[2], "")):
        pair = [[row[name] - row.get(less, 0.0) for row in rows] for rows in (ours, theirs)]
        cells = [f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in pair]
        mine, others = pair
        ratio = statistics.median(others) / statistics.median(mine)
        cells.append(
            f"{ratio:.2f} ({min(others) / max(mine):.2f} to {max(others) / min(mine):.2f})"
        )
        lines.append(f"| {name}{less and f' - {less}'} | {' | '.join(cells)} |")
    own, its = peaks
    return [*lines, f"| peak memory, GiB | {own:.1f} | {its:.1f} | {its / own:.2f} |"]


def compare(model: str, out: Path, batch: int, peaks: Sequence[float]) -> None:
    """Train with TRL on the questions of the run `out`/ours; print settings, times, gradients."""
    import torch

    from prompt_aug.base.errors import UserError
    from recipe.config.compose import compose_config
    from recipe.machine.environment import set_defaults
    from recipe.machine.host import ROOT
    from recipe.run.folder import RunFolder, read_config, read_metrics

    plain = {**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "PYTHONPATH": ""}
    set_defaults(cpu=True)
    run, config, small = RunFolder(out / "ours"), read_config(out / "ours"), str(out / "small")
    size = config["actor_rollout_ref"]["rollout"]["n"]
    files = run.rollout_steps().values()
    rollouts = [json.loads(x) for f in files for x in f.read_text(encoding="utf-8").splitlines()]
    recorded = record(rollouts, size, model, small)
    settings = their_settings(config, model, batch) | {"output_dir": str(out / "trl")}
    same = {"model": small, "bf16": False, "per_device_train_batch_size": len(recorded)}
    same |= {"gradient_accumulation_steps": 1, "max_steps": 1}
    own = ["machine=cpu", f"recipe.model_path={small}", "actor_rollout_ref.rollout.dtype=float32"]
    configs = {name: compose_config("smollm2", [f"method={name}", *own]) for name in LOSSES}
    losses = {n: loss_settings(n, c.actor_rollout_ref.actor) for n, c in configs.items()}
    rows = [{"prompt": row["prompt"], "gold": row["gold"][0]} for row in rollouts[::size]]
    given = {"settings": settings, "rows": rows, "recorded": recorded}
    given["losses"] = {name: settings | same | loss for name, loss in losses.items()}
    (out / "given.json").write_text(json.dumps(given), encoding="utf-8")
    python = environment(out.parent / TRL, ROOT / "requirements/cpu.txt")
    with peak_memory() as theirs:
        subprocess.run([python, __file__, out], check=True, env=plain)
    measured = json.loads((out / "trl.json").read_text(encoding="utf-8"))
    print(run.config.read_text(encoding="utf-8"), json.dumps(measured["settings"], indent=1))
    peaks = [peaks[-1], theirs[-1]]
    print("\n".join(time_lines(read_metrics(out / "ours"), measured["lines"], peaks)))
    gradients = {name: torch.load(out / f"trl_{name}.pt") for name in LOSSES}
    lines, as_expected = gradient_lines(our_gradients(configs, recorded), gradients)
    print("\n".join(lines))
    if not as_expected:
        raise UserError(f"gradients: not those of one loss, and only those, are within {EQUAL}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
