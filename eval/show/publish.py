"""Export the scores of a run to other tools.

For each scored checkpoint, or those of --steps: scores in tensorboard or wandb, beside the
training's, a model card in the exported folder, with the command that uploads it.
"""

import argparse
import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from eval.ask.checkpoints import from_manifest, verify
from eval.scores.score import Scored
from eval.show import add_settings, tables
from eval.show.data import scored_steps
from prompt_aug.base.commands import add_steps, existing, make_parser
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import read_json, write_text
from prompt_aug.prepare.sources import load_presets
from prompt_aug.prompts import Prompts
from prompt_aug.questions import read_parquet
from recipe.machine import environment
from recipe.machine.host import ROOT
from recipe.run.folder import MANIFEST, RunFolder, read_config, select

CARD = "README.md"
HUB_ID = re.compile(r"(?!(?:models?|checkpoints?|runs|outputs?|data)/)\w[\w.-]*/\w[\w.-]*")
CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/")  # a model in the hub's cache
SUFFIX = ".eval"  # of our event file, which a second call replaces


@dataclass(frozen=True)
class Evaluated(Scored):
    """A scored checkpoint of a run, and the name of its model."""

    run: Path
    step: int

    @property
    def model(self) -> str:
        return f"{self.run.resolve().name}-step_{self.step}"


def write_card(checkpoint: Evaluated) -> Path:
    """Write README.md into the exported folder. An export of the start model gets no card."""
    folder = RunFolder(checkpoint.run).exported(checkpoint.step)
    if "files" not in read_json(folder / MANIFEST):
        raise UserError(f"{folder} only points to the start model: it gets no card")
    verify(from_manifest(folder, checkpoint.step))
    write_text(folder / CARD, model_card(checkpoint))
    return folder / CARD


def model_card(checkpoint: Evaluated) -> str:
    """Return the card: metadata for a hub, then the facts of the run, the scores, the prompt."""
    run = RunFolder(checkpoint.run)
    config = read_config(checkpoint.run) if run.config.is_file() else {}
    name, hub_id, terms = base_model(config, run)
    terms = terms or _license(run.exported(checkpoint.step) / CARD)  # added by hand
    trained = read_json(run.environment) if run.environment.is_file() else {}
    train = run.data("train")
    sources = {q.source for q in read_parquet(train, "last")} if train.is_file() else set()
    hubs = sorted({p.hub for name, p in load_presets().items() if name in sources and p.hub})
    results, scores = [], [["benchmark", "questions x samples", "% correct"]]
    for benchmark, entry in checkpoint.benchmarks.items():
        evaluated, value = entry["settings"], round(100 * entry["accuracy"], 2)
        results.append(EvalResult("text-generation", benchmark, benchmark, "pass@1", value))
        size = f"{evaluated['questions']} of {evaluated['of']} x {evaluated['samples']}"
        own = ("template", "extraction", "tolerance")
        named = [f"{k} {evaluated[k]}" for k in own if evaluated.get(k) not in (None, "default")]
        scores.append([benchmark, ", ".join([size, *named]), tables.share(entry)])
    data = ModelCardData(
        base_model=hub_id,
        datasets=hubs or None,
        **terms,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "math", "verl"],
        model_name=checkpoint.model,
        eval_results=results,
    )
    facts = {
        "run": checkpoint.run.resolve().name,
        "base model": name,
        "method": tables.method(config) or "not recorded",
        "training data": ", ".join(sorted(sources)) or "not recorded",
        "step": checkpoint.step,
        "license": ", ".join(terms.values()) or "unknown. Add `license:` before publishing.",
        "commit of the training": trained.get("commit"),
        "commit of the evaluation": checkpoint.record["environment"].get("commit"),
    }
    settings = checkpoint.record["settings"].items()
    shown = ", ".join(f"{key} {value}" for key, value in settings if "sha256" not in key)
    return str(
        ModelCard(
            f"---\n{data.to_yaml()}\n---\n\n# {checkpoint.model}\n\n"
            f"{tables.markdown_table([[key, str(value)] for key, value in facts.items()])}\n\n"
            f"## Scores\n\n{tables.markdown_table(scores)}\n\n"
            "±: one standard error, clustered by question. Brackets: 95 % interval, at 0 and "
            f"100 %. Settings: {shown}. Grader {checkpoint.record['grader']}."
            f"{_picked(checkpoint)}\n\n"
            f"## Prompt\n\n{_prompt(checkpoint, config)}"
        )
    )


