"""The trainer's ids of groups; what it saves is test_saving.py, the rest runs end to end."""

from typing import Any

from omegaconf import OmegaConf

from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.trainer import RecipeTrainer


def fetched(batches: int, start: int = 0) -> list[list[str]]:
    """The ids of the groups of each batch, by a trainer that has fetched `start` batches before."""
    questions = [["a", "b"], ["c", "a"]]
    rows = [{"raw_prompt": q, "extra_info": [{"uid": uid} for uid in q]} for q in questions]
    trainer: Any = object.__new__(RecipeTrainer)
    trainer.train_dataloader, trainer.train_dataloader_it = rows, None
    trainer.batches_fetched = start
    off = {"enable": False, "candidates": 1, "target": 0.5, "decay": 0.5}
    trainer.question_stats = QuestionStats(OmegaConf.create({"history": off, "curriculum": off}))
    if start:
        trainer.train_dataloader_it = iter(rows[start % 2 :])
    return [list(trainer._fetch_one_gen_batch()["uid"]) for _ in range(batches)]


def test_a_group_is_named_after_its_place_in_the_data_order() -> None:
    """Also after a resume; verl's own ids are random, and so would be what depends on them."""
    names = fetched(3)
    assert names[0] == ["000000000-a", "000000001-b"]
    assert names[1] == ["000000002-c", "000000003-a"]
    assert names[2] == ["000000004-a", "000000005-b"]
    assert fetched(2, start=1) == names[1:]
