"""Compare a value model's predictions with measured pass rates: ``python -m recipe.lab.value RUN``.

For each exported checkpoint of a run with `recipe.curriculum.value_model`, on training questions:

    rank correlation   Spearman's, of V(q) and p_q
    error              mean |V(q) - p_q|
    level/L/...        means of V(q) and of p_q over the questions of level L of the world

p_q is the share of right answers among `--samples` of the exported checkpoint at temperature 1.
With `--test` the questions are those of the test split instead. Writes RUN/value.json.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForTokenClassification

from prompt_aug.base.commands import existing, make_parser, run
from prompt_aug.base.files import write_json
from prompt_aug.templates import load_bank, render
from recipe.errors import ConfigError
from recipe.export.shards import merged
from recipe.export.verify import load_shards
from recipe.run.checkpoints import saved_ranks
from recipe.run.folder import RunFolder, numbered, read_config
from recipe.toy.build import settings_of
from recipe.toy.measure import Sampler
from recipe.toy.problems import problems, to_question


def value_model(source: Path, model_path: Path) -> Any:
    """Return the critic saved in ``global_step_N/critic``."""
    shards = load_shards(source, saved_ranks(source) or 1)
    state = {
        name: merged([shard[name] for shard in shards]) if hasattr(first, "placements") else first
        for name, first in shards[0].items()
    }
    config = AutoConfig.from_pretrained(model_path, num_labels=1)
    model = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    model.load_state_dict(state)
    return model.eval()


def spearman(values: torch.Tensor, others: torch.Tensor) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""

    def ranks(x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] > x).sum(1) + ((x[:, None] == x).sum(1) + 1) / 2

    return float(torch.corrcoef(torch.stack([ranks(values), ranks(others)]).double())[0, 1])


def compared(run_folder: RunFolder, split: str, samples: int) -> dict[str, Any]:
    """Return {step: numbers} of the exported checkpoints that have a critic."""
    config: Any = OmegaConf.create(read_config(run_folder.root))
    bank = load_bank(config.recipe.augment.bank)
    frame = bank[(config.recipe.augment.templates or bank.names)[0]]
    made = settings_of(config, bank)
    chosen = problems(made.world, split, getattr(made.world.questions, split), made.seed)
    texts = [to_question(made.world, p, split, made.seed).text for p in chosen]
    golds = [(str(p.answer),) for p in chosen]
    steps: dict[str, Any] = {}
    for step, folder in numbered(run_folder.exports, "step_").items():
        critic = run_folder.checkpoint(step) / "critic"
        if not critic.is_dir():
            continue
        sampler = Sampler(folder, max_tokens=int(config.data.max_response_length), seed=made.seed)
        drawn = sampler.sample(texts, golds, frame, samples=samples)
        rates = torch.tensor([sum(s.right for s in group) / samples for group in drawn])
        batch = sampler.encoded([render(frame, t, sampler.tokenizer).text for t in texts])
        with torch.no_grad():
            values = value_model(critic, folder)(**batch).logits[:, -1, 0]
        levels = torch.tensor([p.level for p in chosen])
        steps[str(step)] = {
            "questions": len(texts),
            "rank correlation": spearman(values, rates),
            "error": float((values - rates).abs().mean()),
            **{
                f"level/{level}/{name}": float(found[levels == level].mean())
                for level in levels.unique().tolist()
                for name, found in (("value", values), ("pass rate", rates))
            },
        }
    if not steps:
        raise ConfigError(
            f"{run_folder.root}: no exported step has a critic. Train with method=pcl, then "
            f"python -m recipe.export {run_folder.root}"
        )
    return steps


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.value", __doc__, example="python -m recipe.lab.value runs/pcl --test"
    )
    parser.add_argument("run", type=existing, help="the run folder, its checkpoints exported")
    parser.add_argument("--test", action="store_true", help="questions never trained on")
    parser.add_argument("--samples", type=int, default=32, help="answers per question (32)")
    given = parser.parse_args(arguments)

    def compare() -> int:
        found = compared(RunFolder(given.run), "test" if given.test else "train", given.samples)
        write_json(given.run / "value.json", found)
        for step, numbers in found.items():
            print(f"step {step}: " + ", ".join(f"{k} {v:.3g}" for k, v in numbers.items()))
        return 0

    return run("recipe.lab.value", compare, interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
