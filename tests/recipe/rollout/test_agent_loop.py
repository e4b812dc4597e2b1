"""One rollout: its template, the tokens sent to the engine, the result."""

import asyncio
import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.draw import draw
from prompt_aug.prompts import Prompts
from prompt_aug.questions import read_parquet, write_parquet
from prompt_aug.templates import Bank, Form, load_bank, render
from recipe.config.compose import EXAMPLES
from recipe.errors import RolloutError
from recipe.rollout.agent_loop import (
    EPOCH,
    PromptAugmentationAgentLoop,
    choose_template,
    rollout_seed,
)

NAMES = ["open-r1-teacher", "formal", "lm_eval_prompt4"]


def augment(**changes: Any) -> Any:
    values = {
        "bank": None,
        "templates": NAMES,
        "mode": "per_question",
        "format": "strict",
        "style": "auto",
        "validation_template": "qwen-math",
    }
    return OmegaConf.create({**values, **changes})


def row(split: str = "train", session: int = 0, epoch: int = 0, uid: str = "u") -> dict[str, Any]:
    return {
        "extra_info": {"split": split, "uid": uid},
        "session_id": session,
        EPOCH: epoch,
        "raw_prompt": [{"role": "user", "content": "What is 47 + 38?"}],
    }


def drawn(section: Any, rows: list[dict[str, Any]]) -> list[str]:
    return [choose_template(section, load_bank(), 7, columns) for columns in rows]


def test_a_question_keeps_its_template_in_an_epoch() -> None:
    uids = [f"u{i}" for i in range(200)]
    first = drawn(augment(), [row(uid=u) for u in uids])
    assert first == drawn(augment(), [row(uid=u, session=5) for u in uids])
    assert first != drawn(augment(), [row(uid=u, epoch=1) for u in uids])
    assert first == [draw(seed=7, epoch=0, uid=u, names=NAMES) for u in uids]


@pytest.mark.parametrize(
    ("changes", "split", "names"),
    [
        ({}, "train", NAMES),
        ({"mode": "per_rollout"}, "train", NAMES),
        ({"templates": None}, "train", load_bank().names),  # the whole bank
        ({"mode": "per_rollout"}, "test", ["qwen-math"]),  # validation: always the same
    ],
)
def test_the_templates_of_a_mode(changes: dict, split: str, names: list[str]) -> None:
    many = "mode" not in changes
    rows = [row(split, i % 8, uid=str(i) if many else "u") for i in range(400)]
    rows = rows if many else [row(split, session=i) for i in range(40)]
    assert set(drawn(augment(**changes), rows)) == set(names)


class Engine:
    """Stands in for the engine's client: records the request, answers with given tokens."""

    def __init__(self, ids: list[int], stop_reason: str = "completed", versions: int = 2) -> None:
        self.ids, self.stop_reason, self.requests = ids, stop_reason, []
        first = 2 if versions > 1 else len(ids)
        self.versions = [[3, first], [4, len(ids) - first]][:versions]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict):
        self.requests.append((request_id, prompt_ids, sampling_params))
        return SimpleNamespace(
            token_ids=self.ids,
            log_probs=[-0.5] * len(self.ids),
            num_preempted=None,
            stop_reason=self.stop_reason,
            extra_fields={"versions": self.versions, "min_global_steps": 3, "max_global_steps": 3},
        )


@functools.cache  # it trains on the text of a whole world, and a loop only reads it
def tokenizer() -> Any:
    return load_tokenizer(str(EXAMPLES / "toy" / "start"))


