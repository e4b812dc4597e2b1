"""A small experiment of two arms, for the tests of runs and of their page."""

from recipe.lab.experiment import Arm, Experiment, Measure


def experiment(steps: int = 6) -> Experiment:
    return Experiment(
        name="cw_grpo",
        steps=steps,
        save_every=3,
        measure=Measure(questions=4, samples=2, templates=("qwen-math",)),
        arms=(Arm(name="grpo", world="sums"), Arm(name="kl", world="sums", set=("a=1",))),
        compare=(("kl", "grpo"),),
        curves=("train/accuracy", "never/logged"),
    )
