"""A method of one's own in an experiment: what is resolved, refused, run and written."""

from pathlib import Path
from typing import Any

import pytest

from prompt_aug.base.errors import UsageError
from recipe.errors import ConfigError
from recipe.lab.card import card, mechanism
from recipe.lab.experiment import Arm, Experiment, Measure, Mechanism
from recipe.lab.runs import check_arm
from recipe.lab.trial import Method, method_of, tried, written

OWN = """
def weight(logprobs_BT, advantages_BT, mask_BT, group_B, *, power=1.0, **_):
    return mask_BT

def advantage(rewards_B, group_B):
    return rewards_B

def other(a, b, c):
    return a

CONSTANT = 5

class Loss:
    loss_mode = "mine"

class Unnamed:
    loss_mode = "vanilla"
"""

PLAN = Experiment(
    name="edge",
    steps=100,
    save_every=50,
    measure=Measure(questions=4, samples=2, templates=("qwen-math",)),
    arms=(
        Arm(name="grpo", world="edge", decides=True),
        Arm(name="kl", world="edge"),
        Arm(name="control", world="few"),
    ),
    compare=(),
    curves=(),
    simulated=True,
    mechanism=Mechanism(arm="grpo", figure="qwen-math pass@1, best - last", least=0.1),
)


def line(*path: float) -> dict[str, Any]:
    """A run whose checkpoints have these pass@1."""
    numbers = [{"greedy": p, "pass@1": p, "pass@2": p, "entropy": 0.1} for p in path]
    measured = {str(50 * i): {"qwen-math": n} for i, n in enumerate(numbers)}
    how = {"commit": "0123456789ab", "measured_at": "0123456789ab", "uncommitted_changes": False}
    return {"measured": measured, "curves": {}, "seconds": 30, **how}