def _picked(checkpoint: Evaluated) -> str:
    """Return a sentence about the score that picked this step; "" for any other step."""
    chosen = checkpoint.selection
    if chosen is None or chosen.step != checkpoint.step:
        return ""
    return f" The step was picked by its score on {chosen.benchmark}, which is too high."


def _license(card: Path) -> dict[str, Any]:
    """Return the license of a card; if it is `other`, also its name and link."""
    try:
        loaded = ModelCard.load(card, ignore_metadata_errors=True) if card.is_file() else None
    except (ValueError, yaml.YAMLError):  # broken metadata of somebody else
        return {}
    terms = loaded.data.to_dict() if loaded else {}
    return {key: value for key, value in terms.items() if key.startswith("license") and value}


def base_model(config: Mapping[str, Any], run: RunFolder) -> tuple[str, str | None, dict[str, Any]]:
    """Return name, hub id and license of the start model, without any local path.

    A relative path may look like a hub id: it is one by the export of step 0, or by the cache.
    """
    path = str(select(config, "actor_rollout_ref.model.path") or "not recorded")
    cached, start = CACHED.search(path), run.manifest(0)
    name, on_hub = "/".join(cached.groups()) if cached else path, bool(cached)
    folders = [place for above in (Path(), run.root, ROOT) if (place := above / path).is_dir()]
    if HUB_ID.fullmatch(name) and not (on_hub or folders):
        in_cache = isinstance(try_to_load_from_cache(name, "config.json"), str)
        on_hub = "files" not in read_json(start) if start.is_file() else in_cache
    hub_id = name if on_hub else None
    card = try_to_load_from_cache(name, CARD) if on_hub else str([*folders, Path(path)][0] / CARD)
    terms = _license(Path(card)) if isinstance(card, str) else {}
    return hub_id or Path(name).name, hub_id, terms


def _prompt(checkpoint: Evaluated, config: Mapping[str, Any]) -> str:
    prompts = Prompts.read(checkpoint.folder.prompts)
    template = prompts.bank[checkpoint.record["settings"]["template"]]
    system, user = template.system, template.user
    if system and prompts.form.instruction == "user":
        system, user = None, f"{system}\n{user}"
    turns = [("system", system), ("user", user)]
    shown = {
        "messages": [{"role": role, "content": turn} for role, turn in turns if turn],
        "apply_chat_template_kwargs": dict(prompts.form.chat),
        "prefill": template.prefill,
        "stop": list(template.stop),
    }
    trained = select(config, "recipe.augment.templates") or []
    content = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)
    return (
        f"Template `{template.name}`, style `{prompts.form.style}`. Render the messages with the "
        "tokenizer's chat template and append the prefill. With style `raw` or `bare`, "
        "or without a chat template, join the messages with empty lines."
        f"\n\n~~~~yaml\n{content}~~~~\n"
        + (f"\nTemplates in training: {', '.join(map(str, trained))}.\n" if trained else "")
    )


# ------------------------------------------------------------------------- loggers


def scalars(checkpoint: Evaluated) -> dict[str, float]:
    values = {}
    for name, entry in checkpoint.benchmarks.items():
        for key in ("accuracy", "standard_error"):
            values[f"{name}/{key}"] = entry[key]
        values |= {f"{name}/pass@{k}": value for k, value in entry["pass_at_k"].items()}
    for kind in ("per_question", "per_benchmark"):
        values[f"{kind}/accuracy"] = checkpoint.record["average"][kind]["accuracy"]
    return {f"eval/{key}": float(value) for key, value in values.items() if value is not None}


