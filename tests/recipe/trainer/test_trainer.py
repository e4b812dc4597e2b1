"""Group ids, state and columns of the trainer; test_saving.py and the e2e tests cover the rest.

The order of a batch goes through verl's own balancing, dispatch and mini-batch iterator.
"""

import functools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import AdaptiveKLController
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import make_iterator

from recipe.rollout.agent_loop import EPOCH
from recipe.run.folder import RunFolder
from recipe.trainer import records
from recipe.trainer import trainer as trainers
from recipe.trainer.asynchronous import SeparateAsyncTrainer
from recipe.trainer.batch import ACTOR_FIELDS
from recipe.trainer.order import distribute, group_id, training_order
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.trainer import RecipeTrainer

OFF = {"enable": False, "candidates": 1, "target": 0.5}
RECIPE = OmegaConf.create({"history": OFF, "curriculum": OFF})


def bare(config: Any = None, kind: Any = RecipeTrainer, **attributes: Any) -> Any:
    """A trainer without verl's __init__, which starts half a cluster."""
    trainer: Any = object.__new__(kind)
    counts = {"batches_fetched": 0, "optimizer_steps": 0, "earlier_seconds": 0.0, "started": 0.0}
    for name, value in {**counts, "question_stats": QuestionStats(RECIPE), **attributes}.items():
        setattr(trainer, name, value)
    trainer.config = OmegaConf.create(config)
    return trainer


def fetched(
    batches: int, start: int = 0, recipe: Any = RECIPE
) -> list[tuple[list[str], list[int]]]:
    """The group ids and epochs of each batch, after `start` batches fetched before."""
    questions = [["a", "b"], ["c", "a"]]
    rates = {"a": 0.0, "b": 0.5, "c": 0.5}
    rows: list[dict[str, Any]] = [
        {"raw_prompt": q, "extra_info": [{"uid": uid, "pass_rate": rates[uid]} for uid in q]}
        for q in questions
    ]
    trainer = bare(
        train_dataloader=rows,
        train_dataloader_it=iter(rows[start % 2 :]) if start else None,
        batches_fetched=start,
        question_stats=QuestionStats(recipe),
        value_model=None,
    )
    made = [trainer._fetch_one_gen_batch() for _ in range(batches)]
    return [(list(batch["uid"]), batch[EPOCH].tolist()) for batch in made]


def test_a_group_id_is_its_position_in_the_data_order() -> None:
    """Also after a resume; verl's own ids are random."""
    made = fetched(3)
    rows = ["000000000-a 000000001-b", "000000002-c 000000003-a", "000000004-a 000000005-b"]
    assert [names for names, _ in made] == [row.split() for row in rows]
    assert [epochs for _, epochs in made] == [[0, 0], [0, 0], [1, 1]]  # of two batches
    assert fetched(2, start=1) == made[1:]


def test_a_curriculum_takes_the_candidates_nearest_to_the_target() -> None:
    """Of a, b, c, a with pass rates 0, 0.5, 0.5, 0."""
    recipe = OmegaConf.merge(RECIPE, {"curriculum": {"enable": True, "candidates": 2}})
    assert fetched(1, recipe=recipe) == [(["000000001-b", "000000002-c"], [0, 0])]


def test_counts_rates_and_an_adaptive_coefficient_are_resumed() -> None:
    """A batch of 8 with a KL of 0.5 gives 0.1 (1 + clip(0.5 / 0.1 - 1, -0.2, 0.2) 8 / 16)."""
    first, second, third = (
        bare(kl_ctrl_in_reward=AdaptiveKLController(0.1, 0.1, 16)) for _ in range(3)
    )
    first.kl_ctrl_in_reward.update(current_kl=0.5, n_steps=8)
    assert abs(first.kl_ctrl_in_reward.value - 0.11) < 1e-12
    first.batches_fetched, first.optimizer_steps = 3, 12
    first.question_stats.load({"pass_rates": {"q": 0.25}})
    second.load_own_state(first.own_state())
    assert second.kl_ctrl_in_reward.value == first.kl_ctrl_in_reward.value
    assert (second.batches_fetched, second.optimizer_steps) == (3, 12)
    assert second.question_stats.rates == {"q": 0.25}
    old = {key: value for key, value in first.own_state().items() if key != "kl_in_reward"}
    third.load_own_state(old)  # a checkpoint of an older version
    assert third.kl_ctrl_in_reward.value == 0.1


