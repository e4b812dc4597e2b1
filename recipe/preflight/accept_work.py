"""Two stages of `recipe.accept`: make a model, compare its gradient with float32.

    python -m recipe.preflight.accept_work model FOLDER [--cpu]
    python -m recipe.preflight.accept_work reference FOLDER

The model has random weights, the shape of Qwen2.5-Math-1.5B, and the questions of the toy world;
``--cpu`` takes the toy model. Nothing is downloaded.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from prompt_aug.base.commands import make_parser
from prompt_aug.base.files import write_json
from recipe.config.compose import compose_config
from recipe.config.shapes import known_shapes
from recipe.toy import build

MODEL = "Qwen/Qwen2.5-Math-1.5B"
TOY = ["recipe.toy.updates=1", "recipe.toy.train_questions=200", "recipe.toy.test_questions=40"]
LENGTHS = (17, 1, 30)  # of the sequences of the comparison
BLOCK = 2**24  # elements at a time


def make_model(folder: Path, cpu: bool) -> None:
    """Make FOLDER/model and FOLDER/data."""
    built = build.build(compose_config("toy", [*TOY, f"recipe.toy.cache={folder}/toy"]))
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for path in built.glob("*.parquet"):
        shutil.copy(path, folder / "data" / path.name)
    tokenizer = AutoTokenizer.from_pretrained(built / "model")
    if cpu:
        model = AutoModelForCausalLM.from_pretrained(built / "model")
    else:
        model = random_weights(AutoConfig.from_pretrained(built / "model"))
        fill_vocabulary(tokenizer, model.config.vocab_size)
    tokenizer.save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    print(f"{model.num_parameters():,} parameters in {folder / 'model'}")


def fill_vocabulary(tokenizer: Any, size: int) -> None:
    """Give `tokenizer` a text for every id below `size`; no text is encoded to the new ids.

    verl's engine never draws ids that the tokenizer lacks, but the actor gives them probability.
    With `add_tokens` every process would load the tokenizer in 3 s and 400 MB, not 0.2 s and 85.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"].update({f"<|{i}|>": i for i in range(len(tokenizer), size)})
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))


def random_weights(config: Any) -> Any:
    """Return a model of `MODEL`'s shape in bfloat16; `config` is of the same family."""
    shape = known_shapes()[MODEL]
    config.update(
        {
            **{key: value for key, value in shape.items() if key != "source"},
            "head_dim": shape["hidden_size"] // shape["num_attention_heads"],
            "layer_types": ["full_attention"] * shape["num_hidden_layers"],
            "max_position_embeddings": 4096,
        }
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def gradient(model: Any, ids: Any, positions: Any, logprobs: Any) -> tuple[Any, Any]:
    """Return log-probs and the gradient of their mean as one vector, float32 on the CPU."""
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, :-1]
    values = logprobs(logits, ids[0, 1:])
    values.float().mean().backward()
    grads = [p.grad.float().cpu().flatten() for p in model.parameters() if p.grad is not None]
    return values.detach().float().cpu(), torch.cat(grads)


def alternating(rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Return advantages +1, -1, +1, ... (B,), whatever the rewards."""
    return 1 - 2 * (torch.arange(len(rewards_B)) % 2).to(rewards_B)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return a . b / (|a| |b|) of two long vectors, summed in float64.

    torch's `cosine_similarity` sums in float32: of the gradients of 1.5e9 parameters it gave 1.20.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    for x, y in zip(a.split(BLOCK), b.split(BLOCK), strict=True):
        x, y = x.double(), y.double()
        sums += torch.stack([x @ y, x @ x, y @ y])
    return float(sums[0] / (sums[1] * sums[2]).sqrt())


def compare(folder: Path) -> None:
    """Compare loss and gradient of the device with float32 on the CPU: FOLDER/reference.json.

    The batch is of random tokens, packed as in a run. The device computes in bfloat16 with verl's
    function for log-probabilities, the CPU with torch's log softmax. Without a GPU the device is
    the CPU too.
    """
    import recipe.plugin  # noqa: F401  (as in every process of a run, before verl)
    from verl.utils.torch_functional import logprobs_from_logits  # isort: skip

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    def load(dtype: torch.dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            str(folder / "model"), dtype=dtype, attn_implementation="sdpa"
        )

    exact = load(torch.float32)
    ids = torch.randint(0, exact.config.vocab_size, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]

    def plain(logits: Any, labels: Any) -> Any:
        return logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]

    wanted = gradient(exact, ids, positions, plain)
    # Loaded, not converted: `.to` would round the rotary frequencies too.
    model = load(torch.bfloat16).to(device)
    got = gradient(model, ids.to(device), positions.to(device), logprobs_from_logits)
    figures = {
        "largest log-prob error, nats": float((got[0] - wanted[0]).abs().max()),
        "cosine of the gradients": cosine(got[1], wanted[1]),
    }
    write_json(folder / "reference.json", figures)


def main(arguments: Sequence[str] | None = None) -> int:
    name = "python -m recipe.preflight.accept_work"
    parser = make_parser(name, __doc__, example=f"{name} model runs/accept")
    parser.add_argument("work", choices=("model", "reference"), help="of which stage")
    parser.add_argument("folder", type=Path, help="that of recipe.accept")
    parser.add_argument("--cpu", action="store_true", help="the toy model")
    options = parser.parse_args(arguments)
    if options.work == "model":
        make_model(options.folder, options.cpu)
    else:
        compare(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
