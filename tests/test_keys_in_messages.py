"""Every configuration key that a message or a docstring names exists, in full."""

from pathlib import Path

import pytest
from keys_in_text import constants_of, wrong_keys_in_code

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for folder in ("recipe", "eval", "prompt_aug", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
CONSTANTS = constants_of(SOURCES.values())


def test_every_key_that_a_text_in_the_code_names_exists() -> None:
    assert len(SOURCES) > 150  # they were read
    wrong = {
        path: keys
        for path, source in SOURCES.items()
        if (keys := wrong_keys_in_code(source, CONSTANTS))
    }
    assert wrong == {}


def test_constants_are_known_and_ambiguous_ones_are_not() -> None:
    assert CONSTANTS["KL_IN_REWARD"] == "algorithm.use_kl_in_reward"
    assert constants_of(['A, B = "a", "b"', 'A = "c"', "B, C = 1, f'x'"]) == {"B": "b"}


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('f"{ACTOR}.optim.lr={lr}: too large"', []),
        ('f"{ACTOR}.optim.lrr={lr}: too large"', ["actor_rollout_ref.actor.optim.lrr"]),
        ('f"{unknown}.lrr: nobody knows"', []),
        ('f"recipe.{key}.x and recipe.advantage.{name}"', []),
        ('f"recipe.augments.{key} is off"', ["recipe.augments"]),
        (
            '"set trainer.total_steps, " "or recipe.run_dri"',
            ["trainer.total_steps", "recipe.run_dri"],
        ),
        ('"lower rollout.max_num_seqs there"', ["rollout.max_num_seqs"]),
        ('select(ref, "rollout.max_num_seqs")', []),
        ("f\"{select(c, 'recipe.sed')}\"", ["recipe.sed"]),
        ('"""The key `recipe.sede`."""', ["recipe.sede"]),
        ('"recipe.train, recipe.errors.ConfigError, eval.sweep"', []),
        (
            '"recipe.trian, recipe.errors.userror"',
            ["recipe.trian", "recipe.errors.userror"],
        ),
        ('"checkpoints/data.pt, ray_kwargs.ray_init.any, recipe.yaml"', []),
        ('"recipe.rollout.poll_secondz"', ["recipe.rollout.poll_secondz"]),  # also a package
    ],
)
def test_wrong_keys_in_code_are_seen(code: str, wrong: list[str]) -> None:
    assert wrong_keys_in_code(code, {"ACTOR": "actor_rollout_ref.actor"}) == wrong
