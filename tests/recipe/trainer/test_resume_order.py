"""The order of questions does not depend on where a run was stopped, epoch boundaries included."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

QUESTIONS, BATCH, FETCHED = 7, 2, 12  # three batches an epoch, the seventh question left out


class Trainer:
    """verl's data loader, made as verl's trainer makes it, and its way to fetch."""

    def __init__(self, workers: int) -> None:
        data = OmegaConf.create({"shuffle": True, "seed": 1})
        questions = list(range(QUESTIONS))
        self.train_dataloader = StatefulDataLoader(
            dataset=questions,
            batch_size=BATCH,
            num_workers=workers,
            drop_last=True,
            collate_fn=lambda chosen: {"raw_prompt": list(chosen)},
            sampler=create_rl_sampler(data, questions),
        )
        self.train_dataloader_it = None

    def fetch(self) -> list[int]:
        fetched: Any = PPOTrainer._fetch_one_gen_batch(self)  # type: ignore[arg-type]
        return list(fetched["raw_prompt"])

    def steps(self, count: int) -> list[list[int]]:
        """The questions of `count` steps; recipe.trainer.saving notes the state before each."""
        made = []
        for _ in range(count):
            self.before = self.train_dataloader.state_dict()
            made.append(self.fetch())
        return made


def resumed(state: dict[str, Any], workers: int) -> Trainer:
    trainer = Trainer(workers)
    trainer.train_dataloader.load_state_dict(state)
    return trainer


def uninterrupted(workers: int) -> list[list[int]]:
    """The steps of a run that was never stopped, and whose state was never asked for."""
    trainer = Trainer(workers)
    return [trainer.fetch() for _ in range(FETCHED)]


def test_every_epoch_has_each_question_once_in_an_order_of_its_own() -> None:
    whole = uninterrupted(0)
    epochs = [list(itertools.chain(*whole[first : first + 3])) for first in (0, 3, 6)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


# The order is another one with loader processes than without: they draw from the same generator.
@pytest.mark.parametrize(("workers", "places"), [(0, range(8)), (1, (2, 3))])
def test_a_run_stopped_after_any_step_goes_on_with_the_questions_it_would_have_had(
    workers: int, places: Iterable[int]
) -> None:
    whole = uninterrupted(workers)
    for stopped in places:
        first = Trainer(workers)
        assert first.steps(stopped) == whole[:stopped]
        saved = first.train_dataloader.state_dict()
        assert resumed(saved, workers).steps(4) == whole[stopped : stopped + 4]


def test_the_questions_of_a_step_that_is_given_up_come_again() -> None:
    whole = uninterrupted(0)
    for given_up in range(8):
        first = Trainer(0)
        first.steps(given_up + 1)
        assert resumed(first.before, 0).steps(3) == whole[given_up : given_up + 3]
