"""One vLLM engine for all checkpoints: started once, then given new weights that are verified.

A reload that misses a tensor gives plausible but wrong answers. On a CPU vLLM keeps a packed copy
of a tied output head: after a reload all parameters equal those on disk, yet 2 of 471 greedy
answers differ. Therefore log-probabilities of fixed prompts are compared with those of the model
as transformers loads it from disk.
"""

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from eval.ask.checkpoints import Checkpoint, verify
from eval.ask.engine import Engine, TokenIds
from eval.ask.settings import Settings
from prompt_aug.base.progress import Progress
from prompt_aug.base.tokenizers import load_tokenizer
from recipe.machine.host import multiplies_bfloat16

OpenEngine = Callable[[str, Settings, int], AbstractContextManager[Engine]]
Reference = Callable[[str, Sequence[TokenIds], str], list[list[float]]]
PROBES, PROBE_TOKENS = 4, 64
# A reload is rejected if its mean distance to transformers exceeds three times that of the freshly
# started engine plus this slack: the rounding of one more sum in that precision. Nats per token.
SLACK = {"float32": 1e-5, "bfloat16": 2e-3, "float16": 1e-3}


def reference_log_probabilities(
    model: str, prompts: Sequence[TokenIds], dtype: str
) -> list[list[float]]:
    """Compute `Engine.log_probabilities` with transformers on the CPU.

    A processor without products of bfloat16 computes in float32, which is many times faster there.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    precision = getattr(torch, dtype) if multiplies_bfloat16() else torch.float32
    network = AutoModelForCausalLM.from_pretrained(
        model, dtype=precision, trust_remote_code=False
    ).eval()
    rows = []
    with torch.inference_mode():
        for ids in prompts:
            tokens = torch.tensor([ids])
            scores = network(tokens).logits[0, :-1].float().log_softmax(-1)
            rows.append(scores.gather(-1, tokens[0, 1:, None])[:, 0].tolist())
    del network
    gc.collect()
    return rows


class Session:
    """Context manager that holds at most one engine and counts its `starts` and weight `swaps`."""

    def __init__(
        self,
        settings: Settings,
        open_engine: OpenEngine = Engine,
        reference: Reference = reference_log_probabilities,
    ) -> None:
        self._settings, self._open, self._reference = settings, open_engine, reference
        self._stack = contextlib.ExitStack()
        self._engine: Engine | None = None
        self._model, self._signature, self._context = "", "", 0
        self._identity: Mapping[str, Any] = {}  # two exports of a step have the same path
        self._noise: float | None = None
        self.starts = self.swaps = 0

    def tokenizer(self, checkpoint: Checkpoint) -> Any:
        return load_tokenizer(checkpoint.model)

    def engine_for(
        self, checkpoint: Checkpoint, kind: str, context: int, prompts: Sequence[TokenIds]
    ) -> Engine:
        """Return an engine with the weights of `checkpoint`; a reload is verified on `prompts`."""
        model, fits = checkpoint.model, kind == self._signature and context <= self._context
        engine = self._engine if fits else None
        if engine and (model, checkpoint.identity) == (self._model, self._identity):
            return engine
        verify(checkpoint)
        self._identity, anew = checkpoint.identity, model == self._model
        probes = [ids[:PROBE_TOKENS] for ids in prompts[:PROBES]]
        if engine and self._settings.reload and not anew and self._swap(engine, model, probes):
            return engine
        self.__exit__()
        with Progress("start the engine"):
            engine = self._stack.enter_context(self._open(model, self._settings, context))
        self.starts += 1
        self._engine, self._model, self._signature, self._context = engine, model, kind, context
        return engine

    def _swap(self, engine: Engine, model: str, probes: Sequence[TokenIds]) -> bool:
        """Load the weights of `model`. Return False if that fails or cannot be verified."""
        dtype = str(engine.facts()["dtype"])

        def distance(of: str) -> float:
            ours, theirs = engine.log_probabilities(probes), self._reference(of, probes, dtype)
            return float(np.mean(np.abs(np.concatenate(ours) - np.concatenate(theirs))))

        try:
            if self._noise is None:
                self._noise = distance(self._model)
            engine.load(model)
            away = distance(model)
        except Exception as error:  # a restart always works, whatever the engine does not support
            print(f"note: the weights are not reloaded, the engine is restarted ({error!r:.200})")
            return False
        limit = 3 * self._noise + SLACK.get(dtype, 1e-3)
        if not away <= limit:  # also for NaN
            print(
                f"note: after reloading its weights the engine is {away:.2g} nats per token away "
                f"from {model}, {limit:.2g} allowed: it is restarted"
            )
            return False
        self._model = model
        self.swaps += 1
        return True

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self._engine, self._noise = None, None
        self._stack.close()
