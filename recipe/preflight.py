"""What is checked before Ray starts: settings, data, prompts, disk and ports.

Each refusal says what is wrong, why it matters, and what to do. Nothing is written but the
checked questions of the run, and nothing is started.
"""

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.questions import Question, read_parquet, write_parquet
from prompt_aug.templates import Bank, load_bank, prompt_length


class Refused(Exception):
    """A run that cannot start, or would not do what it says; the message is for the user."""


def check_batches(config: DictConfig) -> None:
    """Refuse batch sizes that do not divide; verl finds out minutes later, at the first step."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    ranks = devices // actor.ulysses_sequence_parallel_size
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    if batch % mini:
        raise Refused(
            f"data.train_batch_size={batch} is not a multiple of actor.ppo_mini_batch_size={mini} "
            "(both in questions): choose a mini-batch that divides it"
        )
    rows = mini * rollout.n
    if rows % ranks:
        raise Refused(
            f"a mini-batch of {mini} questions x {rollout.n} rollouts = {rows} rows does not "
            f"divide over {ranks} data-parallel ranks"
        )
    if actor.use_dynamic_bsz:
        return
    for name, rows_per_rank, micro in (
        ("actor.ppo_micro_batch_size_per_gpu", rows // ranks, actor.ppo_micro_batch_size_per_gpu),
        (
            "rollout.log_prob_micro_batch_size_per_gpu",
            batch * rollout.n // ranks,
            rollout.log_prob_micro_batch_size_per_gpu,
        ),
    ):
        if not micro or rows_per_rank % micro:
            raise Refused(
                f"actor_rollout_ref.{name}={micro} does not divide the {rows_per_rank} rows of a "
                "rank: choose a divisor, or set actor.use_dynamic_bsz=true"
            )


def check_recipe(config: DictConfig) -> Bank:
    """Refuse unknown templates and impossible settings of the section `recipe`; return the bank."""
    augment, reward = config.recipe.augment, config.recipe.reward
    bank = load_bank(augment.bank)  # raises for a missing or malformed bank
    names = list(augment.templates or bank.names)
    for name in (*names, augment.validation_template):
        bank[name]  # raises KeyError with the known names
    if augment.mode not in ("per_question", "per_rollout", "fixed"):
        raise Refused(
            f"recipe.augment.mode={augment.mode}: known are per_question, per_rollout, fixed"
        )
    if augment.mode == "fixed" and len(names) != 1:
        raise Refused("recipe.augment.mode=fixed wants exactly one name in recipe.augment.templates")
    if augment.weights and len(augment.weights) != len(names):
        raise Refused(
            f"recipe.augment.weights has {len(augment.weights)} values for {len(names)} templates"
        )
    if reward.overlong.enable and not 0 < reward.overlong.buffer <= config.data.max_response_length:
        raise Refused(
            f"recipe.reward.overlong.buffer={reward.overlong.buffer} must lie between 1 and "
            f"data.max_response_length={config.data.max_response_length}"
        )
    return bank


def check_verl(config: DictConfig) -> None:
    """Refuse settings that verl 0.9.1 accepts and then ignores."""
    defaults = {
        "custom_reward_function.path": None,
        "reward_model.reward_manager": None,
        "algorithm.filter_groups.max_num_gen_batches": 0,
    }
    for key, default in defaults.items():
        value = OmegaConf.select(config, key)
        if value not in (default, None, "naive"):
            raise Refused(
                f"{key}={value} has no effect in verl 0.9.1's V1 trainer; see the keys under "
                "recipe.reward and reward.* instead"
            )
    if config.trainer.v1.trainer_mode != "recipe_sync":
        raise Refused("trainer.v1.trainer_mode must be recipe_sync: what this project attaches to")


def check_room(run_dir: Path, gib: float) -> None:
    """Refuse an unwritable folder or a nearly full disk."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / ".probe"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise Refused(
            f"cannot write in the run folder {run_dir}: {error.strerror}; free some room or choose "
            "another folder with recipe.run_dir=..."
        ) from error
    free = shutil.disk_usage(run_dir).free / 2**30
    if free < gib:
        raise Refused(
            f"{free:.2f} GiB free for the run folder {run_dir}, {gib} wanted "
            "(recipe.min_free_gib): free some room or choose another folder with recipe.run_dir=..."
        )


def check_port() -> None:
    """Refuse a machine where no TCP port can be had: Ray, gloo and vLLM each want some."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        raise Refused(
            f"no free TCP port on 127.0.0.1 ({error.strerror}); Ray, gloo and vLLM need some: "
            "stop what holds them, or widen net.ipv4.ip_local_port_range"
        ) from error


def read_questions(files: Any, key: str) -> list[Question]:
    """The questions of a file or list of files named by the setting `key`."""
    paths = [files] if isinstance(files, str) else list(files or [])
    if not paths:
        raise Refused(f"{key} is not set: name a parquet file of questions")
    return [question for path in paths for question in read_parquet(path)]


def drop_overlong(
    questions: Sequence[Question], bank: Bank, names: Sequence[str], tokenizer: Any, limit: int
) -> tuple[list[Question], list[str]]:
    """(kept, dropped uids): a question stays if it fits `limit` tokens under every template drawn.

    Templates are drawn anew each epoch, so each of `names` will meet each question in time.
    The templates are tried longest first, measured on the longest question.
    """
    if not questions:
        return [], []
    longest = max(questions, key=lambda q: len(q.text))
    overhead = sorted(names, key=lambda n: -prompt_length(bank[n], longest.text, tokenizer))
    # The template with the longest frame decides for all questions; text around the slot is fixed.
    widest = bank[overhead[0]]
    kept, dropped = [], []
    for question in questions:
        fits = prompt_length(widest, question.text, tokenizer) <= limit
        (kept if fits else dropped).append(question if fits else question.uid)
    return kept, dropped


def prepare_data(config: DictConfig, bank: Bank, tokenizer: Any) -> dict[str, Any]:
    """Check the questions, write them into the run folder, and point verl at them.

    Returns the counts for data/manifest.json; the uids of dropped questions are in it.
    """
    folder = Path(config.recipe.run_dir) / "data"
    names = list(config.recipe.augment.templates or bank.names)
    limit, report = int(config.data.max_prompt_length), {}
    for split, key, drawn in (
        ("train", "train_files", names),
        ("test", "val_files", [config.recipe.augment.validation_template]),
    ):
        questions = read_questions(config.data[key], f"data.{key}")
        kept, dropped = drop_overlong(questions, bank, drawn, tokenizer, limit)
        if not kept:
            raise Refused(
                f"data.{key}: all {len(questions)} questions are longer than "
                f"data.max_prompt_length={limit} tokens under the templates drawn: raise it"
            )
        path = folder / f"{split}.parquet"
        write_parquet([_with_split(q, split) for q in kept], path)
        report[split] = {"questions": len(kept), "dropped_overlong": dropped, "limit": limit}
        with open_dict(config):
            config.data[key] = [str(path)]
    if len(kept_train := report["train"]["dropped_overlong"]):
        print(f"dropped {len(kept_train)} training questions longer than {limit} tokens")
    if report["train"]["questions"] < config.data.train_batch_size:
        raise Refused(
            f"{report['train']['questions']} training questions are fewer than "
            f"data.train_batch_size={config.data.train_batch_size}"
        )
    return report


def _with_split(question: Question, split: str) -> Question:
    import dataclasses

    return dataclasses.replace(question, split=split)
