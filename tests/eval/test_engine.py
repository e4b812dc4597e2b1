"""Checks before an engine starts, its parameters, and one engine for all checkpoints."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, reference, session
from made_tokenizers import qwen_base
from tiny_model import save_tiny
from transformers import AutoTokenizer

from eval.ask.checkpoints import Checkpoint
from eval.ask.engine import Engine, Request, precision
from eval.ask.questions import signature
from eval.ask.session import Session, reference_log_probabilities
from eval.ask.settings import Settings
from prompt_aug.base.files import write_json


@pytest.mark.parametrize(
    ("dtype", "multiplies", "computed"),
    [("auto", True, "bfloat16"), ("auto", False, "float32"), ("bfloat16", False, "bfloat16")],
)
def test_precision_on_a_cpu_is_that_of_the_weights_if_it_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: Any, multiplies: bool, computed: str
) -> None:
    monkeypatch.setattr("eval.ask.engine.gpus_here", lambda: 0)
    monkeypatch.setattr("eval.ask.engine.multiplies_bfloat16", lambda: multiplies)
    write_json(tmp_path / "config.json", {"dtype": "bfloat16"})
    assert precision(str(tmp_path), Settings(dtype=dtype)) == computed


@pytest.mark.config  # imports vllm
def test_a_response_ends_as_in_training_and_a_stop_string_may_be_a_special_token(
    tmp_path: Path,
) -> None:
    pytest.importorskip("vllm")
    tokenizer = qwen_base(tags=True)
    tokenizer.save_pretrained(tmp_path)
    engine, sampling = Engine(str(tmp_path), Settings(), 64), list[Any]()
    texts = ["<think>1</think>2<|im_end|>\n<|im_start|>user\n3", "<answer>2</answer>. So"]
    done = [
        SimpleNamespace(
            request_id=str(number),
            finished=True,
            outputs=[SimpleNamespace(token_ids=tokenizer.encode(text), finish_reason="stop")],
        )
        for number, text in enumerate(texts, start=1)
    ]
    add = lambda name, prompt, parameters: sampling.append(parameters)  # noqa: E731
    engine._llm = SimpleNamespace(llm_engine=SimpleNamespace(add_request=add, step=lambda: done))
    requests = [
        Request(question=0, key=("u", "p", i), prompt_token_ids=(1,), stop=stop)
        for i, stop in enumerate([(), ("</answer>",)])
    ]
    result = [response["response"] for _, response in engine.stream(requests)]
    assert result == ["<think>1</think>2", "<answer>2</answer>"]
    assert [p.detokenize for p in sampling] == [False, True]
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
    assert all({*ends} <= {*p.stop_token_ids} and not p.skip_special_tokens for p in sampling)


# ------------------------------------------------------------------------- one engine for all

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


def test_weights_that_are_exported_anew_to_the_same_place_restart_the_engine() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        for files in ("a", "a", "b"):
            checkpoint = Checkpoint(step=None, model="m", identity={"files": files})
            held.engine_for(checkpoint, "k", 64, PROMPTS)
        assert (held.starts, held.swaps, engine.stops) == (2, 0, 1)


@pytest.mark.parametrize(
    ("kind", "context", "reload"), [("another", 64, True), ("k", 65, True), ("k", 64, False)]
)
def test_another_architecture_a_longer_context_or_no_reload_restarts(
    kind: str, context: int, reload: bool
) -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS.replaced(reload=reload)) as held:
        serve(held, "a")
        serve(held, "b", kind, context)
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
        assert engine.stops == 1  # the first engine is shut down before the second starts


def cannot_reload(model: str) -> None:
    raise NotImplementedError("reload_weights")


def no_numbers(prompts: list[tuple[int, ...]]) -> list[list[float]]:
    return [[float("nan")] * (len(ids) - 1) for ids in prompts]


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("load", lambda model: None),  # without an error, and changes nothing
        ("load", cannot_reload),
        ("log_probabilities", no_numbers),
    ],
)
def test_a_reload_that_is_not_verified_restarts_the_engine(
    method: str, broken: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(lambda _: "")
    setattr(engine, method, broken)
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


def test_a_reload_is_verified_in_float32_if_the_processor_has_no_bfloat16_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def computed(dtype: str, multiplies: bool) -> list[list[float]]:
        monkeypatch.setattr("eval.ask.session.multiplies_bfloat16", lambda: multiplies)
        return reference_log_probabilities(str(tmp_path), PROMPTS, dtype)

    save_tiny(tmp_path, 3)
    exact = computed("float32", True)
    assert computed("bfloat16", False) == exact != computed("bfloat16", True)


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
