"""The rollouts of a simulated step: data order, prompts, sampling and grading.

Calls functions of the trainer's agent loop and reward manager. With
``recipe.rollout.request_seeds=true`` the sampler uses the engine's random numbers. With false it
samples faster, from the same distribution.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from verl.trainer.ppo.utils import create_rl_sampler

from prompt_aug.prompts import Prompts
from prompt_aug.questions import read_parquet, system_text, to_row, user_text
from prompt_aug.turns import end_of_turn
from recipe.errors import ConfigError, ExhaustedError
from recipe.lab.decoder import Decoder, Draw, Drawn
from recipe.rollout.agent_loop import EPOCH, choose_rephrasing, choose_template, rollout_seed
from recipe.rollout.reward import score
from recipe.toy.measure import Sampler, filler_tokens
from recipe.trainer.order import group_id
from recipe.trainer.question_stats import QuestionStats


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One graded response; `key` and `extra_fields` are as in TransferQueue."""

    key: str
    row: dict[str, Any]  # the columns of the dataset
    prompt: tuple[int, ...]  # trained under
    anchored: bool  # generated under another prompt
    extra_fields: dict[str, Any]
    response: Tensor
    logprobs: Tensor  # of the sampler
    entropy: Tensor
    reward: float

    @property
    def accuracy(self) -> float:
        return float(self.extra_fields["reward_extra_info"]["acc"])


def plain(section: Any) -> Any:
    """Return a section of the configuration as a namespace, which is faster to read."""
    if not OmegaConf.is_dict(section):
        return OmegaConf.to_container(section) if OmegaConf.is_list(section) else section
    return SimpleNamespace(**{str(key): plain(section[key]) for key in section})


def engine_draw(seeds: Iterable[int]) -> Draw:
    """Return vLLM's draw for seeded requests on a CPU, one generator per row."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(prob_PV: Tensor, prefix_B: Tensor, rows_B: Tensor) -> Tensor:
        noises = torch.empty(len(rows_B), prob_PV.shape[1])
        for row, noise in zip(rows_B.tolist(), noises, strict=True):
            noise.exponential_(generator=generators[row])
        return (prob_PV[prefix_B] / noises).argmax(-1)

    return draw


def fast_draw(seed: int) -> Draw:
    """Return a draw that uses one uniform number per token."""
    generator = torch.Generator().manual_seed(seed)

    def draw(prob_PV: Tensor, prefix_B: Tensor, rows_B: Tensor) -> Tensor:
        cumulated_PV = prob_PV.double().cumsum(-1)
        place_B = torch.rand(len(rows_B), generator=generator, dtype=torch.float64)
        place_B = place_B * cumulated_PV[prefix_B, -1]
        return torch.searchsorted(cumulated_PV[prefix_B], place_B[:, None], right=True)[:, 0]

    return draw


def greedy_draw(prob_PV: Tensor, prefix_B: Tensor, rows_B: Tensor) -> Tensor:
    """Return the most probable token of each row."""
    return prob_PV.argmax(-1)[prefix_B]


class PolicySampler(Sampler):
    """Sampler of a policy in training; grades like that of `recipe.lab.measure`."""

    def __init__(self, policy: Decoder, tokenizer: Any, *, max_tokens: int, seed: int) -> None:
        self.policy, self.tokenizer = policy, tokenizer
        self.max_tokens, self.seed = max_tokens, seed
        self.verdicts, self.letters = {}, filler_tokens(tokenizer)

    def draw(
        self, prompts: Sequence[str], samples: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        rows = [self.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        drawn = self.policy.sample(
            [row for row in rows for _ in range(samples)],
            fast_draw(torch.initial_seed()) if temperature else greedy_draw,
            temperature=temperature or 1.0,
            max_tokens=self.max_tokens,
            end=self.tokenizer.eos_token_id,
        )
        ids = pad_sequence(drawn.ids, True, self.tokenizer.pad_token_id)
        return ids, pad_sequence(drawn.entropy, True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A rollout before it is generated: its row, rephrasing, template and prompts."""

    row: dict[str, Any]
    n: int
    template: str
    generated_under: tuple[int, ...]
    trained_under: tuple[int, ...]