LOSS = "actor_rollout_ref.actor.policy_loss"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("weight", ("recipe.weights.name=own_weight.weight",)),
        ("advantage", ("recipe.advantage.name=own_advantage.advantage",)),
        ("Loss", (f"{LOSS}._target_=own_Loss.Loss", f"{LOSS}.loss_mode=mine")),
    ],
)
def test_the_arguments_say_what_a_function_is(
    tmp_path: Path, name: str, settings: tuple[str, ...]
) -> None:
    file = tmp_path / f"own_{name}.py"
    file.write_text(OWN)
    found = method_of(f"{file}:{name}")
    assert (found.set, found.folder) == (settings, tmp_path)
    file.write_text(OWN + "\n")
    assert method_of(f"{file}:{name}").name != found.name  # edited: trained again


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no_method", "no such method"),
        ("absent.py:weight", "no such file"),
        ("own_refused.py:absent", "cannot be imported .AttributeError"),
        ("own_refused.py:other", "takes a, b, c"),
        ("own_refused.py:CONSTANT", "5 is not a function"),
        ("own_refused.py:Unnamed", "sets no loss_mode"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    (tmp_path / "own_refused.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        method_of(given)


@pytest.mark.config
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("optim.lr=1e-4", r"no key 'optim\.lr'"),
        ("recipe.weights.name=nosuch", r"recipe\.weights\.name=nosuch: "),
    ],
)
def test_settings_that_cannot_run_are_refused_before_the_runs(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_arm(PLAN, Arm(name="x", world="few", set=(wrong,)))


def test_the_method_is_the_last_arm_and_compared_with_the_first() -> None:
    """It has the settings of that baseline, whose absence would else be what is compared."""
    noisy = PLAN.arms[0].model_copy(update={"set": ("recipe.toy.sampler_noise=0.25",)})
    plan = PLAN.model_copy(update={"arms": (noisy, *PLAN.arms[1:])})
    plan = tried(plan, method_of("cw_grpo"), ["grpo"], ["a=1"])
    assert [arm.name for arm in plan.arms[:2]] == ["grpo", "kl"]  # not of another world
    assert plan.arms[-1].name.startswith("cw_grpo_")
    assert plan.arms[-1].set == (*noisy.set, "method=cw_grpo", "a=1")
    assert plan.arms[-1].world == "edge"
    assert set(plan.compare) == {(plan.arms[-1].name, "grpo"), ("kl", "grpo")}
    assert tried(PLAN, method_of("grpo"), ["grpo"], []).arms[-1].name == "grpo_tried"


def test_an_arm_on_record_is_neither_run_in_its_place_nor_listed_twice() -> None:
    recorded = Arm(name="cw_grpo", world="edge", set=("method=cw_grpo", "a=1"))
    plan = PLAN.model_copy(update={"arms": (*PLAN.arms, recorded)})
    own = tried(plan, method_of("cw_grpo"), ["grpo"], []).arms[-1]
    assert (own.name, own.set) == ("cw_grpo_tried", ("method=cw_grpo",))
    same = tried(plan, method_of("cw_grpo"), ["grpo"], ["a=1"])
    assert [arm.set for arm in same.arms].count(recorded.set) == 1
    names = {tried(plan, method_of("kl_cov"), ["grpo"], [f"a={n}"]).arms[-1].name for n in (1, 2)}
    assert len(names) == 2


@pytest.mark.parametrize(("last", "said"), [(0.5, "present"), (0.75, "absent: draw no conclusion")])
def test_the_mechanism_is_the_mean_over_seeds(last: float, said: str) -> None:
    # best - last is 0.8 - last and 0: by the mean 0.15 and 0.025
    lines = {("grpo", 1000): line(0.1, 0.8, last), ("grpo", 1001): line(0.1, 0.7, 0.7)}
    assert said in mechanism(PLAN, lines)
    assert "unknown" in mechanism(PLAN, {})
    assert "states no" in mechanism(PLAN.model_copy(update={"mechanism": None}), lines)


def test_the_mechanism_may_be_a_difference() -> None:
    """Of the seeds that both arms have: here 0.5 - 0.3."""
    wanted = Mechanism(
        arm="kl", figure="qwen-math pass@1", minus=("grpo", "qwen-math pass@1"), least=0.1
    )
    plan = PLAN.model_copy(update={"mechanism": wanted})
    lines = {("kl", 1): line(0.1, 0.5), ("kl", 2): line(0.1, 0.9), ("grpo", 1): line(0.1, 0.3)}
    found = "`qwen-math pass@1` of `kl` - `qwen-math pass@1` of `grpo` is 0.200 (1 seeds)"
    text = card(plan, lines, {"commit": "0123456789", "uncommitted_changes": False})
    assert f"Mechanism present: {found}" in text
    assert "Arm `kl`:" in text and "| 50 | 0.700 |" in text and "| 50 | 0.300 |" in text


def test_a_page_by_hand() -> None:
    plan = tried(PLAN, Method(name="mine", set=("a=1",)), ["grpo"], [])
    lines = {
        ("grpo", 1000): line(0.1, 0.8, 0.5),
        ("grpo", 1001): line(0.1, 0.6, 0.3),
        ("mine", 1000): line(0.1, 0.8, 0.7),
        ("mine", 1001): line(0.1, 0.6, 0.6),
    }
    page = written(plan, lines, Method(name="mine", set=("a=1",)), "command")
    numbers = "0.400 ± 0.141 | 0.300 ± 0.000 | 0.400 ± 0.141 | 0.100 ± 0.000"
    assert f"| grpo | 2 | {numbers} |  |  |  |" in page
    # differences 0.2 and 0.3: mean 0.25, t 12.7062 x 0.0707 / sqrt 2 = 0.635, p 2 of 4
    assert "| mine | 2 | 0.650 ± 0.071 | 0.050" in page and "| +0.250 | ±0.635 | 0.5 |" in page
    assert "2 seeds cannot reach less than 0.5" in page
    assert page.count("\n") < 40  # one screen


def test_a_card_has_the_mechanism_and_the_means_of_checkpoints() -> None:
    lines = {("grpo", 1): line(0.1, 0.8, 0.5), ("grpo", 2): line(0.3, 0.6, 0.3)}
    text = card(PLAN, lines, {"commit": "0123456789", "uncommitted_changes": False})
    assert "Mechanism present: `qwen-math pass@1, best - last` of `grpo` is 0.300" in text
    assert "| 0 | 0.200 | 0.200 | 0.100 |" in text
    assert "| 100 | 0.400 | 0.400 | 0.100 |" in text
    assert "pilot seeds 1, 2" in text
