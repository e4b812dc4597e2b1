"""Statistics of questions: a step never sees itself, and a checkpoint keeps everything."""

import json

from omegaconf import OmegaConf
from rollout_batches import synthetic

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.question_stats import QuestionStats


def stats(enable: bool = True, target: float = 0.5, decay: float = 0.5) -> QuestionStats:
    history = {"enable": enable, "weight": 0.5, "floor": -0.7}
    curriculum = {"enable": enable, "candidates": 4, "target": target, "decay": decay}
    return QuestionStats(OmegaConf.create({"history": history, "curriculum": curriculum}))


def step() -> RolloutBatch:
    """Two responses to question "q": 2 tokens and right, 4 tokens and wrong; the group is "g0"."""
    mask = [[1, 1, 0, 0], [1, 1, 1, 1]]
    return synthetic([1.0, 0.0], [[0.0] * 4] * 2, mask, [0, 0], questions=["q", "q"])


def rates_after(accuracies: list[float], **settings: float) -> list[float]:
    """The pass rate of a question after each of its groups."""
    known, found = stats(**settings), []
    for accuracy in accuracies:
        known.fetch(["g"], ["q"])
        known.see_group("g", accuracy)
        found.append(known.state()["pass_rates"]["q"])
    return found


def test_the_running_rate_by_hand() -> None:
    assert rates_after([1.0, 0.0, 0.5], decay=0.25) == [1.0, 0.75, 0.6875]  # the first sets it
    assert rates_after([0.25, 1.0, 0.125], decay=1.0) == [0.25, 1.0, 0.125]  # the newest alone
    assert rates_after([0.7] * 50, decay=0.3)[-1] == 0.7  # exactly


def test_an_unknown_question_has_the_target() -> None:
    known = stats(target=0.25)
    known.start(["low", "high"], [0.125, 0.5])
    assert known.choose(["high", "low", "new"], 1) == [2]


def test_the_shortest_correct_response_by_hand() -> None:
    """q: 2 tokens and right, 4 and wrong; later 3 tokens, then 1; p is never right."""
    known = stats()
    assert known.shortest_of(["q", "p"]) == [None, None]
    for rewards, mask, wanted in (
        ([1.0, 0.0], [[1, 1, 0, 0], [1, 1, 1, 1]], 2),
        ([1.0, 1.0], [[1, 1, 1, 0], [1, 1, 1, 1]], 2),  # it never grows
        ([0.0, 0.0], [[1, 0, 0, 0], [1, 1, 0, 0]], 2),  # wrong responses do not count
        ([1.0, 1.0], [[1, 1, 0, 0], [1, 0, 0, 0]], 1),
    ):
        known.fetch(["g0"], ["q"])
        known.see_step(synthetic(rewards, [[0.0] * 4] * 2, mask, [0, 0], questions=["q", "q"]))
        assert known.shortest_of(["q", "p"]) == [wanted, None]


def test_a_checkpoint_keeps_the_statistics() -> None:
    before, after = stats(), stats()
    before.fetch(["g0", "surplus"], ["q", "p"])
    seen = {"curriculum/questions_seen": 1.0, "curriculum/pass_rate": 0.5}
    assert before.see_step(step()) == seen
    before.see_group("surplus", 1.0)  # of a step that has ended
    before.fetch(["g1"], ["other"])
    before.see_group("g1", 1.0)
    before.see_group("g1", 0.0)  # evicted, then a filler group: one group counts once
    after.load(before.state())
    wanted = {"shortest": {"q": 2}, "pass_rates": {"q": 0.5, "other": 1.0}}
    assert after.state() == before.state() == wanted == json.loads(json.dumps(wanted))
    after.fetch(["g2"], ["q"])
    after.see_group("g2", 1.0)
    assert before.state() == wanted  # nothing is shared
    after.load(before.state())
    assert after.choose(["other", "q"], 1) == [1]
    after.load({})  # a checkpoint of an older version
    assert after.state() == {"shortest": {}, "pass_rates": {}}


def test_a_measured_pass_rate_is_the_first_estimate() -> None:
    known = stats()
    known.start(["hard", "new", "half"], [0.0, None, 0.5])
    assert known.choose(["hard", "new", "half"], 2) == [1, 2]
    known.fetch(["g0"], ["hard"])
    known.see_group("g0", 1.0)  # 0 + decay x (1 - 0): the estimate moves from the measured rate
    assert known.state()["pass_rates"]["hard"] == known.curriculum.decay
    known.start(["hard"], [0.0])
    assert known.state()["pass_rates"]["hard"] == known.curriculum.decay  # not measured again


def test_predictions_of_all_parts_of_a_step_are_compared() -> None:
    """verl fetches the questions of a step in parts (data.gen_batch_size)."""
    known = stats()
    for group, question, rate in (("g0", "q", 0.75), ("g1", "p", 0.5)):
        known.choose([question], 1, [rate])
        known.fetch([group], [question])
    assert known.see_step(step())["curriculum/value_error"] == 0.25
    known.fetch(["g0"], ["q"])
    assert "curriculum/value_error" not in known.see_step(step())  # no prediction in this step


def test_groups_in_flight_are_resumed_and_counted_in_their_own_step() -> None:
    """Group g1 is requested before the step of g0 ends, and trained after a resume."""
    before, after = stats(), stats()
    before.fetch(["g0", "g1"], ["q", "p"])
    before.choose(["q"], 1, [0.75])
    before.choose(["p"], 1, [0.5])
    assert before.see_step(step(), in_flight={"g1"})["curriculum/value_error"] == 0.25
    after.load(json.loads(json.dumps(before.state())))
    for known in (before, after):
        known.see_group("g1", 1.0)
        assert known.rates == {"q": 0.5, "p": 1.0} and known.predicted == {"p": 0.5}


def test_disabled_sections_record_nothing() -> None:
    off = stats(enable=False)
    off.fetch(["g0"], ["q"])
    off.see_group("g0", 1.0)
    assert off.see_step(step()) == {}
    assert off.state() == {"shortest": {}, "pass_rates": {}}
    assert off.candidates == 1
