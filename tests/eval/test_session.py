"""One engine for all checkpoints, and restarts where a reload of weights is not verified."""

import json
from pathlib import Path

import pytest
from fake_engine import FakeEngine, reference, session
from transformers import AutoTokenizer

from eval.checkpoints import Checkpoint
from eval.session import Session, signature
from eval.settings import Settings

SETTINGS = Settings(max_tokens=8, dtype="float32")
PROMPTS = [(1, 2, 3), (4, 5, 6, 7)]


def serve(held: Session, name: str, kind: str = "k", context: int = 64) -> None:
    checkpoint = Checkpoint(step=None, model=name, identity={"files": name})
    held.engine_for(checkpoint, kind, context, PROMPTS)


def test_one_start_for_all_checkpoints() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        for name in ("a", "b", "b", "c"):
            serve(held, name)
            assert engine.served == name
        assert (held.starts, held.swaps) == (1, 2)
    assert engine.stops == 1


@pytest.mark.parametrize(
    ("kind", "context", "reload"), [("another", 64, True), ("k", 65, True), ("k", 64, False)]
)
def test_another_architecture_a_longer_context_or_no_reload_restarts(
    kind: str, context: int, reload: bool
) -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS.replaced(reload_weights=reload)) as held:
        serve(held, "a")
        serve(held, "b", kind, context)
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
        assert engine.stops == 1  # the first engine is shut down before the second starts


class Stale(FakeEngine):
    """Its reload returns without an error and changes nothing."""

    def load(self, model: str) -> None:
        pass


class Old(FakeEngine):
    """It cannot reload weights."""

    def load(self, model: str) -> None:
        raise NotImplementedError("reload_weights")


class NotANumber(FakeEngine):
    """Its log-probabilities are NaN."""

    def log_probabilities(self, prompts):  # type: ignore[no-untyped-def]
        return [[float("nan")] * (len(ids) - 1) for ids in prompts]


@pytest.mark.parametrize("kind", [Stale, Old, NotANumber])
def test_a_reload_that_is_not_verified_restarts_the_engine(
    kind: type[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = kind(lambda _: "")
    with session(engine, SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
    assert "restarted" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "swaps"), [(1.5e-4, 1), (1e-3, 0)])
def test_the_limit_is_relative_to_the_distance_at_the_start(error: float, swaps: int) -> None:
    """At the start 1e-4 nats from transformers: 3 x 1e-4 + 1e-5 are allowed after a reload."""

    class Rounding(FakeEngine):
        def log_probabilities(self, prompts):  # type: ignore[no-untyped-def]
            away = 1e-4 if self.served == "a" else error
            return [[x + away for x in row] for row in reference(self.served, prompts, "float32")]

    with session(Rounding(lambda _: ""), SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert held.swaps == swaps


def test_a_signature_covers_what_an_engine_reads(model: Path, tmp_path: Path) -> None:
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
