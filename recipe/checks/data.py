"""What is checked before Ray starts: the recipe's settings, data, prompts, disk and ports.

Each refusal says what is wrong, why it matters, and what to do. Nothing is written but the
checked questions of the run, and nothing is started.
"""

import dataclasses
import shutil
import socket
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from prompt_aug.questions import Question, read_parquet, write_parquet
from prompt_aug.templates import Bank, Overlong, Template, load_bank, overlong
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder


def check_recipe(config: DictConfig) -> Bank:
    """Refuse unknown templates and impossible settings of the section `recipe`; return the bank."""
    augment, reward = config.recipe.augment, config.recipe.reward
    bank = load_bank(augment.bank, augment.format)  # raises for a missing or malformed bank
    names = list(augment.templates or bank.names)
    for name in (*names, augment.validation_template):
        bank[name]  # raises KeyError with the known names
    if augment.mode not in ("per_question", "per_rollout", "fixed"):
        raise ConfigError(
            f"recipe.augment.mode={augment.mode}: known are per_question, per_rollout, fixed"
        )
    for key, known in (("format", ("strict", "published")), ("style", ("auto", "chat", "raw"))):
        if augment[key] not in known:
            raise ConfigError(f"recipe.augment.{key}={augment[key]}: known are {', '.join(known)}")
    if augment.mode == "fixed" and len(names) != 1:
        raise ConfigError("recipe.augment.mode=fixed wants one name in recipe.augment.templates")
    if augment.weights and len(augment.weights) != len(names):
        raise ConfigError(
            f"recipe.augment.weights has {len(augment.weights)} values for {len(names)} templates"
        )
    if reward.overlong.enable and not 0 < reward.overlong.buffer <= config.data.max_response_length:
        raise ConfigError(
            f"recipe.reward.overlong.buffer={reward.overlong.buffer} must lie between 1 and "
            f"data.max_response_length={config.data.max_response_length}"
        )
    if config.recipe.one_question == "?":
        raise ConfigError(
            "recipe.one_question: the method is about one question; give its uid or its row number"
        )
    return bank


def check_room(run_dir: Path, gib: float) -> None:
    """Refuse an unwritable folder or a nearly full disk."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / ".probe"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"cannot write in the run folder {run_dir}: {error.strerror}; free some room or choose "
            "another folder with recipe.run_dir=..."
        ) from error
    free = shutil.disk_usage(run_dir).free / 2**30
    if free < gib:
        raise ConfigError(
            f"{free:.2f} GiB free for the run folder {run_dir}, {gib} wanted "
            "(recipe.min_free_gib): free some room or choose another folder with recipe.run_dir=..."
        )


def check_port() -> None:
    """Refuse a machine where no TCP port can be had: Ray, gloo and vLLM each want some."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        raise ConfigError(
            f"no free TCP port on 127.0.0.1 ({error.strerror}); Ray, gloo and vLLM need some: "
            "stop what holds them, or widen net.ipv4.ip_local_port_range"
        ) from error


def read_questions(files: Any, key: str) -> list[Question]:
    """The questions of a file or list of files named by the setting `key`."""
    paths = _paths(files)
    if not paths:
        raise ConfigError(f"{key} is not set: name a parquet file of questions")
    return [question for path in paths for question in read_parquet(path)]


def prepare_data(config: DictConfig, bank: Bank, tokenizer: Any) -> dict[str, Any]:
    """Check the questions, write them into the run folder, and point verl at them.

    A training question stays if it fits ``data.max_prompt_length`` under every template that may
    be drawn: draws change with the epoch. A validation question is measured under its own fixed
    template. Returns the record of data/manifest.json, which names every question dropped.
    """
    augment, report = config.recipe.augment, {}
    drawn = {
        ("train", "train_files"): list(augment.templates or bank.names),
        ("test", "val_files"): [augment.validation_template],
    }
    for (split, key), names in drawn.items():
        questions = read_questions(config.data[key], f"data.{key}")
        templates = [bank[n] for n in names]
        kept, dropped = fitting(questions, templates, tokenizer, config, key)
        counts: dict[str, Any] = {"questions": len(kept)}
        if split == "train":
            kept, neighbours = fit_neighbours(kept, templates, tokenizer, config)
            kept = only_question(kept, config)
            check_enough(len(kept), config)
            counts.update(neighbours)
        path = RunFolder(Path(config.recipe.run_dir)).data(split)
        write_parquet([dataclasses.replace(q, split=split) for q in kept], path)
        report[split] = counts | {
            "max_prompt_length": int(config.data.max_prompt_length),
            "dropped": [dataclasses.asdict(d) for d in dropped],
        }
        with open_dict(config):
            config.data[key] = [str(path)]
    return report


