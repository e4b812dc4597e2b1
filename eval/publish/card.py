"""The model card of an exported checkpoint, with its scores, and the folder's way to a hub."""

import re
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, constants
from huggingface_hub.errors import HFValidationError

from eval.errors import EvaluationError
from eval.publish.evaluated import Evaluated
from eval.report.data import read_config
from eval.report.tables import markdown_table, method, share
from prompt_aug.files import read_json, write_text
from recipe.run.folder import MANIFEST, RunFolder, select

CARD = "README.md"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def export_of(checkpoint: Evaluated) -> Path:
    """The exported folder that was evaluated; refused where it holds no model of its own."""
    folder = RunFolder(checkpoint.run).exported(checkpoint.step)
    if not (folder / MANIFEST).is_file():
        raise EvaluationError(f"{folder} has no {MANIFEST}: run recipe.export first")
    if "files" not in read_json(folder / MANIFEST):
        raise EvaluationError(f"{folder} only points to the start model: it gets no card")
    return folder


def text(checkpoint: Evaluated) -> str:
    """The card: metadata that a hub reads, then the same scores for people."""
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=name,
            dataset_name=name,
            metric_type="pass@1" if entry["settings"]["samples"] > 1 else "accuracy",
            metric_value=round(100 * entry["accuracy"], 2),
        )
        for name, entry in checkpoint.benchmarks.items()
    ]
    origin = _origin(checkpoint)
    base = origin["Base model"]
    data = ModelCardData(
        base_model=base if HUB_ID.fullmatch(base) else None,
        library_name="transformers",
        tags=["reinforcement-learning", "math", "verl"],
        model_name=checkpoint.model,
        eval_results=results,
    )
    rows = [["benchmark", "questions x samples", "per cent right"]]
    for name, entry in checkpoint.benchmarks.items():
        asked = entry["settings"]
        size = f"{asked['questions']} of {asked['of']} x {asked['samples']}"
        rows.append([name, size, share(entry)])
    settings = ", ".join(f"{k} {v}" for k, v in checkpoint.settings.items() if "sha256" not in k)
    about = "\n".join(f"- {name}: {value}" for name, value in origin.items())
    body = (
        f"# {checkpoint.model}\n\n{about}\n\n## Prompt\n\n{_prompt(checkpoint)}\n\n## Scores\n\n"
        f"{markdown_table(rows)}\n\n± one standard error, clustered by "
        f"question; at 0 and 100 % the 95 % interval. Settings: {settings}. Grader "
        f"{checkpoint.record['grader']}, commit {checkpoint.record['environment'].get('commit')}.\n"
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _origin(checkpoint: Evaluated) -> dict[str, str]:
    """Base model, method, data and license, as far as the run folder records them.

    Files by their names: a card is published, and folders are of this machine.
    """
    folder = RunFolder(checkpoint.run)
    config = read_config(folder, [])
    model = str(select(config, "actor_rollout_ref.model.path") or "unknown")
    if select(config, "recipe.toy.enable"):
        model = f"start model of the toy world {select(config, 'recipe.toy.world')}"
    elif Path(model).is_absolute():
        model = Path(model).name
    files = select(config, "data.train_files") or []
    data = ", ".join(Path(file).name for file in ([files] if isinstance(files, str) else files))
    if folder.data_manifest.exists():
        data += f" ({read_json(folder.data_manifest)['train']['questions']} questions)"
    return {
        "Base model": model,
        "Method": method(config) or "unknown",
        "Data": data or "unknown",
        "License": "that of the base model, as far as the license of the data permits. "
        "Check both and set `license` above before you publish",
    }


def _prompt(checkpoint: Evaluated) -> str:
    """The first question as the model was asked it, in a fence that the text cannot close."""
    for name in checkpoint.benchmarks:
        for question, _ in checkpoint.samples(name):
            prompt = str(question["prompt"])
            longest = max([2, *(len(run) for run in re.findall("`+", prompt))])
            fence = "`" * (longest + 1)
            return (
                f"Template {question['template']}; the first question of {name}:\n\n"
                f"{fence}text\n{prompt}\n{fence}"
            )
    return "No question was asked."


def write(checkpoint: Evaluated) -> Path:
    """Write README.md into the exported folder."""
    path = export_of(checkpoint) / CARD
    write_text(path, text(checkpoint))
    return path


def push(checkpoint: Evaluated, repository: str, *, public: bool = False) -> str:
    """Upload the exported folder with its card; private unless `public`. The address of it.

    To the hub of HF_ENDPOINT, with the token that huggingface_hub finds.
    """
    write(checkpoint)
    hub = HfApi()
    try:
        hub.create_repo(repository, private=not public, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repository,
            folder_path=export_of(checkpoint),
            commit_message=f"{checkpoint.model}, with its scores",
        )
    except (HTTPError, OSError, HFValidationError) as error:
        raise EvaluationError(
            f"--push {repository}: {constants.ENDPOINT} does not take it: "
            f"{str(error).partition(chr(10))[0]}. Check the network, HF_ENDPOINT and the token "
            "(`hf auth login`), then run the same command again."
        ) from error
    return str(done.commit_url)
