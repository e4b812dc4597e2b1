"""Shapes of models: numbers of parameters and bytes, by formula.

shapes.json has fields of the config.json of models on the Hugging Face hub.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from prompt_aug.base.files import read_json
from recipe.errors import ConfigError

# Of config.json: what every decoder has.
FIELDS = "hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size".split()
# Values that transformers takes where a config.json lacks them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128},
    "smollm3": {"tie_word_embeddings": True},
}
# Linear layers of these decoders, by their names in transformers.
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A dense decoder: attention and a gated MLP in every layer, as in llama and qwen."""

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
        """Create from a Hugging Face config.json; ConfigError for a mixture of experts.

        For models other than llama and qwen, the counts of norms and biases may be wrong.
        """
        kind = str(config.get("model_type"))
        config = DEFAULTS.get(kind, {}) | config
        missing = [x for x in FIELDS if not (isinstance(config.get(x), int) and config[x] > 0)]
        experts = [name for name in config if "expert" in name]
        if missing or experts:
            why = f"it has {experts[0]}" if experts else f"no number above 0: {', '.join(missing)}"
            raise ConfigError(
                f"model_type {kind}: {why}. Only dense decoders are estimated. Name one of the "
                "same size: recipe.model_path=..."
            )
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
            bias=bool(config.get("attention_bias", kind == "qwen2")),
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

    def adapter(self, rank: int, layers: Iterable[str]) -> int:
        """Return the parameters of LoRA: A and B beside each of the named linear layers."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        outputs = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": q}
        sides = {name: self.hidden + out for name, out in outputs.items()}
        mlp = self.hidden + self.intermediate
        return self.layers * rank * sum(sides.get(name, mlp) for name in layers)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache per token, in 16 bits: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def listed() -> dict[str, dict[str, Any]]:
    """Return shapes.json."""
    return read_json(Path(__file__).with_name("shapes.json"))


def fields_of(model: str) -> dict[str, Any]:
    """Return config.json of a local folder or of the hub's cache, else what shapes.json has of it.

    Empty for any other model: there is no network access.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    file: Any = Path(model) / "config.json"
    with contextlib.suppress(HFValidationError):  # a path, not an id
        file = file if file.is_file() else try_to_load_from_cache(model, "config.json")
    found = read_json(Path(file)) if isinstance(file, str | Path) and Path(file).is_file() else None
    known = listed().get(model.removesuffix("-Instruct"), {})
    return found if isinstance(found, dict) else known


def shape_of(model: str) -> Shape:
    """Return the shape of a model by its `fields_of`; ConfigError if it is unknown."""
    if fields := fields_of(model):
        return Shape.of(fields)
    raise ConfigError(
        f"recipe.model_path={model}: its shape is unknown. Name a local folder with config.json, a "
        f"model in the cache of Hugging Face, or one of {', '.join(listed())}."
    )


def known_shape(model: str | None) -> Shape | None:
    """Return the shape of a model, None if it is not known."""
    try:
        return shape_of(model) if model else None
    except ConfigError:
        return None
