"""A byte-level tokenizer and a Qwen2 of random weights, as `save_pretrained` writes them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from made_tokenizers import CHATML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|im_end|>"
RANK, ALPHA = 3, 12  # of the adapter


def save_tokenizer(folder: Path) -> None:
    """258 tokens: two of ChatML and every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<|im_start|>", END, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = CHATML
    fast.save_pretrained(folder)


def save_tiny(folder: Path, seed: int, positions: int = 1024) -> None:
    """A Qwen2 of a tenth of a million random parameters, and its tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # vLLM's CPU attention knows no head of 16 dimensions, but 32
        num_key_value_heads=1,
        max_position_embeddings=positions,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder)


def untrained(**changes: Any) -> Any:
    """A Qwen2 of two layers and 40 tokens with random weights; `changes` of its settings."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {
        **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"},
    }
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes}))


def tuned(**changes: Any) -> Any:
    """A Qwen2 with an adapter of random A and B, as verl builds it.

    `changes` of the settings of its start model `untrained(**changes)`.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(untrained(**changes), config)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 10
    return model


def logits(model: Any) -> Any:
    """The model's logits of ten tokens."""
    import torch

    with torch.no_grad():
        return model.eval()(torch.arange(10)[None]).logits


def engine_of(cls: type, module: Any) -> Any:
    """An engine of verl, or ours, for its methods of inputs and outputs, without its __init__."""
    engine: Any = object.__new__(cls)
    engine.module, engine.pad_to_length, engine.use_ulysses_sp = module, False, False
    engine.engine_config = SimpleNamespace(
        entropy_checkpointing=False, entropy_from_logits_with_chunking=False
    )
    return engine
