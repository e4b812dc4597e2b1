"""Measure the exported checkpoints of a run: ``python -m recipe.lab.measure RUN EXPERIMENT``.

Samples answers to test questions of the run's world, at temperature 1 and greedily, under each
template of the experiment. At the end writes RUN/measured.json atomically:
{"commit": of the code that measured, "steps": {step: {template: numbers}}}.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.estimates import no_signal, pass_at_k, powers
from prompt_aug.base.files import read_json, write_json
from prompt_aug.templates import Bank, Template, load_bank
from recipe.lab.experiment import ExperimentError, Measure, load_experiment
from recipe.run.environment import commit
from recipe.run.folder import RunFolder, numbered, read_config
from recipe.toy.build import settings_of
from recipe.toy.diagnose import rates
from recipe.toy.measure import Sampler
from recipe.toy.problems import Problem, problems, to_question


def by_level(levels: Sequence[int], right: Sequence[int], samples: int) -> dict[str, float]:
    """Return pass@1 and pass@k, k = `samples`, over the questions of each level."""
    found = {}
    for level in sorted(set(levels)):
        here = [r for r, of in zip(right, levels, strict=True) if of == level]
        for k in dict.fromkeys((1, samples)):
            found[f"level/{level}/pass@{k}"] = pass_at_k(here, samples, k)
    return found


def measured(
    sampler: Sampler, asked: Sequence[tuple[Problem, str]], bank: Bank, settings: Measure
) -> dict[str, dict[str, float]]:
    """Return {template: numbers} of one checkpoint."""
    return {
        name: _measured(sampler, asked, bank[name], settings.samples) for name in settings.templates
    }


def _measured(
    sampler: Sampler, asked: Sequence[tuple[Problem, str]], frame: Template, samples: int
) -> dict[str, float]:
    """Return the numbers under one template; entropy in nats per token.

    ``skill/NAME`` is the share of right uses of a skill, ``uses/NAME`` the number of its uses.
    """
    texts, golds = [text for _, text in asked], [(str(p.answer),) for p, _ in asked]
    drawn = sampler.sample(texts, golds, frame, samples=samples)
    greedy = sampler.sample(texts, golds, frame, samples=1, temperature=0.0)
    right = [sum(s.right for s in group) for group in drawn]
    every = [s for group in drawn for s in group]
    entropy = sum(s.entropy for s in every)
    skills = rates((p, s.text) for (p, _), group in zip(asked, drawn, strict=True) for s in group)
    return {
        "questions": len(asked),  # can differ from the setting: level shares are rounded
        "greedy": sum(best[0].right for best in greedy) / len(asked),
        **{f"pass@{k}": pass_at_k(right, samples, k) for k in powers(samples)},
        **{f"no_signal@{k}": no_signal(right, samples, k) for k in powers(samples) if k > 1},
        "format": sum(s.format for s in every) / len(every),
        "entropy": entropy / len(every),
        "entropy on filler": sum(s.filler for s in every) / max(1e-9, entropy),
        "tokens": sum(s.tokens for s in every) / len(every),
        **by_level([p.level for p, _ in asked], right, samples),
        **{f"skill/{skill}": share for skill, (share, _) in skills.items()},
        **{f"uses/{skill}": count for skill, (_, count) in skills.items()},
    }


def asked_in(config: DictConfig, bank: Bank, settings: Measure) -> list[tuple[Problem, str]]:
    """Return the problems of the test questions and the texts of the questions."""
    made = settings_of(config, bank)
    chosen = problems(made.world, "test", settings.questions, made.seed)
    return [(p, to_question(made.world, p, "test", made.seed).text) for p in chosen]


def measure_run(run: Path, settings: Measure) -> dict[str, Any]:
    """Measure the checkpoints in RUN/hf, including step 0; return the content of measured.json."""
    config: Any = OmegaConf.create(read_config(run))
    bank = load_bank(config.recipe.augment.bank)
    asked, seed = asked_in(config, bank, settings), settings_of(config, bank).seed
    steps: dict[str, Any] = {}
    for step, exported in numbered(RunFolder(run).exports, "step_").items():
        # The manifest of step 0 names the start model.
        manifest = read_json(RunFolder(run).manifest(step))
        folder = Path(manifest.get("model_path", exported))
        sampler = Sampler(folder, max_tokens=int(config.data.max_response_length), seed=seed)
        steps[str(step)] = measured(sampler, asked, bank, settings)
    if not steps:
        raise ExperimentError(f"{run}/hf has no exported checkpoint: python -m recipe.export {run}")
    return {"commit": commit(), "steps": steps}


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.measure",
        __doc__,
        example="python -m recipe.lab.measure runs/laboratory/ta_grpo/grpo-1000 ta_grpo",
    )
    parser.add_argument("run", type=Path, help="the run folder, its checkpoints exported")
    parser.add_argument("experiment", help="a folder of examples/laboratory")
    given = parser.parse_args(arguments)

    def measure() -> int:
        found = measure_run(given.run, load_experiment(given.experiment).measure)
        write_json(RunFolder(given.run).measured, found)
        return 0

    return run("recipe.lab.measure", measure, interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
