"""One rollout: draw a template and a rephrasing, render, generate, set the prompt to train under.

The template of a rollout is a pure function of (seed, epoch, question uid, rollout index): the same
with any number of workers, on every node, after any resume (`prompt_aug.draw`). A row of a split
other than "train" is rendered with the fixed validation template.

TA-GRPO (arXiv 2601.22478, Eq. 4): a response to the rephrasing q^n is generated under q^n and
returned with the prompt of q^0, in the same template. verl computes the old and the new
log-probabilities from that prompt, so numerator and denominator of the ratio are both under q^0.
The engine's log-probabilities are under q^n; they are a diagnostic only, in no ratio.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

import torch
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer

from prompt_aug.draw import draw, rephrasing
from prompt_aug.prompts import Prompts
from prompt_aug.questions import turns_of
from prompt_aug.templates import Bank, Rendered
from prompt_aug.turns import end_of_turn
from recipe.errors import RolloutError

EPOCH = "recipe_epoch"  # the column of a row's epoch, set by the trainer


def choose_template(augment: DictConfig, bank: Bank, seed: int, row: dict[str, Any]) -> str:
    """Return the template of the rollout ``session_id`` of a row of the dataset."""
    extra = row["extra_info"]
    if extra["split"] != "train":
        return augment.validation_template
    return draw(
        seed=seed,
        epoch=int(row.get(EPOCH, 0)),
        uid=extra["uid"],
        rollout=int(row["session_id"]),
        names=list(augment.templates or bank.names),
        mode=augment.mode,
    )


def choose_rephrasing(recipe: DictConfig, group_size: int, row: dict[str, Any]) -> tuple[int, str]:
    """Return (n, text of q^n) of one of (N + 1) G = `group_size` rollouts; n = 0 in validation."""
    question, extra = turns_of(row["raw_prompt"])[1], row["extra_info"]
    count = int(recipe.rephrasings.count)
    if count == 0 or extra["split"] != "train":
        return 0, question
    texts = [question, *(extra.get("rephrasings") or ())]
    n = rephrasing(
        rollout=int(row["session_id"]),
        per_rephrasing=group_size // (count + 1),
        available=len(texts) - 1,
    )
    return n, texts[n]


def rollout_seed(seed: int, group: str, rollout: int) -> int:
    """The engine's seed for one rollout: 63 bits of a hash of (seed, group, rollout).

    `group` holds the position in the data order: a question that is drawn again gets new seeds.
    """
    digest = hashlib.blake2b(f"{seed}/{group}/{rollout}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def has_stop(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> bool:
    """Return True if the text of a response contains a stop string."""
    text = tokenizer.decode(ids, skip_special_tokens=False) if stops else ""
    return any(stop in text for stop in stops)


def tokens_to_stop(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> int:
    """Return the number of tokens up to the end of the first stop string; all without one.

    The engine does not find a stop string that began before the request was aborted.
    """
    return bisect_left(range(len(ids)), True, key=lambda n: has_stop(tokenizer, ids[:n], stops))


def is_truncated(tokenizer: Any, ids: Sequence[int], limit: int, stops: Sequence[str]) -> bool:
    """Return True for `limit` tokens without an end; verl drops the engine's reason."""
    ended = not end_of_turn(tokenizer).ids.isdisjoint(ids[-1:])
    return len(ids) >= limit and not ended and not has_stop(tokenizer, ids, stops)


def cut_versions(versions: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Return [weight version, tokens] of the parts of a response's first `length` tokens."""
    ends = accumulate(tokens for _, tokens in versions)
    parts = zip(versions, ends, strict=True)
    cut = [[version, min(tokens, length - end + tokens)] for (version, tokens), end in parts]
    return [part for part in cut if part[1] > 0]


@register("prompt_augmentation")
class PromptAugmentationAgentLoop(AgentLoopBase):
    """Single turn: a rephrasing in the drawn template, with the prefill in the assistant's turn.

    `run` implements verl's interface. Overrides of verl:
      __init__   reads the configuration once
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recipe = self.config.recipe
        self.prompts = Prompts.from_config(self.config)  # evaluation uses the same class
        self.prompt_length = int(self.rollout_config.prompt_length)
        self.response_length = int(self.rollout_config.response_length)

    def prompt(self, row: dict[str, Any], text: str) -> tuple[str, Rendered, list[int]]:
        """Return (template name, rendered prompt, its token ids); ValueError if it is too long."""
        name = choose_template(self.recipe.augment, self.prompts.bank, self.recipe.seed, row)
        earlier, _ = turns_of(row["raw_prompt"])
        prompt = self.prompts.render(name, text, self.tokenizer, earlier)
        rendered, ids = prompt.rendered, list(prompt.ids)
        if len(ids) > self.prompt_length:
            raise ValueError(
                f"question {row['extra_info']['uid']} has {len(ids)} tokens under template {name}, "
                f"more than data.max_prompt_length={self.prompt_length}. Raise the limit, or drop "
                "the question (recipe.train does so at its start). Prompts are never truncated."
            )
        return name, rendered, ids

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        n, text = choose_rephrasing(self.recipe, int(self.rollout_config.n), kwargs)
        name, rendered, generated_under = self.prompt(kwargs, text)
        trained_under = generated_under
        if other := n > 0 and self.recipe.rephrasings.ratio == "anchored":
            _, _, trained_under = self.prompt(kwargs, turns_of(kwargs["raw_prompt"])[1])
        params = {**sampling_params, "stop_token_ids": sorted(end_of_turn(self.tokenizer).ids)}
        if self.recipe.rollout.request_seeds and kwargs["extra_info"]["split"] == "train":
            group, rollout = str(kwargs["uid"]), int(kwargs["session_id"])
            params["seed"] = rollout_seed(int(self.recipe.seed), group, rollout)
        if rendered.stop:
            params.update(stop=list(rendered.stop), include_stop_str_in_output=True)
            params["skip_special_tokens"] = False  # a stop string may be a special token
        else:
            params["detokenize"] = False  # only stop strings need text during generation
        metrics: dict[str, Any] = {}
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=kwargs.get("uid") or uuid4().hex,  # one server per group: shared prefix
                prompt_ids=generated_under,
                sampling_params=params,
            )
        if output.stop_reason == "aborted" and kwargs["extra_info"]["split"] == "train":
            raise RolloutError("the engine aborted the request, and nothing continued it")
        ids = list(output.token_ids)[: self.response_length]
        versions = output.extra_fields.get("versions", [])
        if len(versions) > 1 and rendered.stop:
            ids = ids[: tokens_to_stop(self.tokenizer, ids, rendered.stop)]
        logprobs = list(output.log_probs)[: len(ids)] if output.log_probs else None
        limit = self.response_length
        if self.recipe.rollout.get("joint_limit"):
            limit = min(limit, int(self.rollout_config.max_model_len) - len(generated_under))
        metrics["num_preempted"] = -1 if output.num_preempted is None else output.num_preempted
        return AgentLoopOutput(
            prompt_ids=trained_under,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=logprobs,
            num_turns=2,  # the user's and the assistant's, as verl counts
            metrics=metrics,
            extra_fields={
                **output.extra_fields,
                "versions": cut_versions(versions, len(ids)),
                "template": name,
                "prefill": rendered.prefill,
                "limit": limit,
                "truncated": is_truncated(self.tokenizer, ids, limit, rendered.stop),
                "rephrasing": n,
                # TransferQueue would decode a list number by number.
                "generated_under": torch.tensor(generated_under) if other else None,
            },
        )