class Batch(list[str]):
    fields: list[str] | None = None


PASSES = ("_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor")


@pytest.mark.parametrize("name", PASSES)
def test_the_actor_is_sent_only_what_it_reads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(PPOTrainer, name, lambda self, batch, metrics: sent.append(batch.fields))
    actor = {"ppo_mini_batch_size": 1, "ppo_epochs": 3}
    trainer = bare({"actor_rollout_ref": {"actor": actor, "rollout": {"n": 1, "temperature": 1.0}}})
    trainer.watchdog, trainer.temperature = SimpleNamespace(begin=lambda: None), 1.0

    batch = Batch(["a", "b"])
    getattr(trainer, name)(batch, {})
    assert sent == [list(ACTOR_FIELDS)] and batch.fields is None
    assert trainer.optimizer_steps == (6 if name == "_update_actor" else 0)  # 3 x 2 / 1


@pytest.mark.parametrize("kind", [RecipeTrainer, SeparateAsyncTrainer])
@pytest.mark.parametrize(("gradient", "wanted"), [("through", 1.0), ("detached", 0.7)])
@pytest.mark.parametrize("name", PASSES)
def test_a_gradient_through_the_weights_has_its_own_temperature(
    monkeypatch: pytest.MonkeyPatch, name: str, gradient: str, wanted: float, kind: Any
) -> None:
    """Log-probabilities, KL and update at 1 as the authors', samples at 0.7."""
    seen: list[float] = []

    def passed(self: Any, batch: Any, metrics: dict) -> None:
        seen.append(self.config.actor_rollout_ref.rollout.temperature)

    monkeypatch.setattr(PPOTrainer, name, passed)
    section = {"preset": "official_code", "gradient": gradient}
    weights = {"name": "gaussian_covariance", "gaussian_covariance": section}
    parts = {"actor": {"ppo_mini_batch_size": 1, "ppo_epochs": 1}, "rollout": {"n": 1}}
    parts["rollout"]["temperature"] = 0.7  # type: ignore[assignment]
    trainer = bare({"recipe": {"weights": weights}, "actor_rollout_ref": parts}, kind)
    trainer.watchdog = SimpleNamespace(begin=lambda: None)

    getattr(trainer, name)(Batch(["a"]), {})
    assert seen == [wanted]
    assert trainer.config.actor_rollout_ref.rollout.temperature == 0.7


