"""The reward: score + format - overlong, with every part recorded.

    reward = score + format_weight * format - overlong

score is accuracy, 0 or 1, from `prompt_aug.grading`; or the result of the user's verifier of the
row's data source (``recipe.reward.verifiers``, `prompt_aug.verifiers`). The grader also reads the
question: an answer that only repeats a formula of it scores 0 (status "echo"). Arithmetic that is
not worked out has the status "unworked"; `recipe.reward.unworked` decides whether it is right.
format is the format reward of the drawn template for the text after the prefill, a dyadic number in
[0, 1]. By default wrong answers get it too, as in arXiv 2602.03190. `overlong` is DAPO's soft
punishment (arXiv 2503.14476, eq. 13), with L the response length, L_max its limit (with
``recipe.rollout.joint_limit`` what its prompt leaves), and C the buffer, all in tokens:

    overlong = factor * clip((L - (L_max - C)) / C, 0, 1)

Departure: 2503.14476 has factor 1 with an accuracy reward of +-1. Ours is 0 or 1, half that range,
so the same advantages need ``factor: 0.5``, which method/dapo sets.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from prompt_aug.extraction import extraction
from prompt_aug.grading import Grade, grade
from prompt_aug.prompts import Prompts
from prompt_aug.questions import turns_of
from prompt_aug.templates import Template
from prompt_aug.turns import end_of_turn
from prompt_aug.verifiers import Verified, verifier_row, verifiers_of

logger = logging.getLogger(__name__)


def overlong_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """DAPO's soft punishment of a response of `length` tokens; 0 up to ``limit - buffer``."""
    return factor * min(1.0, max(0.0, (length - (limit - buffer)) / buffer))


def combine(score: float, format_reward: float, overlong: float, settings: DictConfig) -> float:
    """The reward of one response; `settings` is the section ``recipe.reward``."""
    return float(score + settings.format_weight * format_reward - overlong)


def _listed(row: Mapping[str, Any], key: str) -> list[str]:
    value = row["extra_info"].get(key)
    return [] if value is None else list(value)  # an array has no truth value


def score(
    text: str,
    length: int,
    row: Mapping[str, Any],
    template: Template,
    *,
    settings: DictConfig,
    limit: int,
    graded: Grade | None = None,
) -> dict[str, Any]:
    """Return reward and parts of a response of `length` tokens, as verl's reward managers do.

    `row` has the columns of the dataset. `limit`: the most tokens. `graded`: a verifier's result.
    """
    graded = graded or grade(
        text,
        list(row["extra_info"]["answers"]),
        # The response may answer any rephrasing, and may copy none.
        question="\n".join([turns_of(row["raw_prompt"])[1], *_listed(row, "rephrasings")]),
        options=_listed(row, "options"),
        extraction=extraction(settings.extraction, template),
        pay_unworked=settings.unworked == "pay",
    )
    accuracy = float(graded.correct)
    paid, parts = accuracy, {}
    if isinstance(graded, Verified):
        paid, parts = graded.score, {"score": graded.score, **graded.parts}
    format_reward = template.format_reward(text)
    overlong = 0.0
    if settings.overlong.enable:
        buffer, factor = settings.overlong.buffer, settings.overlong.factor
        overlong = overlong_penalty(length, limit, buffer, factor)
    return {
        "reward_score": combine(paid, format_reward, overlong, settings),
        "reward_extra_info": {
            "acc": accuracy,
            "source": row["data_source"],
            "parts": parts,
            "format": format_reward,
            "overlong": overlong,
            "status": "unworked" if graded.unworked else str(graded.status),
            "pred": graded.extracted or "",
            "response": text,
        },
    }


class RecipeRewardManager(RewardManagerBase):
    """The reward manager of this project, named by ``reward.reward_manager``.

    `run_single` implements verl's interface. Overrides of verl:
      __init__   reads the configuration and the templates once
    """

    def __init__(self, config: DictConfig, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.settings = config.recipe.reward
        self.limit = int(config.data.max_response_length)
        self.bank = Prompts.from_config(config).bank
        self.verifiers = verifiers_of(self.settings.verifiers, self.settings.verifier_limits)
        self.logged: set[tuple[str, str]] = set()

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[0]
        responses = item.batch["responses"]
        # verl's workers put the prompt's mask before the response's; ours pass only the latter.
        length = int(item.batch["attention_mask"][-len(responses) :].sum())
        row = item.non_tensor_batch
        stop = self.bank[row["tool_extra_fields"]["template"]].stop
        text = end_of_turn(self.tokenizer).text(responses[:length].tolist(), stop)
        # In a thread, so that an answer that waits for a worker process does not block others.
        return await asyncio.to_thread(self._score, text, length, row)

    def _score(self, text: str, length: int, row: Mapping[str, Any]) -> dict[str, Any]:
        fields = row["tool_extra_fields"]  # written by the agent loop, perhaps the user's
        template, limit = self.bank[fields["template"]], int(fields.get("limit", self.limit))
        graded = None
        if row["data_source"] in self.verifiers:
            rule = extraction(self.settings.extraction, template)
            graded = self.verifiers.grade(text, verifier_row(row), rule)
            failed = (row["data_source"], str(graded.status))
            if graded.status not in ("correct", "wrong") and failed not in self.logged:
                self.logged.add(failed)  # the first of a kind; metrics have the share
                logger.warning("verifier of %s: %s, %s", *failed, graded.detail)
        return score(
            text, length, row, template, settings=self.settings, limit=limit, graded=graded
        )
