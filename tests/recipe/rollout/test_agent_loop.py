"""One rollout: which template, which tokens go to the engine, what is handed on."""

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from prompt_aug.draw import draw
from prompt_aug.prompts import Prompts
from prompt_aug.templates import load_bank, render
from recipe.rollout.agent_loop import (
    EPOCH,
    PromptAugmentationAgentLoop,
    choose_template,
    request_seed,
)
from recipe.toy import build
from recipe.toy.tokenizer import build_tokenizer
from recipe.toy.world import load_world

NAMES = ["open-r1-teacher", "formal", "lm_eval_prompt4"]


def augment(**changes: Any) -> Any:
    values = {
        "bank": None,
        "templates": NAMES,
        "weights": None,
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


def test_a_question_keeps_its_template_within_an_epoch_and_draws_anew_in_the_next() -> None:
    bank = load_bank()
    section, uids = augment(), [f"u{i}" for i in range(200)]
    first = [choose_template(section, bank, 7, row(uid=u)) for u in uids]
    assert first == [choose_template(section, bank, 7, row(uid=u, session=5)) for u in uids]
    second = [choose_template(section, bank, 7, row(uid=u, epoch=1)) for u in uids]
    assert first != second
    assert first == [draw(seed=7, epoch=0, uid=u, names=NAMES) for u in uids]
    assert set(first) == set(NAMES)


def test_per_rollout_mode_varies_within_the_group_and_validation_never_does() -> None:
    bank = load_bank()
    section = augment(mode="per_rollout")
    drawn = {choose_template(section, bank, 7, row(session=i)) for i in range(40)}
    assert drawn == set(NAMES)
    section = augment()
    fixed = {choose_template(section, bank, 7, row("test", i, i, f"u{i}")) for i in range(40)}
    assert fixed == {"qwen-math"}


def test_all_of_the_bank_is_drawn_where_no_templates_are_named() -> None:
    bank = load_bank()
    section = augment(templates=None)
    drawn = {choose_template(section, bank, 1, row(uid=str(i))) for i in range(400)}
    assert drawn == set(bank.names)


class Engine:
    """Stands in for the engine's client: records the request, answers with given tokens."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.requests = ids, []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict):
        self.requests.append((request_id, prompt_ids, sampling_params))
        return SimpleNamespace(
            token_ids=self.ids,
            log_probs=[-0.5] * len(self.ids),
            num_preempted=None,
            extra_fields={"min_global_steps": 3, "max_global_steps": 3},
        )


@functools.cache  # it trains on the text of a whole world, and a loop only reads it
def tokenizer() -> Any:
    return build_tokenizer(build.corpus(load_world("sums"), load_bank()))


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


def test_prefill_is_prompt_and_the_draw_is_handed_on() -> None:
    engine = Engine([5, 6, 7])
    made = loop(engine)
    out = asyncio.run(made.run({"temperature": 1.0}, uid="group", **row()))
    expected = render(made.prompts.bank["open-r1-teacher"], "What is 47 + 38?", made.tokenizer).text
    assert expected.endswith("<think>\n")
    (request_id, prompt_ids, params), *_ = engine.requests
    assert made.tokenizer.decode(prompt_ids) == expected
    assert out.prompt_ids == prompt_ids
    assert request_id == "group"
    assert params == {"temperature": 1.0, "detokenize": False}
    assert (out.response_ids, out.response_mask) == ([5, 6, 7], [1, 1, 1])
    assert out.response_logprobs == [-0.5] * 3
    assert out.extra_fields["template"] == "open-r1-teacher"
    assert out.extra_fields["prefill"] == "<think>\n"
    assert out.extra_fields["min_global_steps"] == 3
    assert out.extra_fields["truncated"] is False


def seeds(rows: list[tuple[str, dict[str, Any]]]) -> list[int | None]:
    engine = Engine([5])
    made = loop(engine, seeds=True)
    for group, columns in rows:
        asyncio.run(made.run({"temperature": 1.0}, uid=group, **columns))
    return [params.get("seed") for _, _, params in engine.requests]


def test_every_rollout_has_a_seed_of_its_own_that_order_does_not_change() -> None:
    listed = [(group, row(session=i)) for group in ("0-a", "1-b", "2-a") for i in range(4)]
    drawn = seeds(listed)
    assert len(set(drawn)) == 12  # also where a question comes again
    assert seeds(listed[::-1]) == drawn[::-1]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in drawn)
    assert seeds([("0-a", row("test"))]) == [None]  # verl names validation groups at random
    assert request_seed(7, "0-a", 0) == drawn[0] != request_seed(8, "0-a", 0)


def test_a_response_at_a_joint_limit_is_marked() -> None:
    made = loop(Engine([5, 6, 7]))
    made.recipe.rollout.joint_limit = True
    prompt = len(made.prompt(row(), "What is 47 + 38?")[2])
    for limit, truncated in ((prompt + 3, True), (prompt + 4, False)):
        made.rollout_config.max_model_len = limit
        out = asyncio.run(made.run({}, uid="g", **row()))
        assert out.extra_fields["truncated"] is truncated


def test_a_rows_system_prompt_is_asked_with() -> None:
    engine = Engine([5])
    made, own = loop(engine), row()
    own["raw_prompt"] = [{"role": "system", "content": "Be brief."}, *own["raw_prompt"]]
    asyncio.run(made.run({}, uid="g", **own))
    asked = made.tokenizer.decode(engine.requests[0][1])
    assert "Be brief." in asked and "47 + 38" in asked


def test_a_response_at_the_limit_is_marked_and_cut() -> None:
    out = asyncio.run(loop(Engine(list(range(9)))).run({}, uid="g", **row()))
    assert out.response_ids == [0, 1, 2, 3, 4, 5]
    assert len(out.response_mask) == len(out.response_logprobs) == 6
    assert out.extra_fields["truncated"] is True


def test_a_prompt_that_is_too_long_is_refused_not_cut() -> None:
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
        assert (recorded if recorded is not None else out.prompt_ids) == given
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
    seen = rollouts(3, "anchored", REPHRASINGS)
    assert [n for _, _, n in seen] == [0, 0, 1, 1, 2, 2, 3, 3]
    for given, trained, n in seen:
        assert [question, *REPHRASINGS][n] in given
        assert question in trained
        assert not any(text in trained for text in REPHRASINGS)
        # Only the text differs: the same template, and so the same format check, for the group.
        assert given.replace([question, *REPHRASINGS][n], question) == trained


def test_the_own_ratio_trains_under_what_it_generated_from() -> None:
    seen = rollouts(3, "own", REPHRASINGS)
    assert all(given == trained for given, trained, _ in seen)
    assert len({given for given, _, _ in seen}) == 4


def test_questions_with_fewer_rephrasings_keep_the_size_of_their_group() -> None:
    assert [n for *_, n in rollouts(3, "anchored", REPHRASINGS[:1])] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [n for *_, n in rollouts(3, "anchored", [])] == [0] * 8
    assert [n for *_, n in rollouts(1, "anchored", REPHRASINGS)] == [0] * 4 + [1] * 4


def test_validation_and_runs_without_rephrasings_see_the_question_alone() -> None:
    for count, split in ((3, "test"), (0, "train")):
        seen = rollouts(count, "anchored", REPHRASINGS, split)
        assert {n for *_, n in seen} == {0}
        assert len({given for given, _, _ in seen}) == 1
