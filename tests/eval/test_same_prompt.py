"""A question has the same tokens in the checks, training, validation and evaluation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composed import composed
from omegaconf import OmegaConf

from eval.benchmarks import LoadedBenchmark, known_benchmarks
from eval.evaluate import Evaluation
from eval.settings import Settings, from_run
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, to_row
from recipe.rollout.agent_loop import PromptAugmentationAgentLoop
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config  # composes examples

# One example per bank, template, format, style and turn that the examples configure.
NAMES = ("grpo", "prompt_aug", "cw_grpo", "ta_grpo")


class Tokenizer:
    """Like DeepSeek-R1-Distill's, whose chat template opens a ``<think>`` tag."""

    chat_template = "opens <think>, reads enable_thinking"
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
    """Return the tokens that the check of lengths measures before a run."""
    tokenizer, prompts = Tokenizer(), Prompts.from_config(config)
    prompts.overlong([question], [prompts.validation_template], tokenizer, 10_000)
    return tokenizer.encoded[0]


def trained(config: Any, question: Question, split: str) -> list[int]:
    """Return the tokens that the agent loop renders for a row of the split."""
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
    evaluation = Evaluation(Path("unused"), settings, [benchmark])
    return list(evaluation.render(benchmark, Tokenizer())[0].ids)


def compare(config: Any, folder: RunFolder, benchmark: LoadedBenchmark) -> None:
    """Write a run folder of `config` and compare the tokens of the four uses."""
    Prompts.from_config(config).write(folder.prompts)
    folder.config.write_text(OmegaConf.to_yaml(config))
    question, settings = benchmark.questions[0], from_run(folder.root)
    ids = checked(config, question)
    assert trained(config, question, "train") == ids
    assert trained(config, question, "test") == ids
    assert evaluated(settings, benchmark) == ids
    # Negative control: another form is another prompt.
    another = "auto" if settings.style == "raw" else "raw"
    assert evaluated(settings.replaced(style=another, chat={}), benchmark) != ids
    folder.prompts.unlink()  # as in a run without that file
    assert from_run(folder.root).form == settings.form


@pytest.mark.parametrize("name", NAMES)
def test_checks_training_validation_and_evaluation_have_the_same_tokens(
    name: str, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    made = make_benchmark(questions=1)
    for template in {record.template for record in known_benchmarks().values()}:
        benchmark = dataclasses.replace(made, template=template)
        compare(composed(name), RunFolder(tmp_path), benchmark)


def test_system_prompt_of_a_row_and_chat_arguments_reach_all_four(
    tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    made = make_benchmark(questions=1)
    own = (dataclasses.replace(made.questions[0], system="Be brief."),)
    config = composed("grpo", "+data.apply_chat_template_kwargs={enable_thinking: false}")
    compare(config, RunFolder(tmp_path), dataclasses.replace(made, questions=own))
    assert checked(config, own[0]) != checked(config, made.questions[0])
    assert checked(config, own[0]) != checked(composed("grpo"), own[0])
