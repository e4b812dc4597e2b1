"""The toy model in plain torch: sampling and log-probabilities without an engine.

Reads a Qwen2 folder in Hugging Face's format. Two things make it fast on one core. A prefix that
rows share is computed once (prompts and training rows: `recipe.actor.prefix_tree`). Each layer is a
few large operations.

Symbols: B unfinished rows, P their distinct prefixes, N tokens computed at once, H heads,
K key-value heads, D width of a head, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from verl.utils.torch_functional import entropy_from_logits

from recipe.actor.engine import values_of
from recipe.actor.prefix_tree import Forest, plant
from recipe.errors import ConfigError

# (layer, queries NHD, keys NKD, values NKD) -> NHD, or of a `Forest` FLHD
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# (probabilities PV, prefix of each row B, rows B) -> tokens B
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(NamedTuple):
    """Weights of a layer; those applied to the same input are joined."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Responses with their log-probabilities and entropies (nats), one tensor per row."""

    ids: list[Tensor]
    logprobs: list[Tensor]
    entropy: list[Tensor]


class Decoder:
    """A model with Hugging Face's `config`; `weights` are its parameters by name, in float32."""

    def __init__(self, weights: dict[str, Tensor], config: Any) -> None:
        self.weights, self.config, self.epsilon = weights, config, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        half = torch.arange(0, self.width, 2).float() / self.width
        self.frequencies = config.rope_parameters["rope_theta"] ** -half

    @classmethod
    def load(cls, folder: Path) -> "Decoder":
        """Read a folder that `save_pretrained` wrote. Raises ConfigError for another model type."""
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.model_type != "qwen2" or not config.tie_word_embeddings:
            raise ConfigError(
                f"recipe.model_path={folder}: a {config.model_type} model. The simulator runs "
                "the toy world's model, a Qwen2 with tied embeddings. Use recipe.train for others."
            )
        found = load_file(folder / "model.safetensors")
        weights = {n: w.float().clone() for n, w in found.items() if n != "lm_head.weight"}
        return cls(weights, config)

    # ---------------------------------------------------------------- the network

    def _layers(self) -> list[Layer]:
        def layer(number: int) -> Layer:
            def get(*names: str) -> Tensor:
                return torch.cat([self.weights[f"model.layers.{number}.{n}"] for n in names])

            qkv = [f"self_attn.{name}_proj" for name in "qkv"]
            return Layer(
                norm=get("input_layernorm.weight"),
                qkv=get(*(f"{name}.weight" for name in qkv)),
                qkv_bias=get(*(f"{name}.bias" for name in qkv)),
                out=get("self_attn.o_proj.weight"),
                mlp_norm=get("post_attention_layernorm.weight"),
                gate_up=get("mlp.gate_proj.weight", "mlp.up_proj.weight"),
                down=get("mlp.down_proj.weight"),
            )

        return [layer(i) for i in range(self.config.num_hidden_layers)]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * weight

    def _hidden(
        self, layers: Sequence[Layer], ids_N: Tensor, position_N: Tensor, attend: Attention
    ) -> Tensor:
        """Return the last hidden state of every token, shape N x hidden."""
        angles = position_N[:, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        h = self.weights["model.embed_tokens.weight"][ids_N]
        count = len(ids_N)
        for number, layer in enumerate(layers):
            x = F.linear(self._norm(h, layer.norm), layer.qkv, layer.qkv_bias)
            x = x.view(count, -1, self.width)
            turned, v = x[:, : self.heads + self.kv_heads], x[:, self.heads + self.kv_heads :]
            low, high = turned.chunk(2, -1)
            turned = turned * cos + torch.cat([-high, low], -1) * sin
            o = attend(number, turned[:, : self.heads], turned[:, self.heads :], v)
            h = h + F.linear(o.reshape(count, -1), layer.out)
            gate, up = F.linear(self._norm(h, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            h = h + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(h, self.weights["model.norm.weight"])

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weights["model.embed_tokens.weight"])

    def _forest(
        self,
        layers: Sequence[Layer],
        forest: Forest,
        cache: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Return the hidden states of a forest's places; append keys and values KND to `cache`."""
        rows, places = forest.ids_FL.shape

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if cache is not None:
                cache.append((k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()))
            q, k, v = (x.reshape(rows, places, -1, self.width).transpose(1, 2) for x in (q, k, v))
            mask = forest.sees_F1LL
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return o.transpose(1, 2)

        return self._hidden(layers, forest.ids_FL.flatten(), forest.depth_FL.flatten(), attend)

    # ---------------------------------------------------------------- log-probabilities

    def logprobs(
        self, rows: Sequence[Sequence[int]], temperature: float, *, entropy: bool
    ) -> dict[str, Tensor]:
        """Return ``log_probs`` and, if requested, ``entropy``, concatenated over `rows`.

        As in verl's engine, the value at a position belongs to the next token. The value at the
        last position of a row is meaningless.
        """
        forest = plant([list(row) for row in rows])
        logits = self._logits(self._forest(self._layers(), forest))
        if temperature != 1.0:
            logits = logits / temperature
        labels = torch.tensor([token for row in rows for token in row]).roll(-1)
        found = {"log_probs": values_of(logits, labels, forest.node_N)}
        if entropy:
            found["entropy"] = entropy_from_logits(logits).gather(0, forest.node_N)
        return found

    # ---------------------------------------------------------------- sampling

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        draw: Draw,
        *,
        temperature: float,
        max_tokens: int,
        end: int,
    ) -> Drawn:
        """Return a response to every prompt: up to and including `end`, at most `max_tokens`."""
        state = _Prefixes(self, prompts)
        rows_B = torch.arange(len(prompts))
        prefix_B, steps = state.prefix_of_prompt, []
        vocabulary = len(self.weights["model.embed_tokens.weight"])
        for number in range(max_tokens):
            logits_PV = state.logits_PV / temperature if temperature != 1.0 else state.logits_PV
            logp_PV = logits_PV.log_softmax(-1)
            prob_PV = logp_PV.exp()
            entropy_P = -(prob_PV * logp_PV).sum(-1)
            token_B = draw(prob_PV, prefix_B, rows_B)
            steps.append((rows_B, token_B, logp_PV[prefix_B, token_B], entropy_P[prefix_B]))
            on = token_B != end
            if number == max_tokens - 1 or not on.any():
                break
            rows_B, pairs = rows_B[on], prefix_B[on] * vocabulary + token_B[on]
            pairs_P, prefix_B = pairs.unique(return_inverse=True)
            parent_P = pairs_P.div(vocabulary, rounding_mode="floor")
            state.grow(parent_P, pairs_P % vocabulary)
        return _by_row(steps, len(prompts))


def _by_row(steps: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], count: int) -> Drawn:
    rows, *columns = (torch.cat(column) for column in zip(*steps, strict=True))
    order = rows.argsort(stable=True)
    lengths = rows.bincount(minlength=count).tolist()
    ids, logprobs, entropy = (list(column[order].split(lengths)) for column in columns)
    return Drawn(ids=ids, logprobs=logprobs, entropy=entropy)


class _Prefixes:
    """P distinct prefixes: keys and values of their responses, logits of the next token.

    All prefixes read the prompts' keys from one tree under a mask. The keys of the responses are
    copied at every token.
    """

    def __init__(self, model: Decoder, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.layers = model, model._layers()
        distinct = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        place = {prompt: i for i, prompt in enumerate(distinct)}
        self.prefix_of_prompt = torch.tensor([place[tuple(prompt)] for prompt in prompts])
        forest = plant(distinct, capacity=sum(map(len, distinct)))
        self.prompt_cache: list[tuple[Tensor, Tensor]] = []
        hidden = model._forest(self.layers, forest, self.prompt_cache)
        length_P = torch.tensor([len(prompt) for prompt in distinct])
        last_P = forest.node_N[length_P.cumsum(0) - 1]
        sees = forest.sees_F1LL[0, 0, last_P]
        self.hidden_bias = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
        self.position_P = length_P
        self.logits_PV = model._logits(hidden[last_P])
        empty = torch.empty(len(distinct), model.kv_heads, 0, model.width)
        self.cache = [(empty, empty)] * len(self.layers)

    def grow(self, parent_P: Tensor, token_P: Tensor) -> None:
        """Extend the prefixes: each new one is the prefix at `parent_P` plus one token."""
        if len(parent_P) != len(self.position_P) or not torch.equal(
            parent_P, torch.arange(len(parent_P))
        ):
            self.hidden_bias = self.hidden_bias[parent_P]
            self.position_P = self.position_P[parent_P]
            self.cache = [(k[parent_P], v[parent_P]) for k, v in self.cache]
        hidden = self.model._hidden(self.layers, token_P, self.position_P, self._attend)
        self.position_P = self.position_P + 1
        self.logits_PV = self.model._logits(hidden)

    def _attend(self, number: int, q: Tensor, new_k: Tensor, new_v: Tensor) -> Tensor:
        s, rows = self.model, len(q)
        k, v = self.cache[number]
        k, v = torch.cat([k, new_k[:, :, None]], 2), torch.cat([v, new_v[:, :, None]], 2)
        self.cache[number] = k, v
        prompt_k, prompt_v = self.prompt_cache[number]
        groups = s.heads // s.kv_heads
        grouped = q.reshape(rows, s.kv_heads, groups, s.width) * s.width**-0.5
        # One matrix product per key-value head: all prefixes with the prompts' keys.
        joined = grouped.transpose(0, 1).reshape(s.kv_heads, rows * groups, s.width)
        prompt = (joined @ prompt_k.transpose(1, 2)).view(s.kv_heads, rows, groups, -1)
        prompt = (prompt + self.hidden_bias[:, None]).transpose(0, 1)
        weight = torch.cat([prompt, grouped @ k.transpose(2, 3)], -1).softmax(-1)
        split = prompt.shape[-1]
        of_prompt = weight[..., :split].transpose(0, 1).reshape(s.kv_heads, rows * groups, split)
        o = (of_prompt @ prompt_v).view(s.kv_heads, rows, groups, s.width).transpose(0, 1)
        return (o + weight[..., split:] @ v).reshape(rows, s.heads, s.width)