def check_enough(questions: int, config: DictConfig) -> None:
    """Refuse fewer training questions than a step looks at."""
    batch, recipe = config.data.train_batch_size, config.recipe
    most = config.data.get("train_max_samples", -1)
    if 0 <= most < questions:
        questions = most  # data.train_max_samples
    if questions < batch:
        raise ConfigError(
            f"{questions} training questions are fewer than data.train_batch_size={batch}"
        )
    refills = recipe.dynamic_sampling.max_gen_batches
    seen = batch * recipe.curriculum.candidates
    seen *= refills if config.algorithm.filter_groups.enable else 1
    if recipe.curriculum.enable and questions < seen:
        raise ConfigError(
            f"{questions} training questions are fewer than the {seen} that the curriculum looks "
            "at in a step (data.train_batch_size x recipe.curriculum.candidates, with dynamic "
            "sampling x max_gen_batches): it would take the same ones several times"
        )


def fitting(
    questions: list[Question], templates: list[Template], tokenizer: Any, config: Any, key: str
) -> tuple[list[Question], list[Overlong]]:
    """(questions that fit the prompt limit under all `templates`, those that do not)."""
    limit, style = int(config.data.max_prompt_length), config.recipe.augment.style
    dropped = overlong(questions, templates, tokenizer, limit=limit, style=style)
    gone = {d.uid for d in dropped}
    kept = [q for q in questions if q.uid not in gone]
    if not kept:
        raise ConfigError(
            f"data.{key}: all {len(questions)} questions are longer than "
            f"data.max_prompt_length={limit} tokens under the templates drawn: raise it"
        )
    if dropped:
        worst = max(dropped, key=lambda d: d.length)
        print(
            f"data.{key}: dropped {len(gone)} of {len(questions)} questions longer than "
            f"{limit} tokens (question {worst.uid}: {worst.length} under {worst.template})"
        )
    return kept, dropped


def fit_neighbours(
    questions: list[Question], templates: list[Template], tokenizer: Any, config: Any
) -> tuple[list[Question], dict[str, int]]:
    """(questions with the neighbours in use, those that fit the prompt limit; their counts)."""
    count = int(config.recipe.neighbours.count)
    if not count:
        return questions, {}
    limit, style = int(config.data.max_prompt_length), config.recipe.augment.style
    listed = [(q, text) for q in questions for text in q.neighbours[:count]]
    texts = [dataclasses.replace(q, text=text, uid=str(i)) for i, (q, text) in enumerate(listed)]
    long = {int(d.uid) for d in overlong(texts, templates, tokenizer, limit=limit, style=style)}
    fitting: dict[str, list[str]] = {q.uid: [] for q in questions}
    for i, (question, text) in enumerate(listed):
        if i not in long:
            fitting[question.uid].append(text)
    used = sum(map(len, fitting.values()))
    if not used:
        raise ConfigError(
            f"recipe.neighbours.count={count}, but no question of data.train_files has a neighbour "
            f"of at most data.max_prompt_length={limit} tokens: add rephrasings to the data, or "
            "set recipe.neighbours.count=0"
        )
    kept = [dataclasses.replace(q, neighbours=tuple(fitting[q.uid])) for q in questions]
    missing = sum(len(q.neighbours) < count for q in kept)
    if missing:
        print(f"{missing} of {len(kept)} questions have fewer than {count} neighbours in use")
    counts = {"neighbours": used, "neighbours_too_long": len(long), "with_fewer": missing}
    return kept, counts


def only_question(questions: list[Question], config: Any) -> list[Question]:
    """For 1-shot RLVR: the one question, as often as a batch is long; else all questions.

    ``recipe.one_question`` is its uid, or its row number from 0 among those that fit.
    """
    wanted = config.recipe.one_question
    if wanted is None:
        return questions
    for i, question in enumerate(questions):
        if question.uid == wanted or (isinstance(wanted, int) and i == wanted):
            return [question] * int(config.data.train_batch_size)
    raise ConfigError(
        f"recipe.one_question={wanted}: no such question; give the uid or the row number of one of "
        f"the {len(questions)} in data.train_files"
    )


def check_files(config: DictConfig, built: Path | None) -> None:
    """Refuse data files that are not there, before the toy world in the folder `built` is made."""
    for key in ("train_files", "val_files"):
        for path in _paths(config.data[key]):
            mine = built is not None and Path(path).is_relative_to(built)
            if not mine and not Path(path).exists():
                raise ConfigError(
                    f"data.{key}: {path}: no such file; `python -m prompt_aug.prepare` makes one"
                )


def _paths(files: Any) -> list[str]:
    return [files] if isinstance(files, str) else list(files or [])