def test_the_teacher_has_the_temperature_of_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hint without effect would have an advantage."""
    seen: list[float] = []
    monkeypatch.setattr(
        trainers, "forward_of", lambda _, temperature, rows: seen.append(temperature)
    )
    monkeypatch.setattr(trainers, "hinted_logprobs", lambda *_, **__: None)
    section = {"rollout": {"temperature": 0.7}}
    config = {"recipe": {"advantage": {"name": "sdpo"}}, "actor_rollout_ref": section}
    trainer = bare(config | {"data": {"max_prompt_length": 8}})
    trainer.temperature, trainer.actor_rollout_wg = 1.0, None
    trainer.renderer = trainer.tokenizer = None
    trainer._hinted_logprobs(SimpleNamespace(lengths=[1]), {})
    assert seen == [1.0]


def test_lengths_compared_with_the_longest_row_are_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = ("response_length", "response_length_non_aborted", "prompt_length")
    verls = {f"{kind}/{name}": 0.25 for kind in kinds for name in ("clip_ratio", "mean")}
    verls["actor/pg_clipfrac"] = 0.1
    compute = lambda self, batch, metrics: metrics.update(verls)  # noqa: E731
    monkeypatch.setattr(PPOTrainer, "_compute_metrics", compute)
    trainer = bare(use_critic=False, value_model=None, train_dataloader=[1], end_step=list)
    metrics: dict[str, float] = {}
    trainer._compute_metrics(None, metrics)
    left = {key for key in metrics if not key.startswith("tr")}
    assert left == {key for key in verls if "clip_ratio" not in key}


class PassedError(Exception):
    """Stops after a pass of the actor."""


def test_the_pass_of_token_weights_has_the_adapter_that_the_reference_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With LoRA verl's reference is the actor without its adapter, by a mark that it leaves."""
    seen: list[tuple[bool, float]] = []

    def compute_log_prob(batch: Any) -> None:
        seen.append((batch.extra_info["no_lora_adapter"], batch.extra_info["temperature"]))
        raise PassedError

    weights = {"name": "gaussian_covariance", "gaussian_covariance": {"logprob_temperature": 0.7}}
    rollout = {"rollout": {"temperature": 1.0}}
    settings = {"recipe": {"weights": weights, "overlong_filter": False}}
    settings |= {"actor_rollout_ref": rollout, "algorithm": {"use_kl_in_reward": False}}
    trainer = bare(settings)
    trainer.ref_in_actor = True
    trainer.actor_rollout_wg = SimpleNamespace(compute_log_prob=compute_log_prob)
    batch = SimpleNamespace(extra_info={}, fields=None)
    for compute in (
        lambda: trainer._compute_ref_log_prob(batch, {}),
        lambda: trainer._fetch(batch),
    ):
        with pytest.raises(PassedError):
            compute()
    assert seen == [(True, 1.0), (False, 0.7)]
    monkeypatch.setattr(trainers.batches, "fetch", lambda batch, _: batch)
    weights["gaussian_covariance"] = {"logprob_temperature": 1.0}
    trainer.config.recipe.weights = weights
    assert trainer._fetch(batch) == (batch, None)  # the temperature of the rollout: no pass


def test_rollouts_are_saved_every_second_step_before_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(records, "lines", lambda *_, step, **__: [{"step": step}])
    monkeypatch.setattr(RecipeTrainer, "_fetch", lambda *_: (None, None))
    monkeypatch.setattr(trainers, "signal_of", lambda *_, **__: (None, None, {}))
    monkeypatch.setattr(trainers.batches, "write", lambda *_: None)
    config = {"recipe": {"save_rollouts_every": 2, "advantage": {"name": "grpo"}}}
    buffer = SimpleNamespace(filled_groups=())
    trainer = bare(config, replay_buffer=buffer, run_dir=tmp_path, tokenizer=None)
    for step in range(1, 6):
        trainer.global_steps = step
        trainer._compute_advantage(None, {})
    assert list(RunFolder(tmp_path).rollout_steps()) == [2, 4]


# ------------------------------------------------------------------------- order

QUESTIONS, ROLLOUTS, MINI = 48, 8, 16


Lengths = tuple[tuple[str, int], ...]  # (key, tokens) of every row, in the order of arrival


def lognormal() -> Lengths:
    """The rows of a batch in the order in which groups finish, with their lengths in tokens."""
    draw = random.Random(0)
    groups = {
        f"{q:09d}-question{q % 100}": [int(draw.lognormvariate(6.3, 0.7)) for _ in range(ROLLOUTS)]
        for q in range(QUESTIONS)
    }
    finished = sorted(groups, key=lambda group: max(groups[group]))
    return tuple((f"{g}_{i}_0", n) for g in finished for i, n in enumerate(groups[g]))


