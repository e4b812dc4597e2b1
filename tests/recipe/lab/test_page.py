"""results.md says what the record says."""

from pathlib import Path
from typing import Any

import pytest
from lab_experiment import experiment

from recipe.lab import page, pictures
from recipe.lab.experiment import COMPARED, Arm, Claim, ExperimentError, load_experiment, names
from recipe.lab.runs import read_record


def line(arm: str, seed: int, accuracy: float, curve: list[float]) -> dict[str, Any]:
    early = {"greedy": 0.0, "pass@1": 0.75, "pass@2": 0.0, "entropy": 9.0}
    last = {"greedy": 0.5, "pass@1": accuracy, "pass@2": 0.9, "pass@16": 1.0, "entropy": 0.1}
    return {
        **{"arm": arm, "seed": seed, "commit": "0123456789", "uncommitted_changes": False},
        **{"seconds": 61, "curves": {"train/accuracy": curve, "never/logged": []}},
        "measured": {"9": {"qwen-math": early}, "10": {"qwen-math": last}},
    }


def lines() -> dict[tuple[str, int], dict[str, Any]]:
    values = [("grpo", 1000, 0.30), ("grpo", 1001, 0.40), ("kl", 1000, 0.50), ("kl", 1001, 0.62)]
    return {(a, s): line(a, s, v, [0.1, 0.2, 0.4]) for a, s, v in values}


def test_figures_are_of_the_last_checkpoint_and_the_end_of_a_curve() -> None:
    found = page.figures(line("grpo", 1000, 0.3, [0.1, 0.2, 0.4]))
    assert found["qwen-math pass@1"] == 0.3  # step 10, not 9
    assert found["qwen-math pass@1, best - last"] == 0.45
    assert found["qwen-math pass@1, largest fall"] == 0.45
    assert found["qwen-math pass@16"] == 1.0  # the largest k, as a number
    assert abs(found["train/accuracy, end"] - 0.3) < 1e-12
    assert abs(found["train/accuracy, mean"] - 0.7 / 3) < 1e-12
    again = line("grpo", 1000, 0.3, [])
    again["measured"]["11"] = {"qwen-math": {"pass@1": 0.5}}
    recovered = page.figures(again)  # 0.75, 0.3, 0.5
    assert recovered["qwen-math pass@1, best - last"] == 0.25
    assert recovered["qwen-math pass@1, largest fall"] == 0.45
    assert "never/logged, end" not in found


def test_steps_without_a_value_are_left_out_of_a_curve() -> None:
    broken = line("grpo", 1000, 0.3, [])
    broken["curves"] = {"train/entropy": [0.1, None, 0.4, None], "never/measured": [None, None]}
    found = page.figures(broken)
    assert (found["train/entropy, end"], found["train/entropy, mean"]) == (0.4, 0.25)
    assert not [key for key in found if key.startswith("never")]


def test_a_simulated_experiment_has_a_row_for_each_arm() -> None:
    measure = experiment().measure.model_copy(update={"samples": 16})
    plan = experiment().model_copy(update={"simulated": True, "measure": measure})
    baseline, kl = page.summary(plan, lines()).splitlines()[2:]
    assert baseline.startswith("| grpo | 2 | 0.350 ± 0.071 | 0.400 ± 0.071 |")
    # differences 0.20 and 0.22: of the sums 0.42, -0.02, 0.02, -0.42 two are as far from 0
    assert kl.endswith("| +0.210 | ±0.127 | 0.5 |")  # 12.706 x 0.0141 / sqrt(2)
    assert "Simulated steps: 6" in page.results(plan, lines(), missing=0)
    elsewhere = (plan.arms[0], plan.arms[1].model_copy(update={"world": "few"}))
    other = page.summary(plan.model_copy(update={"arms": elsewhere}), lines()).splitlines()[3]
    assert other.endswith("|  |  |  |")  # the first arm of its world


def deciding(*names: str) -> tuple[Arm, ...]:
    return tuple(Arm(name=name, world="sums", decides=True) for name in names)