def loop(
    engine: Engine,
    prompt_length: int = 200,
    response_length: int = 6,
    count: int = 0,
    ratio: str = "anchored",
    seeds: bool = False,
) -> Any:
    made = object.__new__(PromptAugmentationAgentLoop)  # verl's __init__ wants a whole config
    made.recipe = OmegaConf.create(
        {
            "augment": augment(templates=NAMES[:1]),
            "seed": 7,
            "rollout": {"request_seeds": seeds},
            "rephrasings": {"count": count, "ratio": ratio},
        }
    )
    made.rollout_config = SimpleNamespace(n=8)
    made.prompts, made.server_manager = Prompts.from_section(made.recipe.augment), engine
    made.tokenizer = tokenizer()
    made.prompt_length, made.response_length = prompt_length, response_length
    return made


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ((), {"detokenize": False}),
        (
            ("</answer>",),
            {
                "stop": ["</answer>"],
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
            },
        ),
    ],
)
def test_the_prefill_is_part_of_the_prompt_and_the_draw_is_returned(
    stop: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    engine = Engine([5, 6, 7])
    made = loop(engine)
    template = made.prompts.bank["open-r1-teacher"].model_copy(update={"stop": stop})
    made.prompts = dataclasses.replace(made.prompts, bank=Bank([template]))
    out = asyncio.run(made.run({"temperature": 1.0}, uid="group", **row()))
    expected = render(made.prompts.bank["open-r1-teacher"], "What is 47 + 38?", made.tokenizer).text
    assert expected.endswith("<think>\n")
    (request_id, prompt_ids, params), *_ = engine.requests
    assert made.tokenizer.decode(prompt_ids) == expected
    assert out.prompt_ids == prompt_ids
    assert request_id == "group"
    ends = made.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert params == {"temperature": 1.0, "stop_token_ids": sorted(ends), **wanted}
    assert (out.response_ids, out.response_mask) == ([5, 6, 7], [1, 1, 1])
    assert out.response_logprobs == [-0.5] * 3
    assert out.extra_fields["template"] == "open-r1-teacher"
    assert out.extra_fields["prefill"] == "<think>\n"
    assert out.extra_fields["min_global_steps"] == 3
    assert out.extra_fields["versions"] == [[3, 2], [4, 1]]  # of the three tokens
    assert out.extra_fields["truncated"] is False


def test_an_aborted_response_is_no_training_data() -> None:
    """In a validation that is cut short it is graded as it is, and no metric reads it."""
    with pytest.raises(RolloutError, match="aborted"):
        asyncio.run(loop(Engine([5], "aborted")).run({}, uid="g", **row()))
    assert asyncio.run(loop(Engine([5], "aborted")).run({}, uid="g", **row("test"))).response_ids


def seeds(rows: list[tuple[str, dict[str, Any]]]) -> list[int | None]:
    engine = Engine([5])
    made = loop(engine, seeds=True)
    for group, columns in rows:
        asyncio.run(made.run({"temperature": 1.0}, uid=group, **columns))
    return [params.get("seed") for _, _, params in engine.requests]


def test_every_rollout_has_its_own_seed_whatever_the_order() -> None:
    listed = [(group, row(session=i)) for group in ("0-a", "1-b", "2-a") for i in range(4)]
    result = seeds(listed)
    assert len(set(result)) == 12  # also for a question that comes again
    assert seeds(listed[::-1]) == result[::-1]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in result)
    assert seeds([("0-a", row("test"))]) == [None]  # verl's validation groups have random names
    assert rollout_seed(7, "0-a", 0) == result[0] != rollout_seed(8, "0-a", 0)


@pytest.mark.parametrize(
    ("tokens", "free", "kept", "truncated"),
    # `free`: tokens that max_model_len leaves after the prompt; the response limit is 6
    [
        (3, None, 3, False),
        (9, None, 6, True),
        (6, None, 6, True),
        (3, 3, 3, True),
        (3, 4, 3, False),
    ],
)
def test_a_response_at_a_limit_is_marked(
    tokens: int, free: int | None, kept: int, truncated: bool
) -> None:
    """The response is to a rephrasing, whose prompt is longer than the question's."""
    made, columns = loop(Engine(list(range(20, 20 + tokens))), count=1), row(session=4)
    longer = "Add 47 and 38. What is the sum?"
    columns["extra_info"]["rephrasings"] = [longer]
    if free:
        made.recipe.rollout.joint_limit = True
        made.rollout_config.max_model_len = len(made.prompt(columns, longer)[2]) + free
    out = asyncio.run(made.run({}, uid="g", **columns))
    assert len(out.prompt_ids) < len(out.extra_fields["generated_under"])
    assert out.response_ids == list(range(20, 20 + kept))
    assert len(out.response_mask) == len(out.response_logprobs) == kept
    assert out.extra_fields["truncated"] is truncated
    assert out.extra_fields["limit"] == (free or 6)


ENDS = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")


@pytest.mark.parametrize(
    ("text", "stop", "joint", "truncated"),
    [
        *((f"1 + 1{end}", (), joint, False) for end in ENDS for joint in (False, True)),
        ("1 + 1 = 2", (), False, True),
        ("1<|im_end|>+ 1", (), False, True),  # no end of this response: its engine went on
        ("a </answer>", ("</answer>",), False, False),
        ("a </answer>", ("</think>", "</answer>"), True, False),
        ("a </answer>", (), False, True),
        ("a </answe", ("</answer>",), False, True),
        ("a b<|im_end|>", ("</answer>",), False, False),
    ],
)
@pytest.mark.parametrize("versions", [1, 2])  # of the weights: 2 after an abort
def test_a_response_of_the_limit_with_an_end_is_whole(
    text: str, stop: tuple[str, ...], joint: bool, truncated: bool, versions: int
) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    made, columns = loop(Engine(ids, versions=versions), response_length=len(ids)), row()
    template = made.prompts.bank["open-r1-teacher"].model_copy(update={"stop": stop})
    made.prompts = dataclasses.replace(made.prompts, bank=Bank([template]))
    if joint:
        made.recipe.rollout.joint_limit, made.response_length = True, len(ids) + 1
        prompt = made.prompt(columns, "What is 47 + 38?")[2]
        made.rollout_config.max_model_len = len(prompt) + len(ids)
    out = asyncio.run(made.run({}, uid="g", **columns))
    assert (out.response_ids, out.extra_fields["limit"]) == (ids, len(ids))
    assert out.extra_fields["truncated"] is truncated


