"""A question has the same tokens in the checks, in training, in validation and in evaluation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from eval.benchmarks import LoadedBenchmark, known_benchmarks
from eval.samples import PendingSamples
from eval.settings import Settings, from_run
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, to_row
from recipe.config.compose import EXAMPLES, compose_config
from recipe.rollout.agent_loop import PromptAugmentationAgentLoop
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config  # hydra composes every example

NAMES = sorted(str(p.parent.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("config.yaml"))


class Tokenizer:
    """Like DeepSeek-R1-Distill's: its chat template opens a ``<think>`` tag by itself."""

    chat_template = "opens <think>, reads enable_thinking"
    all_special_tokens = ("<eos>",)
    bos_token, bos_token_id = "<bos>", 0

    def __init__(self) -> None:
        self.encoded: list[list[int]] = []

    def apply_chat_template(self, chat: list[dict[str, str]], **given: object) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat)
        return f"<bos>{turns}<assistant>{given.get('enable_thinking', '')}<think>\n"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [1 + ord(character) for character in text]

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        self.encoded = [self.encode(text, add_special_tokens) for text in texts]
        return {"input_ids": self.encoded}


def checked(config: Any, question: Question) -> list[int]:
    """What the check of lengths measures before a run."""
    tokenizer, prompts = Tokenizer(), Prompts.from_config(config)
    prompts.overlong([question], [prompts.validation_template], tokenizer, 10_000)
    return tokenizer.encoded[0]


def trained(config: Any, question: Question, split: str) -> list[int]:
    """What the agent loop renders; a training row is one for which the template was drawn."""
    config = OmegaConf.create(OmegaConf.to_container(config))
    name = config.recipe.augment.validation_template
    if split == "train":
        config.recipe.augment.update(mode="fixed", templates=[name], weights=None)
    loop: Any = object.__new__(PromptAugmentationAgentLoop)  # verl's __init__ starts too much
    loop.recipe, loop.tokenizer = config.recipe, Tokenizer()
    loop.prompts = Prompts.from_config(config)
    loop.rollout_config = SimpleNamespace(n=1)
    loop.prompt_length = 10_000
    row = to_row(dataclasses.replace(question, split=split))
    drawn, _, ids = loop.prompt(
        {**row, "raw_prompt": row["prompt"], "session_id": 0}, question.text
    )
    assert drawn == name
    return ids


def evaluated(settings: Settings, benchmark: LoadedBenchmark) -> list[int]:
    return list(PendingSamples(benchmark, settings.prompts(), Tokenizer()).prompts[0].ids)


def compare(config: Any, folder: RunFolder, benchmark: LoadedBenchmark) -> Settings:
    """Write a run folder of `config` and compare the four; returns the evaluation's settings."""
    Prompts.from_config(config).write(folder.prompts)
    folder.config.write_text(OmegaConf.to_yaml(config))
    question, settings = benchmark.questions[0], from_run(folder.root)
    ids = checked(config, question)
    assert trained(config, question, "train") == ids
    assert trained(config, question, "test") == ids
    assert evaluated(settings, benchmark) == ids
    # Negative control: another form is another prompt, so the equality above says something.
    other = "auto" if settings.style == "raw" else "raw"
    assert evaluated(dataclasses.replace(settings, style=other, chat={}), benchmark) != ids
    return settings


@pytest.mark.parametrize("name", NAMES)
def test_four_times_the_same_tokens(
    name: str, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    """For every benchmark, with the template that it may name."""
    config = compose_config(name, [])
    made = make_benchmark(questions=1)
    for record in known_benchmarks().values():
        benchmark = dataclasses.replace(made, name=record.name, template=record.template)
        settings = compare(config, RunFolder(tmp_path), benchmark)
    RunFolder(tmp_path).prompts.unlink()  # a run of before the file was written
    assert from_run(tmp_path).form == settings.form


def test_a_rows_system_prompt_and_thinking_off_reach_all_four(
    tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    made = make_benchmark(questions=1)
    own = (dataclasses.replace(made.questions[0], system="Be brief."),)
    override = "+data.apply_chat_template_kwargs={enable_thinking: false}"
    config = compose_config("grpo", [override])
    compare(config, RunFolder(tmp_path), dataclasses.replace(made, questions=own))
    without = compose_config("grpo", [])
    assert checked(config, own[0]) != checked(config, made.questions[0])
    assert checked(config, own[0]) != checked(without, own[0])
