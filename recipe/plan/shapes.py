"""Shapes of models and of GPUs: numbers of parameters and bytes, by formula."""

import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from prompt_aug.files import read_json
from recipe.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder of the qwen2 or qwen3 kind (llama is one without `bias`)."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool  # the output matrix is the embedding
    bias: bool  # of q, k and v
    qk_norm: bool

    @classmethod
    def of(cls, config: dict[str, Any]) -> Self:
        """From the fields of a Hugging Face config.json; ConfigError for other kinds of models."""
        kind = config.get("model_type")
        if kind not in ("qwen2", "qwen3", "llama"):
            raise ConfigError(f"model_type {kind}: the plan knows qwen2, qwen3 and llama alone")
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
        )

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocab * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a layer: q, k, v, o, the three matrices of the MLP, and the norms."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv) + (q + 2 * kv) * self.bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def parameters(self) -> int:
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer + self.hidden

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache per token, in 16 bits: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def shape_of(model: str) -> Shape:
    """The shape of a local folder with a config.json, or of a model of shapes.json."""
    local = Path(model) / "config.json"
    if local.is_file():
        return Shape.of(read_json(local))
    known = json.loads((importlib.resources.files(__package__) / "shapes.json").read_text())
    if model not in known:
        raise ConfigError(
            f"the shape of {model} is not known: name a local folder with its config.json "
            f"(recipe.model_path=...), or one of {', '.join(known)}"
        )
    return Shape.of(known[model])


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Bytes of memory, dense 16-bit operations and bytes of memory traffic per second."""

    memory: float
    flops: float
    bandwidth: float


# Vendor's data sheets; the bytes are what a driver leaves of the name.
GPUS = {
    "h100-80": Gpu(memory=79.6 * 2**30, flops=989e12, bandwidth=3.35e12),
    "h200-141": Gpu(memory=139.8 * 2**30, flops=989e12, bandwidth=4.8e12),
    "a100-80": Gpu(memory=79.3 * 2**30, flops=312e12, bandwidth=2.04e12),
    "a100-40": Gpu(memory=39.4 * 2**30, flops=312e12, bandwidth=1.56e12),
    "l40s-48": Gpu(memory=44.5 * 2**30, flops=362e12, bandwidth=0.864e12),
}
