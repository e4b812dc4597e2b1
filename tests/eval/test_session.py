"""One engine for all checkpoints, and what happens when an exchange of weights is not proved."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine, reference, session
from transformers import AutoTokenizer

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.evaluate import Evaluation
from eval.session import Session, signature
from eval.settings import Settings

SETTINGS = Settings(max_tokens=8, dtype="float32")
PROMPTS = [(1, 2, 3), (4, 5, 6, 7)]


def checkpoint(name: str) -> Checkpoint:
    return Checkpoint(step=None, model=name, identity={"files": name})


def serve(held: Session, name: str, kind: str = "k", context: int = 64) -> str:
    held.engine_for(checkpoint(name), kind, context, PROMPTS)
    return name


def test_one_start_for_all_checkpoints() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        for name in ("a", "b", "b", "c"):
            serve(held, name)
            assert engine.served == name
        assert (held.starts, held.swaps) == (1, 2)
    assert engine.stops == 1


@pytest.mark.parametrize(("kind", "context"), [("another", 64), ("k", 65)])
def test_another_architecture_or_a_longer_context_starts_anew(kind: str, context: int) -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        serve(held, "a")
        serve(held, "b", kind, context)
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
        assert engine.stops == 1  # the first gave its memory back before the second started


def test_without_exchange_there_is_a_start_for_each() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, dataclasses.replace(SETTINGS, reload_weights=False)) as held:
        for name in ("a", "b"):
            serve(held, name)
        assert (held.starts, held.swaps) == (2, 0)


def test_an_exchange_that_changed_nothing_is_found_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stale(FakeEngine):
        def load(self, model: str) -> None:
            pass  # says nothing, does nothing

    engine = Stale(lambda _: "")
    with session(engine, SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
    assert "nats per token away from b" in capsys.readouterr().out


def test_an_engine_that_cannot_exchange_starts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    class Old(FakeEngine):
        def load(self, model: str) -> None:
            raise NotImplementedError("reload_weights")

    engine = Old(lambda _: "")
    with session(engine, SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert (held.starts, engine.served) == (2, "b")
    assert "not reloaded" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "swaps"), [(1.5e-4, 1), (1e-3, 0)])
def test_the_limit_is_what_the_engine_was_away_at_its_start(error: float, swaps: int) -> None:
    """Started 1e-4 nats away from transformers: allowed are 3 x 1e-4 + 1e-5 after an exchange."""

    class Rounding(FakeEngine):
        def log_probabilities(self, prompts):  # type: ignore[no-untyped-def]
            away = 1e-4 if self.served == "a" else error
            return [[x + away for x in row] for row in reference(self.served, prompts, "float32")]

    with session(Rounding(lambda _: ""), SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert held.swaps == swaps


def test_not_a_number_is_no_proof() -> None:
    class Broken(FakeEngine):
        def log_probabilities(self, prompts):  # type: ignore[no-untyped-def]
            return [[float("nan")] * (len(ids) - 1) for ids in prompts]

    with session(Broken(lambda _: ""), SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert (held.starts, held.swaps) == (2, 0)


def test_a_signature_is_that_of_what_an_engine_reads(model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    generation = {"eos_token_id": 1}

    def of(**changes: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return signature(str(tmp_path), tokenizer)

    first = of()
    assert of(transformers_version="9", _name_or_path="x", dtype="bfloat16") == first
    assert of(max_position_embeddings=2048) != first
    generation["eos_token_id"] = 2
    assert of() != first
    assert signature("some/hub-id", tokenizer) == "some/hub-id"


def test_every_checkpoint_is_answered_by_its_own_weights(
    model: Path, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    """The model in force when a request was answered is the one whose folder it is filed under."""
    benchmark = make_benchmark(questions=3)
    checkpoints = []
    for step in (1, 2, 3):
        folder = tmp_path / f"m{step}"
        folder.mkdir()
        for path in model.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        own = Checkpoint(step=step, model=str(folder), identity={"files": str(step)})
        checkpoints.append(own)
    engine = FakeEngine(lambda _: rf"\boxed{{{engine.served[-1]}}}")
    evaluation = Evaluation(tmp_path / "out", SETTINGS, [benchmark])
    evaluation.prepare()
    with session(engine, SETTINGS) as held:
        for own in checkpoints:
            (item,) = evaluation.items(own)
            scores = evaluation.run(item, held)
            # Question i asks for i + 1, and the model of step s says s.
            means = [float(i == own.step - 1) for i in range(3) if own.step is not None]
            assert scores["benchmarks"]["toy"]["question_means"] == means
        assert (held.starts, held.swaps) == (1, 2)