def perturbed(policy: Decoder, noise: float, seed: int) -> Decoder:
    """Return a copy with weights w (1 + noise z); z is standard normal, a function of `seed`."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: w.detach() * (1 + noise * torch.randn(w.shape, generator=generator))
        for name, w in policy.weights.items()
    }
    return Decoder(weights, policy.config)


class RolloutSource:
    """Source of the rollouts of `policy`, for questions in the trainer's order.

    With ``recipe.toy.sampler_noise`` a perturbed copy of the policy generates, like an engine of
    another precision.
    """

    def __init__(self, config: DictConfig, policy: Decoder) -> None:
        self.policy = policy
        self.tokenizer: Any = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
        rows = [to_row(q) for path in config.data.train_files for q in read_parquet(path)]
        most = int(config.data.get("train_max_samples", -1))
        chosen = np.arange(len(rows))
        if 0 < most < len(rows):  # as verl's dataset
            generator = np.random.default_rng(config.data.seed)
            chosen = generator.choice(len(rows), size=most, replace=False)
        self.rows = [{**rows[i], "raw_prompt": rows[i]["prompt"]} for i in chosen]
        filtered = config.algorithm.filter_groups.enable
        self.fetch_size = 1 if filtered else int(config.data.train_batch_size)
        self.epoch_batches = len(self.rows) // self.fetch_size
        self.batches = self._batches(create_rl_sampler(config.data, self.rows))
        self.group_size, self.fetched = int(config.actor_rollout_ref.rollout.n), 0
        self.limit = int(config.data.max_response_length)
        self.graded: dict[tuple[object, ...], dict[str, Any]] = {}
        self.rendered: dict[tuple[str, str, str | None], tuple[int, ...]] = {}
        self.config, self.stats = config, QuestionStats(config.recipe)
        self.recipe = plain(config.recipe)
        self.prompts = Prompts.from_config(config)

    # ---------------------------------------------------------------- questions

    def _batches(self, sampler: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches of verl's data loader, without an epoch's incomplete last batch."""
        while True:
            order = list(sampler)
            for start in range(0, self.epoch_batches * self.fetch_size, self.fetch_size):
                yield [self.rows[i] for i in order[start : start + self.fetch_size]]

    def _fetch(self) -> list[dict[str, Any]]:
        """Return the next questions with epoch and uid, as `RecipeTrainer._fetch_one_gen_batch`."""
        chunks: list[dict[str, Any]] = []
        for _ in range(self.stats.candidates):
            epoch, first = self.fetched // self.epoch_batches, self.fetched * self.fetch_size
            for i, row in enumerate(next(self.batches)):
                group = f"{first + i:09d}-{row['extra_info']['uid']}"
                chunks.append({**row, EPOCH: epoch, "uid": group})
            self.fetched += 1
        questions = [row["extra_info"]["uid"] for row in chunks]
        if self.stats.candidates > 1:
            chosen = self.stats.choose(questions, self.fetch_size)
            chunks, questions = [chunks[i] for i in chosen], [questions[i] for i in chosen]
        self.stats.fetch([row["uid"] for row in chunks], questions)
        return chunks

    def _groups(self, count: int) -> list[list[Rollout]]:
        """Return the rollouts of the next `count` questions, by group."""
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            rows += self._fetch()
        rollouts = self._rollouts(rows)
        size = self.group_size
        return [rollouts[i : i + size] for i in range(0, len(rollouts), size)]

    def step(self, metrics: dict[str, Any]) -> tuple[list[Rollout], set[str]]:
        """Return a step's rollouts and its filler groups, like `BoundedReplayBuffer` in rounds."""
        wanted = int(self.config.data.train_batch_size)
        settings = self.config.recipe.dynamic_sampling
        groups = self._groups(wanted)
        if not self.config.algorithm.filter_groups.enable:
            return [rollout for group in groups for rollout in group], set()
        usable: list[list[Rollout]] = []
        reserve: list[list[Rollout]] = []
        generated, budget = wanted, int(settings.max_gen_batches) * wanted
        while True:
            silent = [g for g in groups if len(g) > 1 and len({r.accuracy for r in g}) == 1]
            usable += [g for g in groups if g not in silent]
            for group in silent:
                self.stats.see_group(group_id(group[0].key), group[0].accuracy)
            reserve = (reserve + silent)[-wanted:]
            missing, more = wanted - len(usable), min(2 * len(silent), budget - generated)
            if missing <= 0 or more <= 0:
                break
            generated += more
            groups = self._groups(more)
        if missing > 0 and settings.on_exhausted == "stop":
            raise ExhaustedError(
                f"dynamic sampling generated {generated} questions in one step: {len(usable)} of "
                f"the {wanted} wanted have a signal"
            )
        filling = reserve[-missing:] if missing > 0 else []
        chosen = sorted([*usable, *filling], key=lambda g: g[0].key)[:wanted]
        counts = {"generated": generated, "kept": wanted - len(filling), "filled": len(filling)}
        metrics |= {f"dynamic_sampling/{name}": float(value) for name, value in counts.items()}
        return [r for group in chosen for r in group], {group_id(g[0].key) for g in filling}

    # ---------------------------------------------------------------- rollouts

    def _render(self, name: str, text: str, system: str | None) -> tuple[int, ...]:
        key = (name, text, system)
        if key not in self.rendered:
            prompt = self.prompts.render(name, text, self.tokenizer, system)
            if prompt.rendered.stop:
                raise ConfigError(
                    f"recipe.augment.templates={name}: has stop strings, which the simulator does "
                    "not support. Choose other templates or use recipe.train."
                )
            self.rendered[key] = tuple(prompt.ids)
        return self.rendered[key]

    def _request(self, row: dict[str, Any]) -> Request:
        """Return the request of `PromptAugmentationAgentLoop` for a row with ``session_id``."""
        recipe, size = self.recipe, self.group_size
        system = system_text(row["raw_prompt"])
        n, text = choose_rephrasing(recipe, size, row)
        name = choose_template(recipe.augment, self.prompts.bank, recipe.seed, row)
        under = trained = self._render(name, text, system)
        if n > 0 and recipe.rephrasings.ratio == "anchored":
            trained = self._render(name, user_text(row["raw_prompt"], "prompt"), system)
        return Request(row=row, n=n, template=name, generated_under=under, trained_under=trained)

    def _rollouts(self, rows: Sequence[dict[str, Any]]) -> list[Rollout]:
        """Generate and grade the rollouts of `rows`, group by group."""
        recipe, rollout = self.recipe, self.config.actor_rollout_ref.rollout
        asked = [
            self._request({**row, "session_id": session})
            for row in rows
            for session in range(self.group_size)
        ]
        seeds = [rollout_seed(recipe.seed, a.row["uid"], a.row["session_id"]) for a in asked]
        draw = engine_draw(seeds) if recipe.rollout.request_seeds else fast_draw(seeds[0])
        sampler = self.policy
        if recipe.toy.sampler_noise:
            sampler = perturbed(sampler, recipe.toy.sampler_noise, recipe.seed)
        drawn = sampler.sample(
            [a.generated_under for a in asked],
            draw,
            temperature=float(rollout.temperature),
            max_tokens=self.limit,
            end=self.tokenizer.eos_token_id,
        )
        return [self._rollout(request, drawn, i) for i, request in enumerate(asked)]

    def _rollout(self, request: Request, drawn: Drawn, i: int) -> Rollout:
        ids, row, limit = drawn.ids[i], request.row, self.limit
        key = (row["extra_info"]["uid"], request.template, *ids.tolist())
        if key not in self.graded:  # late in training most responses of a group are equal
            self.graded[key] = score(
                end_of_turn(self.tokenizer).text(ids.tolist()),
                len(ids),
                row,
                self.prompts.bank[request.template],
                settings=self.recipe.reward,
                limit=limit,
            )
        found = self.graded[key]
        anchored = request.trained_under is not request.generated_under
        return Rollout(
            key=f"{row['uid']}_{row['session_id']}_0",
            row=row,
            prompt=request.trained_under,
            anchored=anchored,
            extra_fields={
                "template": request.template,
                "truncated": len(ids) >= limit,
                "rephrasing": request.n,
                "generated_under": list(request.generated_under) if anchored else None,
                "reward_extra_info": found["reward_extra_info"],
            },
            response=ids,
            logprobs=drawn.logprobs[i],
            entropy=drawn.entropy[i],
            reward=float(found["reward_score"]),
        )
