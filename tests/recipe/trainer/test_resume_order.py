"""The order of questions does not depend on where a run stopped, also across epochs."""

from collections.abc import Iterable
from typing import Any

import pytest
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

QUESTIONS, BATCH, FETCHED = 7, 2, 12  # three batches an epoch; one question is dropped


class Trainer:
    """verl's data loader, created and read as in verl's trainer."""

    def __init__(self, workers: int, state: dict[str, Any] | None = None) -> None:
        questions = list(range(QUESTIONS))
        self.train_dataloader = StatefulDataLoader(
            dataset=questions,
            batch_size=BATCH,
            num_workers=workers,
            drop_last=True,
            collate_fn=lambda chosen: {"raw_prompt": list(chosen)},
            sampler=create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 1}), questions),
        )
        self.train_dataloader_it = None
        if state:
            self.train_dataloader.load_state_dict(state)

    def steps(self, count: int, save: bool = True) -> list[list[int]]:
        """The questions of `count` steps; recipe.trainer.saving takes the state before each."""
        made = []
        for _ in range(count):
            self.before = self.train_dataloader.state_dict() if save else None
            fetched: Any = PPOTrainer._fetch_one_gen_batch(self)  # type: ignore[arg-type]
            made.append(list(fetched["raw_prompt"]))
        return made


# With loader processes the order is another one: they draw from the same generator.
@pytest.mark.parametrize(("workers", "places"), [(0, range(8)), (1, (2, 3))])
def test_a_resumed_run_has_the_questions_of_an_uninterrupted_one(
    workers: int, places: Iterable[int]
) -> None:
    whole = Trainer(workers).steps(FETCHED, save=False)
    for stopped in places:
        first = Trainer(workers)
        assert first.steps(stopped) == whole[:stopped]
        saved = first.train_dataloader.state_dict()
        assert Trainer(workers, saved).steps(4) == whole[stopped : stopped + 4]
        if workers == 0:  # the questions of a discarded step are fetched again
            first.steps(1)
            assert Trainer(0, first.before).steps(3) == whole[stopped : stopped + 3]
