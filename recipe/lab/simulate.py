"""Simulate a training in this process: ``python -m recipe.lab.simulate EXAMPLE [KEY=VALUE ...]``.

Takes the configuration of `recipe.train` and computes the same steps without Ray, FSDP and vLLM.
Data order, draws, rewards, advantages, mini-batches and optimizer are those of the trainer, called
from the same functions; the loss is verl's. With ``recipe.rollout.request_seeds=true`` the sampler
takes the engine's random numbers, so a run repeats the real one token by token, as far as rounding
allows. With false it draws faster, from the same distribution. Writes the run folder's config.yaml,
metrics.jsonl, tensors/ and, at every ``trainer.save_freq``, hf/. Not simulated: validation, resume.

tests/recipe/test_methods_e2e.py compares recorded steps of every method.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors.torch import save_file
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_functional import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
)
from verl.workers.config.optimizer import build_optimizer
from verl.workers.utils.losses import ppo_loss

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_json
from recipe.algorithms.compute import logprob_temperature
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.lab.decoder import Decoder
from recipe.lab.rollouts import Rollout, RolloutSource
from recipe.preflight.checks import check, prepare
from recipe.run.environment import set_defaults
from recipe.run.folder import RunFolder, append_metrics, record_environment
from recipe.trainer.batch import Fetched, ragged
from recipe.trainer.order import distribute, training_order
from recipe.trainer.signal import Signal, record, signal_of

# Losses in which a response of advantage 0 has no gradient: its rows are skipped.
SILENT_WITHOUT_ADVANTAGE = ("vanilla", "cispo", "gspo", "sapo")

ACTOR_COLUMNS = (
    *("response_mask", "old_log_probs", "advantages"),
    *("ref_log_prob", "rollout_is_weights"),
)


class Simulator:
    """A training run; `step` computes one step and returns its metrics.

    `config` must be checked and its data prepared, as `simulate` does.
    """

    def __init__(self, config: DictConfig) -> None:
        self.folder = Path(config.actor_rollout_ref.model.path)
        self.policy, self.reference = Decoder.load(self.folder), Decoder.load(self.folder)
        for weight in self.policy.weights.values():
            weight.requires_grad_()
        self.source = RolloutSource(config, self.policy)
        self.steps = self.optimizer_steps = 0
        self.configure(config)
        optim = omega_conf_to_dataclass(config.actor_rollout_ref.actor.optim)
        self.optimizer = build_optimizer(list(self.policy.weights.values()), optim)
        self.scheduler = _scheduler(self.optimizer, optim, int(config.trainer.total_training_steps))

    def configure(self, config: DictConfig) -> None:
        """Use the method of `config` from the next step on; model, data and optimizer stay."""
        _require_simulated(config)
        self.config = config
        self.source.configure(config)
        self.actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.kl_controller: Any = None
        if config.algorithm.use_kl_in_reward:
            self.kl_controller = get_kl_controller(config.algorithm.kl_ctrl)

    # ---------------------------------------------------------------- a step

    def step(self) -> dict[str, Any]:
        """Compute a step; returns its metrics, as metrics.jsonl of a training has them."""
        began = time.monotonic()
        self.steps += 1
        metrics: dict[str, Any] = {}
        rollouts, filled = self.source.step(metrics)
        rollouts = self._ordered(rollouts)
        fetched, weight_logprobs = self._fetched(rollouts)
        found = signal_of(
            fetched,
            self.config,
            step=self.steps,
            stats=self.source.stats,
            filled_groups=filled,
            kl_controller=self.kl_controller,
            weight_logprobs=weight_logprobs,
            metrics=metrics,
        )
        record(
            found,
            self.config,
            step=self.steps,
            stats=self.source.stats,
            run_dir=Path(self.config.recipe.run_dir),
            metrics=metrics,
        )
        metrics |= self._update(fetched, found)
        metrics["train/optimizer_steps"] = self.optimizer_steps
        metrics["training/epoch"] = self.source.fetched / self.source.epoch_batches
        metrics["timing_s/step"] = time.monotonic() - began
        return metrics

    def _ordered(self, rollouts: list[Rollout]) -> list[Rollout]:
        """The rows in the trainer's order of mini-batches."""
        order = training_order(
            [r.key for r in rollouts],
            [False] * len(rollouts),
            size=int(self.config.actor_rollout_ref.rollout.n),
            seed=int(self.config.recipe.seed),
            step=self.steps,
        )
        lengths = [len(r.prompt) + len(r.response) for r in rollouts]
        (order,) = distribute(order, lengths, mini_batch=self._mini_batch, ranks=1)
        return [rollouts[i] for i in order]

    @property
    def _mini_batch(self) -> int:
        return int(self.actor.ppo_mini_batch_size) * int(self.config.actor_rollout_ref.rollout.n)

    def _fetched(self, rollouts: Sequence[Rollout]) -> tuple[Fetched, Tensor | None]:
        """The columns that the trainer reads from TransferQueue, and the weights' log-probs."""
        temperature = float(self.config.actor_rollout_ref.rollout.temperature)
        per_token = {
            "response_mask": [torch.ones(len(r.response)) for r in rollouts],
            "rm_scores": [_at_last(r.reward, len(r.response)) for r in rollouts],
            "rollout_log_probs": [r.logprobs for r in rollouts],
            "old_log_probs": [r.logprobs for r in rollouts],
            "entropy": [r.entropy for r in rollouts],
        }
        if any(r.anchored for r in rollouts):
            again = _values(self.policy, rollouts, temperature, entropy=True)
            per_token |= {"old_log_probs": again["log_probs"], "entropy": again["entropy"]}
        if need_reference_policy(self.config):
            start = _values(self.reference, rollouts, temperature)
            per_token["ref_log_prob"] = start["log_probs"]
        wanted, weight_logprobs = logprob_temperature(self.config.recipe.weights), None
        if wanted not in (None, temperature):
            at_wanted = _values(self.policy, rollouts, float(wanted))["log_probs"]
            weight_logprobs = pad_sequence(at_wanted, batch_first=True)
        padded = {name: pad_sequence(v, batch_first=True) for name, v in per_token.items()}
        padded["loss_mask"] = padded["response_mask"]
        if not self.config.actor_rollout_ref.rollout.calculate_log_probs:
            del padded["rollout_log_probs"]
        fetched = Fetched(
            batch=SimpleNamespace(keys=[r.key for r in rollouts], tags=[{}] * len(rollouts)),
            data=None,
            rows={
                "session_id": [r.row["session_id"] for r in rollouts],
                "prompts": [torch.tensor(r.prompt) for r in rollouts],
                "responses": [r.response for r in rollouts],
                "extra_info": [r.row["extra_info"] for r in rollouts],
                "extra_fields": [r.extra_fields for r in rollouts],
            },
            padded=padded,
            lengths=[len(r.response) for r in rollouts],
        )
        return fetched, weight_logprobs

    # ---------------------------------------------------------------- the update

    def _update(self, fetched: Fetched, found: Signal) -> dict[str, float]:
        """verl's update of the actor: mini-batches, micro-batches, its loss, clipping."""
        columns = {**fetched.padded, **found.columns}
        losses, norms = [], []
        count = len(fetched.lengths)
        micro = self._mini_batch
        if not self.actor.use_dynamic_bsz:
            micro = int(self.actor.ppo_micro_batch_size_per_gpu)
        for _ in range(int(self.actor.ppo_epochs)):
            for start in range(0, count, self._mini_batch):
                self.optimizer.zero_grad()
                end = start + self._mini_batch
                tokens = int(columns["loss_mask"][start:end].sum())
                losses.append(0.0)
                for first in range(start, end, micro):
                    losses[-1] += self._backward(
                        fetched, columns, range(first, first + micro), tokens
                    )
                norms.append(self._optimizer_step())
        self.scheduler.step()
        return {
            "actor/loss": sum(losses) / len(losses),
            "actor/grad_norm": sum(norms) / len(norms),
            "actor/lr": self.scheduler.get_last_lr()[0],
        }

    def _backward(
        self, fetched: Fetched, columns: dict[str, Tensor], chosen: Sequence[int], tokens: int
    ) -> float:
        """Add the gradient of verl's loss over the rows of a micro-batch; returns the loss."""
        if self._skips_silent_rows:
            chosen = [i for i in chosen if columns["advantages"][i].any()]
        if not chosen:
            return 0.0
        rows = list(chosen)
        prompts = [fetched.rows["prompts"][i] for i in rows]
        responses = [fetched.rows["responses"][i] for i in rows]
        lengths = [fetched.lengths[i] for i in rows]
        names = [name for name in ACTOR_COLUMNS if name in columns]
        data = TensorDict(
            {
                "prompts": torch.nested.as_nested_tensor(prompts, layout=torch.jagged),
                "responses": torch.nested.as_nested_tensor(responses, layout=torch.jagged),
                **{n: ragged(columns[n][rows], lengths) for n in names},
            },
            batch_size=len(rows),
        )
        sizes = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": self._mini_batch}
        tu.assign_non_tensor(data, **sizes)
        sequences = [[*p.tolist(), *r.tolist()] for p, r in zip(prompts, responses, strict=True)]
        output = self.policy.logprobs(
            sequences,
            float(self.config.actor_rollout_ref.rollout.temperature),
            entropy=bool(self.actor.calculate_entropy or self.actor.entropy_coeff),
        )
        loss, _ = ppo_loss(self.actor, output, data)
        loss.backward()
        return float(loss.detach())

    @property
    def _skips_silent_rows(self) -> bool:
        extra = self.actor.use_kl_loss or self.actor.entropy_coeff
        return not extra and self.actor.policy_loss.loss_mode in SILENT_WITHOUT_ADVANTAGE

    def _optimizer_step(self) -> float:
        weights = list(self.policy.weights.values())
        for weight in weights:
            if weight.grad is None:  # no row had a signal: Adam still follows its momentum
                weight.grad = torch.zeros_like(weight)
        norm = torch.nn.utils.clip_grad_norm_(weights, float(self.actor.optim.clip_grad))
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer_steps += 1
        return float(norm)

    # ---------------------------------------------------------------- files

    def export(self) -> None:
        """Write the weights as `recipe.export` does, for evaluation."""
        run_folder = RunFolder(Path(self.config.recipe.run_dir))
        folder = run_folder.exported(self.steps)
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        weights = {name: w.detach().contiguous() for name, w in self.policy.weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(run_folder.manifest(self.steps), {"step": self.steps, "source": "simulator"})


def _at_last(reward: float, length: int) -> Tensor:
    scores = torch.zeros(length)
    scores[-1] = reward
    return scores


@torch.no_grad()
def _values(
    model: Decoder, rollouts: Sequence[Rollout], temperature: float, *, entropy: bool = False
) -> dict[str, list[Tensor]]:
    """Values of every response's tokens under the prompts that are trained."""
    rows = [[*r.prompt, *r.response.tolist()] for r in rollouts]
    found = model.logprobs(rows, temperature, entropy=entropy)
    return {
        name: [
            part[len(r.prompt) - 1 : -1]
            for r, part in zip(rollouts, values.split([len(row) for row in rows]), strict=True)
        ]
        for name, values in found.items()
    }


def _scheduler(optimizer: Any, optim: Any, total: int) -> Any:
    warmup = optim.lr_warmup_steps
    if warmup is None or warmup <= 0:
        warmup = int(optim.lr_warmup_steps_ratio * total)
    if optim.lr_scheduler_type == "constant":
        return get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=warmup)
    return get_cosine_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=warmup,
        num_training_steps=total,
        min_lr_ratio=optim.min_lr_ratio,
        num_cycles=optim.num_cycles,
        zero_indexed_step=optim.zero_indexed_step,
    )