ROWS = [
    [("system", " Be <|im_end|> brief.\n"), ("user", "\n47 + 38? \n")],
    [("user", "1 + 1?"), ("assistant", "2"), ("user", "47 + 38?")],
]


@pytest.mark.parametrize("turns", ROWS)
def test_the_messages_of_a_row_are_the_prompt_of_verl(
    turns: list[tuple[str, str]], tmp_path: Path
) -> None:
    """From the same parquet file, by verl's loader and its own agent loop's tokens."""
    messages = [{"role": role, "content": content} for role, content in turns]
    written = {"data_source": "s", "reward_model": {"ground_truth": "85"}, "prompt": messages}
    pq.write_table(pa.Table.from_pylist([written]), tmp_path / "verl.parquet")
    write_parquet(read_parquet(tmp_path / "verl.parquet", "all"), tmp_path / "ours.parquet")
    rows = [
        RLHFDataset(str(tmp_path / f"{name}.parquet"), tokenizer(), OmegaConf.create())[0]
        for name in ("verl", "ours")
    ]
    engine = Engine([5])
    made = loop(engine)
    made.prompts = dataclasses.replace(made.prompts, form=Form(style="row"))
    asyncio.run(made.run({}, uid="g", **{**row(), "raw_prompt": rows[1]["raw_prompt"]}))
    builder = create_continuous_token_builder(tokenizer())
    assert engine.requests[0][1] == builder.build_initial_tokens(list(rows[0]["raw_prompt"]))


def test_a_prompt_that_is_too_long_is_an_error() -> None:
    engine = Engine([1])
    with pytest.raises(ValueError, match="under template open-r1-teacher"):
        asyncio.run(loop(engine, prompt_length=20).run({}, uid="g", **row()))
    assert engine.requests == []


REPHRASINGS = ["Add 47 and 38.", "Find the sum of 47 and 38.", "38 more than 47?"]


def rollouts(count: int, ratio: str, rephrasings: list[str], split: str = "train") -> list[Any]:
    """(text the engine saw, text trained under, n) of the eight rollouts of one question."""
    engine = Engine([1])
    made = loop(engine, count=count, ratio=ratio)
    seen = []
    for session in range(8):
        columns = row(split, session)
        columns["extra_info"]["rephrasings"] = rephrasings
        out = asyncio.run(made.run({}, uid="g", **columns))
        given = engine.requests[-1][1]
        recorded = out.extra_fields["generated_under"]
        assert (out.prompt_ids if recorded is None else recorded.tolist()) == given
        seen.append(
            (
                made.tokenizer.decode(given),
                made.tokenizer.decode(out.prompt_ids),
                out.extra_fields["rephrasing"],
            )
        )
    return seen


def test_ta_grpo_generates_under_the_rephrasing_and_trains_under_the_question() -> None:
    question = "What is 47 + 38?"
    for given, trained, n in rollouts(3, "anchored", REPHRASINGS):
        assert [question, *REPHRASINGS][n] in given
        assert question in trained
        assert not any(text in trained for text in REPHRASINGS)
        # Only the text differs: the group has one template, and so one format check.
        assert given.replace([question, *REPHRASINGS][n], question) == trained


def test_the_own_ratio_trains_under_the_prompt_of_the_generation() -> None:
    seen = rollouts(3, "own", REPHRASINGS)
    assert all(given == trained for given, trained, _ in seen)
    assert len({given for given, _, _ in seen}) == 4


@pytest.mark.parametrize(
    ("count", "split", "rephrasings", "numbers"),
    [
        (3, "train", REPHRASINGS, [0, 0, 1, 1, 2, 2, 3, 3]),
        (3, "train", REPHRASINGS[:1], [0, 0, 1, 1, 0, 0, 1, 1]),  # the group keeps its size
        (3, "train", [], [0] * 8),
        (1, "train", REPHRASINGS, [0] * 4 + [1] * 4),
        (0, "train", REPHRASINGS, [0] * 8),
        (3, "test", REPHRASINGS, [0] * 8),
    ],
)
def test_the_rephrasing_of_each_rollout(
    count: int, split: str, rephrasings: list[str], numbers: list[int]
) -> None:
    seen = rollouts(count, "anchored", rephrasings, split)
    assert [n for *_, n in seen] == numbers
    assert len({given for given, *_ in seen}) == len(set(numbers))
