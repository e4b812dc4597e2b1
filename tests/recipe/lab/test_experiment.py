"""Experiments as they are written down: complete, consistent, and refused where they are not."""

from pathlib import Path
from typing import Any

import pytest

from prompt_aug.templates import load_bank
from recipe.lab.experiment import Arm, ExperimentError, experiment_of, load_experiment, names

BODY: dict[str, Any] = {
    "steps": 20,
    "save_every": 10,
    "measure": {"questions": 8, "samples": 4, "templates": ["qwen-math"]},
    "arms": {"grpo": {"world": "sums", "decides": True}, "kl": {"world": "sums", "set": ["a=1"]}},
    "compare": [["kl", "grpo"]],
    "curves": ["train/accuracy"],
}
MECHANISM: dict[str, Any] = {"arm": "grpo", "figure": "qwen-math pass@1", "least": 0.1}
CLAIM: dict[str, Any] = {
    **{"claim": "KL helps", "arms": ["kl", "grpo"], "figure": "qwen-math pass@1"},
    "direction": "above",
}
PATH = Path("experiment.yaml")


@pytest.mark.parametrize("name", names())
def test_an_experiment_has_its_prediction_and_can_decide(name: str) -> None:
    experiment = load_experiment(name)
    assert (experiment.folder / "prediction.md").is_file()
    assert (experiment.folder / "README.md").is_file()
    deciding = {arm.name for arm in experiment.arms if arm.decides}
    assert not deciding or any(set(pair) <= deciding for pair in experiment.compare)
    for template in experiment.measure.templates:
        assert template in load_bank()
    digests = [experiment.digest(arm) for arm in experiment.arms]
    assert len(set(digests)) == len(digests)  # no arm is another under a second name


def test_arms_that_decide_have_all_seeds() -> None:
    experiment = experiment_of(BODY, "cw_grpo", PATH)
    grpo, kl = experiment.arms
    assert experiment.seeds(grpo, 5) == [1000, 1001, 1002, 1003, 1004]
    assert experiment.seeds(kl, 5) == [1000, 1001, 1002]
    assert experiment.seeds(kl, 2) == [1000, 1001]


TEN = ["kl", *"abcdefghi"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": 3}, "step: unknown key, did you mean steps?"),
        ({"name": "other"}, "name=other: the folder's name is used"),
        ({"steps": 0}, "steps=0: should be greater"),
        ({"worlds": 0}, "worlds=0: should be greater"),
        ({"curves": None}, "curves: not set"),
        ({"measure": {"questions": 8, "samples": 4}}, r"measure\.templates: not set"),
        (
            {"measure": {**BODY["measure"], "templates": []}},
            r"templates=\[\]: should have at least",
        ),
        ({"compare": [["kl"]]}, r"compare\[0\]=\[kl\]: should have at least 2"),
        ({"compare": [["kl"] * 3]}, r"compare\[0\]=.*: should have at most 2"),
        (
            {
                "arms": {n: {"world": "sums"} for n in TEN},
                "compare": [TEN[i:][:2] for i in range(9)],
            },
            "10 arms, and pictures have 9 colors",
        ),
        ({"steps": 25}, "steps=25: not a multiple of save_every=10"),
        ({"compare": [["kl", "rloo"]]}, "no arm rloo; it has grpo, kl"),
        ({"arms": None}, "arms: not set"),
        ({"arms": {"grpo": None}}, r"arms\.grpo: not set"),
        ({"arms": {"grpo": {"decides": True}}}, r"arms\.grpo\.world: not set"),
        ({"arms": {"grpo": {"world": "sums", "sets": []}}}, r"arms\.grpo\.sets: unknown key, did"),
        ({"arms": {"grpo": {"world": "sums", "name": "a"}}}, r"arms\.grpo\.name: unknown key"),
        ({"mechanism": MECHANISM | {"minus": ["no", "f"]}}, "no arm no; it has"),
        ({"claims": [CLAIM]}, r"arms\.kl\.decides=false: it is in a claim"),
        (
            {"claims": [CLAIM | {"direction": "over"}]},
            r"direction=over: should be 'above', 'below'",
        ),
        ({"claims": [CLAIM | {"arms": ["kl"]}]}, r"claims\[0\]: arms=\[kl\]: not two or four"),
        ({"claims": [CLAIM | {"margin": 0.1}]}, r"claims\[0\]: direction=above: equal needs"),
        ({"claims": [CLAIM | {"direction": "equal"}]}, "direction=equal: equal needs a `margin`"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: str) -> None:
    body = {k: v for k, v in {**BODY, **changes}.items() if v is not None}
    with pytest.raises(ExperimentError, match=said):
        experiment_of(body, "cw_grpo", PATH)


def test_an_unknown_experiment_and_a_file_without_sections_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"no experiment nope: known are .*cw_grpo"):
        load_experiment("nope")
    with pytest.raises(ExperimentError, match=r"^experiment.yaml: should be a section of keys"):
        experiment_of(["steps"], "cw_grpo", PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 40},
        {"save_every": 5},
        {"measure": {"questions": 9, "samples": 4, "templates": ["qwen-math"]}},
        {"arms": {**BODY["arms"], "kl": {"world": "sums", "set": ["a=2"]}}},
        {"arms": {**BODY["arms"], "kl": {"world": "primed", "set": ["a=1"]}}},
    ],
)
def test_what_decides_the_numbers_changes_the_digest(changes: dict[str, Any]) -> None:
    one, other = (experiment_of(body, "cw_grpo", PATH) for body in (BODY, {**BODY, **changes}))
    assert one.digest(one.arm("kl")) != other.digest(other.arm("kl"))


def test_what_does_not_decide_them_leaves_it() -> None:
    """More arms, other comparisons or curves, and who decides: the runs made stay valid."""
    arms = {"rloo": {"world": "sums"}, "kl": {**BODY["arms"]["kl"], "decides": True}}
    other = experiment_of({**BODY, "arms": arms, "compare": [], "curves": []}, "cw_grpo", PATH)
    one = experiment_of(BODY, "cw_grpo", PATH)
    assert one.digest(one.arm("kl")) == other.digest(other.arm("kl"))


def test_seeds_share_worlds() -> None:
    shared = experiment_of({**BODY, "worlds": 4}, "edge", PATH)
    assert [shared.world_seed(seed) for seed in (1000, 1003, 1004, 1019, 2, 6)] == [
        *(1000, 1003, 1000, 1003, 2, 2)
    ]
    assert experiment_of(BODY, "edge", PATH).world_seed(1005) == 1005
    simulated = experiment_of({**BODY, "simulated": True}, "edge", PATH)
    real = Arm(name="grpo", world="sums", verl=True)
    assert simulated.simulates(simulated.arms[0]) and not simulated.simulates(real)
    assert simulated.digest(simulated.arms[0]) != simulated.digest(real)
    assert shared.digest(shared.arms[0]) != experiment_of(BODY, "edge", PATH).digest(shared.arms[0])
