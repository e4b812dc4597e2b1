"""A model folder without weights, and small benchmarks."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import Runner
from tiny_model import save_tokenizer

from eval.ask.benchmarks import BenchmarkRequest, LoadedBenchmark, load_benchmark
from eval.ask.checkpoints import from_model
from prompt_aug.questions import make_question, write_parquet


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer and a configuration with 1024 positions, as `save_pretrained` does."""
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(folder)
    config = {"model_type": "qwen2", "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"no weights")
    return folder


@pytest.fixture
def make_benchmark(tmp_path: Path) -> Callable[..., LoadedBenchmark]:
    """Question i asks for i + 1."""

    def make(name: str = "toy", questions: int = 6, samples: int = 1) -> LoadedBenchmark:
        path = tmp_path / f"{name}.parquet"
        made = [
            make_question(text=f"{name}: what is {i} + 1?", answers=(str(i + 1),), source="toy")
            for i in range(questions)
        ]
        write_parquet(made, path)
        return load_benchmark(
            BenchmarkRequest(name=name, path=str(path), samples=samples), greedy=False
        )

    return make


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Runner:
    return Runner(tmp_path / "out", dataclasses.replace(from_model(str(model)), step=20))