def claim(direction: str, *arms: str, margin: float | None = None) -> Claim:
    return Claim(
        claim="c", arms=arms, figure="qwen-math pass@1", direction=direction, margin=margin
    )


def test_claims_are_decided_when_all_their_runs_are_on_record() -> None:
    arms = deciding("grpo", "kl", "low", "same")
    # A seed shifts every arm alike; kl is +0.1 in each seed, low +0.1 only in seed 1000.
    shift = {"grpo": lambda s: 0.0, "kl": lambda s: 0.1, "same": lambda s: 0.0}
    shift["low"] = lambda s: 0.1 if s == 1000 else 0.0
    record = {
        (a.name, s): line(a.name, s, s / 4000 + shift[a.name](s), [])
        for a in arms
        for s in range(1000, 1020)
    }
    claims = (
        claim("above", "kl", "grpo"),
        claim("below", "kl", "grpo"),
        claim("above", "low", "grpo"),
        claim("above", "kl", "grpo", "same", "grpo"),
    )
    plan = experiment().model_copy(update={"arms": arms, "claims": claims, "simulated": True})
    met, reverse, undecided, twice = page.verdicts(plan, record).splitlines()[2:]
    # All of 20 differences have one sign: p = 2 / 2^20; Holm takes the smallest of three times 3.
    assert "| +0.100 |" in met and "| 1.9e-06 | 1.9e-06 | **met** |" in met
    assert "| 1.9e-06 | 5.7e-06 | **the reverse** |" in reverse
    assert undecided.endswith("| 1 | 1 | undecided |")
    assert "| +0.100 |" in twice and twice.endswith("**met** |")
    partly = {k: v for k, v in record.items() if k != ("low", 1019)}
    assert len(page.verdicts(plan, partly).splitlines()) == 3  # the primary claim alone
    assert page.verdicts(plan, {k: v for k, v in record.items() if k != ("kl", 1019)}) == ""
    assert page.verdicts(plan.model_copy(update={"claims": ()}), record) == ""
    unmeasured = claims[0].model_copy(update={"figure": "qwen-math format"})
    with pytest.raises(ExperimentError, match="qwen-math format: not on record for kl"):
        page.verdicts(plan.model_copy(update={"claims": (unmeasured,)}), record)
    record["kl", 1000]["measured"]["10"]["qwen-math"]["format"] = 1.0  # of one run of twenty
    with pytest.raises(ExperimentError, match="qwen-math format: not on record for kl"):
        page.verdicts(plan.model_copy(update={"claims": (unmeasured,)}), record)
    assert {name for name, _ in page.whole(plan, partly)} == {"grpo", "kl", "same"}  # low: not yet


def test_a_figure_of_two_templates_is_their_mean() -> None:
    first = line("grpo", 1000, 0.25, [])
    for numbers in first["measured"].values():
        numbers["abel"] = {**numbers["qwen-math"], "pass@1": 0.75}
        numbers["abel"]["format"] = 0.5
    arm, record = Arm(name="grpo", world="sums"), {("grpo", 1000): first}
    found = page.of_figure(arm, record, "qwen-math+abel pass@1")
    assert found == {1000: 0.5}
    assert page.of_figure(arm, record, "abel pass@1") == {1000: 0.75}
    assert page.of_figure(arm, record, "abel format") == {1000: 0.5}
    assert page.of_figure(arm, record, "abel+formal pass@1") == {}


def test_equality_is_decided_by_the_interval() -> None:
    arms = deciding("grpo", "kl")
    shifts = {1000: 0.01, 1001: -0.01, 1002: 0.0}  # 0 ± 4.303 x 0.01 / sqrt(3) = ± 0.0248
    record = {
        (name, s): line(name, s, 0.5 + (shift if name == "kl" else 0.0), [])
        for s, shift in shifts.items()
        for name in ("grpo", "kl")
    }

    def verdict(margin: float) -> str:
        claims = (claim("equal", "kl", "grpo", margin=margin),)
        changes = {"arms": arms, "claims": claims, "counted": 3, "simulated": True}
        plan = experiment().model_copy(update=changes)
        return page.verdicts(plan, record).splitlines()[2].split(" | ")[-1]

    assert verdict(0.03) == "**equal within 0.03** |"
    assert verdict(0.024) == "undecided |"