@functools.cache  # the tests compare with the same batch, and verl takes half a second for it
def mini_batches(
    lengths: Lengths, owner: Any = RecipeTrainer, ranks: int = 1, step: int = 1, critic: int = 0
) -> list[list[str]]:
    """The keys of every mini-batch of a step as verl's actors get them, all ranks together.

    With `critic`, the questions of its mini-batch, as verl's critics get them.
    """
    mini = critic or MINI
    trainer: Any = object.__new__(RecipeTrainer)  # verl's __init__ starts half a cluster
    trainer.global_steps, trainer.use_critic = step, bool(critic)
    trainer.tokenizer = SimpleNamespace(eos_token_id=0)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    trainer.config = OmegaConf.create(
        {
            "recipe": {"seed": 42},
            "trainer": {"critic_warmup": 0},
            "critic": {"ppo_mini_batch_size": critic},
            "actor_rollout_ref": {
                **{"actor": {"ppo_mini_batch_size": MINI}, "rollout": {"n": ROLLOUTS}}
            },
        }
    )
    tags = [{"seq_len": n} for _, n in lengths]
    batch = KVBatchMeta(keys=[key for key, _ in lengths], tags=tags, partition_id="train")
    batch = owner._balance_batch(trainer, batch, {})
    cut: list[list[str]] = [[] for _ in range(QUESTIONS // mini)]
    for part in batch.chunk(ranks):
        rows = TensorDict({"row": torch.arange(len(part))}, batch_size=len(part))
        slices = make_iterator(rows, mini * ROLLOUTS // ranks, 1, 7, {"shuffle": False})
        for keys, indices in zip(cut, slices, strict=True):
            keys += [part.keys[i] for i in indices["row"].tolist()]
    return cut


def means(cut: list[list[str]], lengths: Lengths) -> list[float]:
    of = dict(lengths)
    return [sum(of[key] for key in keys) / len(keys) for keys in cut]


def test_mini_batches_are_not_sorted_by_length() -> None:
    lengths = lognormal()
    theirs = means(mini_batches(lengths, PPOTrainerSync), lengths)
    assert theirs == sorted(theirs) and theirs[-1] > 1.5 * theirs[0]  # the gap of verl
    for step in range(1, 6):
        ours = means(mini_batches(lengths, step=step), lengths)
        assert max(ours) < 1.25 * min(ours)
    assert len({tuple(mini_batches(lengths, step=step)[0]) for step in range(1, 6)}) == 5


def test_another_seed_or_step_is_another_order() -> None:
    keys = [f"q{i}_{session}_0" for i in range(9) for session in (10, 9)]
    draws = [(0, 1), (1, 1), (0, 2)]
    padding = [key.startswith("q4") for key in keys]  # comes last, whatever is drawn
    orders = [training_order(keys, padding, seed=s, step=t) for s, t in draws]
    assert len(set(map(tuple, orders))) == 3
    assert all(order[i] == order[i + 1] + 1 for order in orders for i in range(0, 18, 2))
    assert {tuple(order[16:]) for order in orders} == {(9, 8)}


@pytest.mark.parametrize("seed", [1, 2])
def test_arrival_does_not_matter(seed: int) -> None:
    lengths = lognormal()
    permuted = tuple(random.Random(seed).sample(lengths, len(lengths)))
    assert mini_batches(permuted) == mini_batches(lengths)
    # negative control: by verl's order it does matter
    assert mini_batches(permuted, PPOTrainerSync) != mini_batches(lengths, PPOTrainerSync)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_mini_batch_holds_the_same_whole_questions_with_any_number_of_ranks(ranks: int) -> None:
    lengths = lognormal()
    alone, many = mini_batches(lengths), mini_batches(lengths, ranks=ranks)
    assert [set(keys) for keys in many] == [set(keys) for keys in alone]
    for keys in alone:
        assert len(keys) == MINI * ROLLOUTS and len({group_id(key) for key in keys}) == MINI
    theirs = mini_batches(lengths, PPOTrainerSync, ranks=ranks)
    assert len({group_id(key) for key in theirs[0]}) > MINI  # negative control


@pytest.mark.parametrize("critic", [MINI // 4, MINI, QUESTIONS])
def test_a_critics_mini_batch_too(critic: int) -> None:
    lengths = lognormal()
    alone, many = (mini_batches(lengths, ranks=ranks, critic=critic) for ranks in (1, 4))
    assert [set(keys) for keys in many] == [set(keys) for keys in alone]
    assert {len({group_id(key) for key in keys}) for keys in alone} == {critic}


def test_the_work_of_every_mini_batch_is_distributed_evenly() -> None:
    lengths = [int(n) for n in torch.randint(100, 3000, (64,), generator=torch.Generator())]
    shares = distribute(range(64), lengths, mini_batch=16, ranks=2)
    for start in range(0, 32, 8):
        work = [sum(lengths[i] for i in rows[start : start + 8]) for rows in shares]
        assert max(work) < 1.1 * min(work)
    assert sorted(i for rows in shares for i in rows) == list(range(64))
