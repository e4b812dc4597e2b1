"""Model card of an exported checkpoint, and the upload of its folder to a hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from httpx import HTTPError
from huggingface_hub import (
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    constants,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HFValidationError

from eval import EvaluationError
from eval.checkpoints import from_manifest, verify
from eval.report import tables
from eval.score import Scored
from prompt_aug.base.files import read_json, write_text
from prompt_aug.prepare.sources import load_presets
from prompt_aug.prompts import Prompts
from prompt_aug.questions import read_parquet
from recipe.run.folder import MANIFEST, RunFolder, read_config, select

CARD = "README.md"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/")  # a model in the hub's cache


@dataclass(frozen=True)
class Evaluated(Scored):
    """A scored checkpoint of a run, and the name of its model."""

    run: Path
    step: int

    @property
    def model(self) -> str:
        return f"{self.run.resolve().name}-step_{self.step}"


def write(checkpoint: Evaluated) -> Path:
    """Write README.md into the exported folder. An export of the start model gets no card."""
    folder = RunFolder(checkpoint.run).exported(checkpoint.step)
    if not (folder / MANIFEST).is_file():
        raise EvaluationError(f"{folder} has no {MANIFEST}: run recipe.export first")
    if "files" not in read_json(folder / MANIFEST):
        raise EvaluationError(f"{folder} only points to the start model: it gets no card")
    verify(from_manifest(folder, checkpoint.step))
    write_text(folder / CARD, model_card(checkpoint))
    return folder / CARD


def push(checkpoint: Evaluated, repository: str, *, public: bool = False) -> str:
    """Upload the exported folder with its card, private unless `public`; return its address."""
    hub, folder = HfApi(), write(checkpoint).parent
    try:
        hub.create_repo(repository, private=not public, exist_ok=True)
        if bool(hub.repo_info(repository).private) == public:
            found = "private" if public else "public, and --public is not given"
            raise EvaluationError(f"--push {repository}: it exists and is {found}")
        done = hub.upload_folder(repo_id=repository, folder_path=folder)
    except (HTTPError, OSError, HFValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise EvaluationError(
            f"--push {repository}: {constants.ENDPOINT} rejects it: {reason}. Check the network, "
            "HF_ENDPOINT and the token (`hf auth login`), then run the same command again."
        ) from error
    return str(done.commit_url)


def model_card(checkpoint: Evaluated) -> str:
    """Return the card: metadata for a hub, then the facts of the run, the scores, the prompt."""
    run = RunFolder(checkpoint.run)
    config = read_config(checkpoint.run) if run.config.is_file() else {}
    name, hub_id, license_name = base_model(config)
    license_name = license_name or _license(run.exported(checkpoint.step) / CARD)  # added by hand
    trained = read_json(run.environment) if run.environment.is_file() else {}
    train = run.data("train")
    sources = {q.source for q in read_parquet(train)} if train.is_file() else set()
    hubs = sorted({p.hub for name, p in load_presets().items() if name in sources and p.hub})
    results, scores = [], [["benchmark", "questions x samples", "% correct"]]
    for benchmark, entry in checkpoint.benchmarks.items():
        asked, value = entry["settings"], round(100 * entry["accuracy"], 2)
        results.append(EvalResult("text-generation", benchmark, benchmark, "pass@1", value))
        size = f"{asked['questions']} of {asked['of']} x {asked['samples']}"
        own = ("template", "shots", "extraction", "tolerance")
        named = [f"{k} {asked[k]}" for k in own if asked.get(k) not in (None, "default")]
        scores.append([benchmark, ", ".join([size, *named]), tables.share(entry)])
    data = ModelCardData(
        base_model=hub_id,
        datasets=hubs or None,
        license=license_name,
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
        "license": license_name or "unknown. Add `license:` before publishing.",
        "commit of the training": trained.get("commit"),
        "commit of the evaluation": checkpoint.record["environment"].get("commit"),
    }
    settings = checkpoint.record["settings"].items()
    told = ", ".join(f"{key} {value}" for key, value in settings if "sha256" not in key)
    return str(
        ModelCard(
            f"---\n{data.to_yaml()}\n---\n\n# {checkpoint.model}\n\n"
            f"{tables.markdown_table([[key, str(value)] for key, value in facts.items()])}\n\n"
            f"## Scores\n\n{tables.markdown_table(scores)}\n\n"
            "±: one standard error, clustered by question. Brackets: 95 % interval, at 0 and "
            f"100 %. Settings: {told}. Grader {checkpoint.record['grader']}."
            f"{_picked(checkpoint)}\n\n"
            f"## Prompt\n\n{_prompt(checkpoint, config)}"
        )
    )


def _picked(checkpoint: Evaluated) -> str:
    """Return a sentence about the score that picked this step; "" for any other step."""
    chosen = checkpoint.selection
    if chosen is None or chosen.step != checkpoint.step:
        return ""
    high = ", which is too high" if chosen.kind == "test" else ""
    return f" The step was picked by its score on {chosen.benchmark}{high}."


def _license(card: Path) -> str | None:
    loaded = ModelCard.load(card, ignore_metadata_errors=True) if card.is_file() else None
    return loaded.data.license if loaded else None


def base_model(config: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """Return name, hub id and license of the start model, without any local path."""
    path = str(select(config, "actor_rollout_ref.model.path") or "not recorded")
    cached = CACHED.search(path)
    name = "/".join(cached.groups()) if cached else path
    hub_id = name if HUB_ID.fullmatch(name) and (cached or not Path(path).is_dir()) else None
    card = try_to_load_from_cache(hub_id, CARD) if hub_id else str(Path(path) / CARD)
    license_name = _license(Path(card)) if isinstance(card, str) else None
    return hub_id or Path(name).name, hub_id, license_name


def _prompt(checkpoint: Evaluated, config: Mapping[str, Any]) -> str:
    prompts = Prompts.read(checkpoint.folder.prompts)
    template = prompts.bank[checkpoint.record["settings"]["template"]]
    said, user = template.system, template.user
    if said and prompts.form.instruction == "user":
        said, user = None, f"{said}\n{user}"
    system = [{"role": "system", "content": said}] if said else []
    shown = {
        "messages": [*system, {"role": "user", "content": user}],
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
        + (f"\nTemplates in training: {', '.join(trained)}.\n" if trained else "")
    )
