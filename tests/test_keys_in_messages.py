"""Every configuration key that a page, a message or a docstring names exists, in full."""

from pathlib import Path

import pytest
from keys_in_text import constants_of, wrong_keys, wrong_keys_in_code

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for folder in ("recipe", "eval", "prompt_aug", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
CONSTANTS = constants_of(SOURCES.values())
FOLDERS = ("examples", "recipe", "eval", "prompt_aug", "requirements")
PAGES = [ROOT / "README.md", *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))]


def test_keys_in_the_code_exist() -> None:
    assert len(SOURCES) > 100
    found = {path: wrong_keys_in_code(source, CONSTANTS) for path, source in SOURCES.items()}
    assert {path: keys for path, keys in found.items() if keys} == {}


@pytest.mark.config
def test_keys_on_the_pages_exist() -> None:
    found = {str(path.relative_to(ROOT)): wrong_keys(path.read_text("utf-8")) for path in PAGES}
    assert {path: keys for path, keys in found.items() if keys} == {}


def test_constants_are_known_unless_ambiguous() -> None:
    assert CONSTANTS["STEPS"] == "trainer.total_training_steps"
    assert constants_of(['A, B = "a", "b"', 'A = "c"', "B, C = 1, f'x'"]) == {"B": "b"}


def test_wrong_keys_on_a_page_are_found() -> None:
    text = (
        "`actor.use_dynamic_bsz=true`, `clip_ratio_high=0.28`, `recipe.augment.modes`, `trainer.x` "
        "fine: `actor_rollout_ref.actor.use_dynamic_bsz`, `method=grpo`, `recipe.train`, `a == b`, "
        "`ray_kwargs.ray_init.any`, `metrics.jsonl`, `prompt_aug.grading.grade`, `name`"
    )
    wrong = ["actor.use_dynamic_bsz", "clip_ratio_high", "recipe.augment.modes", "trainer.x"]
    assert wrong_keys(text) == wrong


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('f"{ACTOR}.optim.lr={lr}: too large"', ""),
        ('f"{ACTOR}.optim.lrr={lr}: too large"', "actor_rollout_ref.actor.optim.lrr"),
        ('f"recipe.{key}.x and recipe.advantage.{name}"', ""),
        ('f"recipe.augments.{key} is off"', "recipe.augments"),
        ('"set trainer.total_steps, " "or recipe.run_dri"', "trainer.total_steps recipe.run_dri"),
        ('"lower rollout.max_num_seqs there"', "rollout.max_num_seqs"),
        ('select(ref, "rollout.max_num_seqs")', ""),
        ("f\"{select(c, 'recipe.sed')}\"", "recipe.sed"),
        ('"""The key `recipe.sede`."""', "recipe.sede"),
        ('"recipe.trian, recipe.errors.userror"', "recipe.trian recipe.errors.userror"),
        ('"checkpoints/data.pt, ray_kwargs.ray_init.any, recipe.yaml"', ""),
        ('"recipe.rollout.poll_secondz"', "recipe.rollout.poll_secondz"),  # also a package
    ],
)
def test_wrong_keys_in_code_are_found(code: str, wrong: str) -> None:
    found = wrong_keys_in_code(code, {"ACTOR": "actor_rollout_ref.actor"})
    assert found == wrong.split()
