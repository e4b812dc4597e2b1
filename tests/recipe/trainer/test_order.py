"""The order of a batch: through verl's own balancing, dispatch and mini-batch iterator."""

import functools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import make_iterator

from recipe.trainer.order import distribute, group_id, training_order
from recipe.trainer.trainer import RecipeTrainer

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
