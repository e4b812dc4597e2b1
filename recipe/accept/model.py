"""A model with random weights and questions for it: ``python -m recipe.accept.model FOLDER``.

Nothing is downloaded: the shape is that of Qwen2.5-Math-1.5B (recipe/plan/shapes.json), the
tokenizer and the questions are those of the toy world. ``--cpu`` makes the toy model's size.
"""

import sys
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser

MODEL = "Qwen/Qwen2.5-Math-1.5B"
TOY = ["recipe.toy.updates=1", "recipe.toy.train_questions=200", "recipe.toy.test_questions=40"]


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.accept.model",
        __doc__,
        example="python -m recipe.accept.model runs/accept --cpu",
    )
    parser.add_argument("folder", type=Path, help="model/ and data/ are made in it")
    parser.add_argument("--cpu", action="store_true", help="the toy model as it is, for a CPU")
    options = parser.parse_args(arguments)

    import shutil

    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from recipe.config.compose import compose_config
    from recipe.toy import build

    folder: Path = options.folder
    built = build.build(compose_config("toy", [*TOY, f"recipe.toy.cache={folder}/toy"]))
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for path in built.glob("*.parquet"):
        shutil.copy(path, folder / "data" / path.name)
    AutoTokenizer.from_pretrained(built / "model").save_pretrained(folder / "model")
    if options.cpu:
        model = AutoModelForCausalLM.from_pretrained(built / "model")
    else:
        model = random_weights(AutoConfig.from_pretrained(built / "model"))
    model.save_pretrained(folder / "model")
    print(f"{model.num_parameters():,} parameters in {folder / 'model'}")
    return 0


def random_weights(config: Any) -> Any:
    """A model of `MODEL`'s shape in bfloat16; `config` is the toy model's, of the same family."""
    import torch
    from transformers import AutoModelForCausalLM

    from recipe.plan.shapes import shape_of

    shape = shape_of(MODEL)
    config.update(
        {
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": shape.intermediate,
            "vocab_size": shape.vocab,
            "tie_word_embeddings": shape.tied,
            "layer_types": ["full_attention"] * shape.layers,
            "max_position_embeddings": 4096,
        }
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


if __name__ == "__main__":
    sys.exit(main())
