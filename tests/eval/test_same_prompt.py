"""A question has the same prompt in training, in validation and in evaluation, byte for byte."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from eval.benchmarks import LoadedBenchmark
from eval.samples import PendingSamples
from eval.settings import Settings, from_run
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question
from recipe.config.compose import EXAMPLES, compose_config
from recipe.rollout.agent_loop import PromptAugmentationAgentLoop
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config  # hydra composes every example

NAMES = sorted(str(p.parent.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("config.yaml"))


class Tokenizer:
    """Like DeepSeek-R1-Distill's: its chat template opens a ``<think>`` tag by itself."""

    chat_template = "opens <think>"
    all_special_tokens = ("<eos>",)
    bos_token, bos_token_id = "<bos>", 0

    def apply_chat_template(self, chat: list[dict[str, str]], **_: object) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat)
        return f"<bos>{turns}<assistant><think>\n"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [1 + ord(character) for character in text]


def trained(config: Any, question: Question, split: str) -> tuple[str, list[int]]:
    """What the agent loop renders; a training row is one for which the template was drawn."""
    config = OmegaConf.create(OmegaConf.to_container(config))
    name = config.recipe.augment.validation_template
    if split == "train":
        config.recipe.augment.update(mode="fixed", templates=[name], weights=None)
    loop: Any = object.__new__(PromptAugmentationAgentLoop)  # verl's __init__ starts too much
    loop.recipe, loop.tokenizer = config.recipe, Tokenizer()
    loop.prompts = Prompts.from_section(config.recipe.augment)
    loop.rollout_config = SimpleNamespace(n=1)
    loop.prompt_length = 10_000
    row = {"extra_info": {"split": split, "uid": question.uid}, "session_id": 0}
    drawn, rendered, ids = loop.prompt(row, question.text)
    assert drawn == name
    return rendered.text, ids


def evaluated(settings: Settings, benchmark: LoadedBenchmark) -> tuple[str, list[int]]:
    (prompt,) = PendingSamples(benchmark, settings.prompts(), Tokenizer()).prompts
    return prompt.rendered.text, list(prompt.ids)


@pytest.mark.parametrize("name", NAMES)
def test_three_times_the_same_prompt(
    name: str, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    config, folder = compose_config(name, []), RunFolder(tmp_path)
    Prompts.from_section(config.recipe.augment).write(folder.prompts)
    folder.config.write_text(OmegaConf.to_yaml(config))
    benchmark = make_benchmark(questions=1)
    question = benchmark.questions[0]
    prompt = trained(config, question, "train")
    assert trained(config, question, "test") == prompt
    settings = from_run(tmp_path)
    assert evaluated(settings, benchmark) == prompt
    # Negative control: another style is another prompt, so the equality above says something.
    other = dataclasses.replace(settings, style="auto" if settings.style == "raw" else "raw")
    assert evaluated(other, benchmark) != prompt
    folder.prompts.unlink()  # a run of before the file was written
    assert evaluated(from_run(tmp_path), benchmark) == prompt
