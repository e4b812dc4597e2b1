"""One engine for all checkpoints: started once, given the next weights, each reload verified.

A reload that misses a tensor gives answers that look right. (On a CPU vLLM keeps a packed copy of
a tied output head, which a reload leaves as it was: all parameters are then equal to those on the
disk, and 2 of 471 greedy answers differ.) So it is verified on log-probabilities of fixed prompts,
against the model as transformers reads it from the disk.
"""

import contextlib
import gc
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from eval.checkpoints import Checkpoint
from eval.engine import Engine, TokenIds, VllmEngine
from eval.settings import Settings
from prompt_aug.base.progress import Progress

OpenEngine = Callable[[str, Settings, int], AbstractContextManager[Engine]]
Reference = Callable[[str, Sequence[TokenIds], str], list[list[float]]]
PROBES, PROBE_TOKENS = 4, 64
# A reload is refused where the mean distance to transformers, in nats per token, is more than
# three times that of the engine as it started, plus this: rounding of one more float32 or bfloat16
# sum. A difference below it changes no answer that rounding would not.
SLACK = {"float32": 1e-5, "bfloat16": 2e-3, "float16": 1e-3}
# What save_pretrained writes into a configuration and no engine reads.
VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")


def signature(model: str, tokenizer: Any) -> str:
    """The same for two models whose weights may take each other's place in one engine.

    Over configuration, generation configuration (it names the tokens that end a response) and
    tokenizer. A hub id has one of its own: nothing of it is on the disk to compare.
    """
    parts: list[Any] = []
    for name in ("config.json", "generation_config.json"):
        path = Path(model) / name
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if content is None and name == "config.json":
            return model
        parts.append({k: v for k, v in (content or {}).items() if k not in VOLATILE})
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts.append(backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items()))
    parts.append([str(tokenizer.eos_token), sorted(tokenizer.all_special_tokens)])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def reference_log_probabilities(
    model: str, prompts: Sequence[TokenIds], dtype: str
) -> list[list[float]]:
    """What `Engine.log_probabilities` must give, by transformers on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    found = []
    with torch.inference_mode():
        for ids in prompts:
            tokens = torch.tensor([ids])
            scores = network(tokens).logits[0, :-1].float().log_softmax(-1)
            found.append(scores.gather(-1, tokens[0, 1:, None])[:, 0].tolist())
    del network
    gc.collect()
    return found


class Session:
    """A context manager that holds at most one engine; `starts` and `swaps` count what it did."""

    def __init__(
        self,
        settings: Settings,
        open_engine: OpenEngine = VllmEngine,
        reference: Reference = reference_log_probabilities,
    ) -> None:
        self._settings, self._open, self._reference = settings, open_engine, reference
        self._stack = contextlib.ExitStack()
        self._engine: Engine | None = None
        self._model, self._signature, self._context = "", "", 0
        self._noise: float | None = None
        self.starts = self.swaps = 0

    def engine_for(
        self, checkpoint: Checkpoint, kind: str, context: int, prompts: Sequence[TokenIds]
    ) -> Engine:
        """An engine with the weights of `checkpoint` and room for `context` tokens.

        `kind` is the model's `signature`; `prompts` are what a reload is verified on.
        """
        fits = self._engine is not None and kind == self._signature and context <= self._context
        if fits and self._model == checkpoint.model:
            assert self._engine is not None
            return self._engine
        probes = [ids[:PROBE_TOKENS] for ids in prompts[:PROBES]]
        if fits and self._settings.reload_weights and self._swap(checkpoint.model, probes):
            assert self._engine is not None
            return self._engine
        self.close()
        with Progress("start the engine"):
            self._engine = self._stack.enter_context(
                self._open(checkpoint.model, self._settings, context)
            )
        self.starts += 1
        self._model, self._signature, self._context = checkpoint.model, kind, context
        return self._engine

    def _swap(self, model: str, probes: Sequence[TokenIds]) -> bool:
        """Load the weights of `model`; False where that failed or is not verified."""
        assert self._engine is not None
        dtype = str(self._engine.facts()["dtype"])
        try:
            if self._noise is None:
                self._noise = self._distance(self._model, probes, dtype)
            self._engine.load(model)
            distance = self._distance(model, probes, dtype)
        except Exception as error:  # whatever the engine does not support: a start always works
            print(f"note: the weights are not reloaded, the engine is restarted ({error!r:.200})")
            return False
        limit = 3 * self._noise + SLACK.get(dtype, 1e-3)
        if not distance <= limit:
            print(
                f"note: after its weights were reloaded the engine is {distance:.2g} nats per "
                f"token away from {model}, {limit:.2g} allowed: it is restarted"
            )
            return False
        self._model = model
        self.swaps += 1
        return True

    def _distance(self, model: str, probes: Sequence[TokenIds], dtype: str) -> float:
        """Mean distance of the engine from `model`, nats per token."""
        assert self._engine is not None
        ours = self._engine.log_probabilities(probes)
        theirs = self._reference(model, probes, dtype)
        return float(np.mean(np.abs(np.concatenate(ours) - np.concatenate(theirs))))

    def close(self) -> None:
        """Shut the engine down, if there is one."""
        self._engine, self._noise = None, None
        self._stack.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