def to_tensorboard(run: Path, checkpoints: Sequence[Evaluated]) -> Path:
    """Write an event file into RUN/tensorboard/eval, replacing an earlier one of this command."""
    from torch.utils.tensorboard import SummaryWriter  # imports torch

    # Not in the folder itself: an open TensorBoard would no longer read the training's older file.
    folder = Path(os.environ.get("TENSORBOARD_DIR", RunFolder(run).tensorboard)) / "eval"
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for checkpoint in checkpoints:
            for tag, value in scalars(checkpoint).items():
                writer.add_scalar(tag, value, checkpoint.step)
    return folder


def to_wandb(run: Path, checkpoints: Sequence[Evaluated]) -> str:
    """Log into a wandb run of its own, whose group is named as the training; return its id.

    In the training's run, wandb would drop its later steps. wandb keeps the first values of a step,
    so the id has a digest of the scores: the same scores are not repeated, others get a new run.
    """
    import wandb

    folder = RunFolder(run)
    environment.keep_wandb_run(folder.wandb_run)
    config = read_config(run) if folder.config.exists() else {}
    rows = {checkpoint.step: scalars(checkpoint) for checkpoint in checkpoints}
    digest, training = hashlib.sha256(repr(rows).encode()), os.environ["WANDB_RUN_ID"]
    name = select(config, "trainer.experiment_name") or training
    try:
        with wandb.init(
            project=select(config, "trainer.project_name"),
            name=f"{name}-eval",
            group=name,
            id=f"{training}-eval-{digest.hexdigest()[:8]}",
            resume="allow",
            dir=str(run),
        ) as session:
            session.define_metric("eval/step")
            session.define_metric("eval/*", step_metric="eval/step")
            for step, row in rows.items():
                session.log({"eval/step": step, **row}, step=step)
            return str(session.id)
    except wandb.Error as error:  # no login, no network
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"--log wandb: {reason} Run `wandb login`, or set WANDB_MODE=offline."
        ) from error


LOGGERS = {"tensorboard": to_tensorboard, "wandb": to_wandb}


def check_asked(options: argparse.Namespace) -> None:
    if not (options.log or options.card):
        raise UsageError("nothing to do: add --log or --card")


def publish(options: argparse.Namespace) -> None:
    check_asked(options)
    run, steps = options.run, options.steps
    scored = scored_steps(run, options.settings)
    if missing := sorted(set(steps or ()) - set(scored)):
        raise UserError(f"{run} has no scores of the steps {missing}: {sorted(scored)}")
    checkpoints = [
        Evaluated(evaluated.folder, evaluated.record, run, step)
        for step, evaluated in scored.items()
        if steps is None or step in steps
    ]
    for checkpoint in checkpoints:
        if options.card and (checkpoint.step or steps):
            card = write_card(checkpoint)
            print(f"card: {card}")
            name = re.sub(r"\W{2,}|[^\w.-]", "-", checkpoint.model, flags=re.ASCII)[-96:]
            words = ("hf", "upload", name.strip("-."), str(card.parent), "--private")
            print(f"upload it: {shlex.join(words)}")
    for name in dict.fromkeys(options.log):
        print(f"{name}: {LOGGERS[name](run, checkpoints)}")


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.publish runs/grpo --steps 20 --card --log tensorboard"
    parser = make_parser("python -m eval.publish", __doc__, example=example)
    add = parser.add_argument
    add("run", type=existing, help="run folder")
    add_steps(parser)
    add_settings(parser)
    add("--log", nargs="+", choices=LOGGERS, default=[], help="add to the training's curves")
    add(
        "--card",
        action="store_true",
        help="write README.md in RUN/hf/step_N, and print how to upload it",
    )
    return parser.run(arguments, publish, "what was written stays")
