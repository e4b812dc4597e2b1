"""Data sources: rows by weight, by hand, and verifiers that are tried before a run."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from prompt_aug.questions import Question, make_question
from prompt_aug.verifiers import VerifierLimits
from recipe.errors import ConfigError
from recipe.preflight.questions import check_verifiers, counts_of, weighted


def questions(**counts: int) -> list[Question]:
    return [
        make_question(text=f"{source} {i}?", answers=(str(i + 1),), source=source)
        for source, count in counts.items()
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("sizes", "weights", "rows"),
    [
        ({"a": 4, "b": 2}, None, {"a": 4, "b": 2}),
        ({"a": 4, "b": 2}, {"a": 1.0, "b": 1.0}, {"a": 4, "b": 4}),
        ({"a": 4, "b": 2}, {"a": 3.0, "b": 1.0}, {"a": 6, "b": 2}),
        ({"a": 4, "b": 3}, {"a": 0.5, "b": 0.5}, {"a": 4, "b": 4}),  # one of b occurs twice
        ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 1, "c": 2}, {"a": 2, "b": 2, "c": 4}),
    ],
)
def test_rows_by_weight(sizes: dict, weights: Any, rows: dict[str, int]) -> None:
    made = weighted(questions(**sizes), weights)
    assert counts_of(made) == rows
    times = {q.uid: sum(row.uid == q.uid for row in made) for q in questions(**sizes)}
    assert min(times.values()) == 1 if weights else set(times.values()) == {1}
    for source in sizes:  # those of a source equally often, up to one
        of_source = [times[q.uid] for q in questions(**sizes) if q.source == source]
        assert max(of_source) - min(of_source) <= 1


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"a": 1.0}, "the sources of data.train_files are a, b"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "the sources of data.train_files are a, b"),
    ],
)
def test_weights_that_do_not_fit(weights: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        weighted(questions(a=4, b=2), weights)


def tried(**functions: str) -> dict[str, Any]:
    limits = VerifierLimits(cpu_seconds=0.5, memory_gib=0.1).model_dump()
    verifiers = {source: f"own_verifiers.{name}" for source, name in functions.items()}
    reward = {"verifiers": verifiers, "verifier_limits": limits, "extraction": "default"}
    config = OmegaConf.create({"recipe": {"reward": reward}})
    return check_verifiers(config, questions(a=2, b=1))


@pytest.mark.config  # starts worker processes
@pytest.mark.parametrize(
    ("functions", "named"),
    [
        ({"a": "hangs"}, r"first row of a .* timeout \(cpu\)"),
        ({"a": "says"}, r"error \(KeyError"),
        ({"a": "nowhere"}, "has no attribute 'nowhere'"),
        ({"c": "even"}, "no row of data.train_files or data.val_files .* Use one of a, b"),
        ({"a": "even", "b": "text_part"}, None),
        ({}, None),
    ],
)
def test_verifiers_are_called_on_the_first_row_of_their_source(
    functions: dict[str, str], named: str | None
) -> None:
    if named is None:
        assert tried(**functions).get("functions", {}).keys() == functions.keys()
        return
    with pytest.raises(ConfigError, match=rf"reward\.verifiers\.\w+=own_verifiers\..*{named}"):
        tried(**functions)