@pytest.mark.parametrize(
    ("path", "fall"),
    [([0.8, 0.5, 0.7], 0.3), ([0.8, 0.85, 0.7], 0.15), ([0.1, 0.2], 0.0)],
)
def test_a_fall_that_recovers_is_seen(path: list[float], fall: float) -> None:
    assert page.largest_fall(path) == pytest.approx(fall)


def test_tables_by_hand() -> None:
    text = page.results(experiment(), lines(), missing=3)
    assert "| qwen-math pass@1 | 0.350 ± 0.071 | 0.560 ± 0.085 |" in text
    assert "| pass@1 | template | step 9 | step 10 |" in text
    assert "| kl | qwen-math | 0.750 | 0.560 |" in text
    # differences 0.20 and 0.22: mean 0.21, half width 12.706 * 0.01414 / sqrt(2) = 0.127
    assert "| kl - grpo: qwen-math pass@1 | 2 | **+0.210** | +0.083 to +0.337 |" in text
    assert "| kl - grpo: qwen-math greedy | 2 | +0.000 | +0.000 to +0.000 |" in text
    assert "**3 counted runs are still to be made.**" in text
    assert "| kl | 2 | 0123456789 | 61 |" in text


def test_arms_of_one_seed_that_began_with_two_models_are_named() -> None:
    found = lines()
    assert page.other_starts(experiment(), found) == ""
    found["kl", 1001]["measured"]["9"]["qwen-math"] |= {"pass@1": 0.7490}
    told = page.results(experiment(), found, missing=0)
    assert "floats differ: kl - grpo of seed 1001. These" in told
    arms = (experiment().arms[0], Arm(name="kl", world="few", set=("a=1",)))
    apart = experiment().model_copy(update={"arms": arms})
    assert page.other_starts(apart, found) == ""  # another world has another start model


def test_pictures_are_drawn_of_what_was_logged(tmp_path: Path) -> None:
    pictures.draw(experiment(), lines(), tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    held_out = {f"template_qwen-math_pass_at_{k}.png" for k in (1, 2)}
    assert drawn == {"train_accuracy.png", *held_out}
    text = page.results(experiment(), lines(), missing=0)
    assert all(f"]({name})" in text for name in drawn)


def test_curves_by_hand() -> None:
    """Checkpoints stand at their step in the order of numbers, means of 5 steps at their middle."""
    of = pictures.trajectories(experiment(), lines(), "qwen-math pass@1")
    assert of["kl"] == [[(9, 0.75), (10, 0.5)], [(9, 0.75), (10, 0.62)]]
    of = pictures.trajectories(experiment(), lines(), "qwen-math pass@2")
    assert of["grpo"] == [[(9, 0.0), (10, 0.9)]] * 2
    of = pictures.trajectories(experiment(), lines(), "train/accuracy")
    assert of["grpo"][0] == [(3, 0.1), (8, 0.2), (13, 0.4)]
    assert pictures.trajectories(experiment(), lines(), "never/logged") == {}


def test_every_picture_has_all_compared_arms_in_their_own_colors() -> None:
    assert len(set(pictures.COLOURS)) == COMPARED
    for name in names():
        tried = load_experiment(name)
        arms = pictures.by_comparison(tried)
        assert set(arms) <= {arm.name for arm in tried.arms}
        if not (tried.folder / "results.md").is_file():
            continue  # not evaluated yet
        lines = page.whole(tried, read_record(tried.folder / "record.jsonl", tried))
        made = pictures.pictures(tried, lines)
        assert all(1 <= len(picture.curves) <= len(pictures.COLOURS) for picture in made)
        held_out = [set(p.curves) for p in made if p.title.startswith("Held-out")]
        assert set().union(*held_out) == set(arms) & {name for name, _ in lines}
        assert all((tried.folder / picture.file).is_file() for picture in made)
        assert {p.name for p in tried.folder.glob("*.png")} == {p.file for p in made}