def _require_simulated(config: DictConfig) -> None:
    """ConfigError for settings whose effect the simulator does not compute."""
    correction = config.algorithm.get("rollout_correction") or {}
    rollout = config.actor_rollout_ref.rollout
    refused = {
        "algorithm.rollout_correction.bypass_mode": bool(correction.get("bypass_mode")),
        "actor_rollout_ref.actor.shuffle": bool(config.actor_rollout_ref.actor.shuffle),
        "recipe.rollout.joint_limit": bool(config.recipe.rollout.joint_limit),
        "actor_rollout_ref.rollout.top_p": float(rollout.top_p) != 1.0,
        "actor_rollout_ref.rollout.top_k": int(rollout.top_k) not in (-1, 0),
        "trainer.device": config.trainer.device != "cpu",
    }
    for key, wrong in refused.items():
        if wrong:
            raise ConfigError(
                f"{key}: the simulator does not support this setting. Leave it at the value of "
                "machine=cpu, or use recipe.train."
            )


OnSaved = Callable[[Simulator], object]


def start(config: DictConfig) -> Simulator:
    """Check `config`, build its world, write the run folder; return the run before step 1."""
    set_defaults(cpu=True)
    prompts = check(config, here=False)
    folder = RunFolder(Path(config.recipe.run_dir))
    if folder.metrics.exists():
        raise ConfigError(
            f"recipe.run_dir={folder.root}: has steps already, and the simulator does not resume. "
            "Delete the folder or choose another."
        )
    prepare(config, prompts)
    return Simulator(config)


def simulate(
    config: DictConfig, on_saved: Callable[[Simulator], object] = Simulator.export
) -> None:
    """Run all steps; `on_saved` is called before the first and after every save_freq-th."""
    simulator = start(config)
    run_dir, every = Path(config.recipe.run_dir), int(config.trainer.save_freq)
    record_environment(run_dir)
    if every > 0:
        on_saved(simulator)
    for step in range(1, int(config.trainer.total_training_steps) + 1):
        metrics = simulator.step()
        append_metrics(run_dir, step, metrics)
        if every > 0 and step % every == 0:
            on_saved(simulator)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.simulate",
        __doc__,
        example="python -m recipe.lab.simulate toy_methods method=cw_grpo",
    )
    parser.add_argument("example", help="a folder in examples/, or the path of one")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides")
    given = parser.parse_intermixed_args(arguments)

    def do() -> int:
        torch.set_num_threads(1)
        config = compose_config(given.example, given.overrides)
        simulate(config)
        print(f"recipe.lab.simulate: done, run folder {config.recipe.run_dir}")
        return 0

    return run("recipe.lab.simulate", do, interrupted="the run folder has the steps so far")


if __name__ == "__main__":
    sys.exit(main())
