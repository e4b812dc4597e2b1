"""Evaluates one checkpoint on some benchmarks: generate what is missing, grade, score.

Order on disk: part files while generating, ``<benchmark>.jsonl`` when graded, scores.json last,
part files removed. Killed anywhere and started again, it ends the same.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.engine import Engine, VllmEngine
from eval.errors import EvaluationError
from eval.samples import PartFile, PendingSamples
from eval.score import grade_lines, write_graded, write_scores
from eval.settings import Settings, benchmark_identity, differences, shared_identity
from prompt_aug.files import lock, read_json
from prompt_aug.prompts import Prompts

OpenEngine = Callable[[str, Settings, int], AbstractContextManager[Engine]]
CHUNK = 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What one checkpoint needs: benchmarks to make, and the entries of scores.json to keep.

    `replaced` says what is thrown away for it, and why.
    """

    shared: dict[str, Any]
    todo: tuple[LoadedBenchmark, ...]
    kept: Mapping[str, Any]
    replaced: tuple[str, ...] = ()


def plan(
    folder: Path,
    shared: dict[str, Any],
    benchmarks: Sequence[LoadedBenchmark],
    *,
    force: bool,
) -> Plan:
    """Compare what is asked with scores.json; scores of other settings are refused or redone."""
    path = folder / "scores.json"
    if not path.exists():
        return Plan(shared=shared, todo=tuple(benchmarks), kept={})
    old = read_json(path)
    changed = differences(old["settings"], shared)
    kept: dict[str, Any] = {} if changed else dict(old["benchmarks"])
    todo, replaced = [], list(changed)
    for benchmark in benchmarks:
        entry = kept.get(benchmark.name)
        if entry is not None:
            different = differences(entry["settings"], benchmark_identity(benchmark))
            changed += [f"{benchmark.name} {line}" for line in different]
            if not different and not force:
                continue
            del kept[benchmark.name]
            replaced.append(f"{benchmark.name} {'; '.join(different) or 'again'}")
        todo.append(benchmark)
    if changed and not force:
        raise EvaluationError(_refusal(path, changed))
    return Plan(shared=shared, todo=tuple(todo), kept=kept, replaced=tuple(replaced))


def _refusal(path: Path, changed: Sequence[str]) -> str:
    lines = "\n  ".join(changed)
    return (
        f"{path} holds scores made with other settings:\n  {lines}\n"
        "Use the same settings, or --force to replace these scores, or --out DIR to keep both."
    )


def evaluate(
    checkpoint: Checkpoint,
    folder: Path,
    settings: Settings,
    prompts: Prompts,
    benchmarks: Sequence[LoadedBenchmark],
    *,
    open_engine: OpenEngine = VllmEngine,
    force: bool = False,
    chunk: int = CHUNK,
) -> dict[str, Any]:
    """Evaluate one checkpoint into `folder` and return its scores."""
    template = prompts.bank[settings.template]
    shared = shared_identity(settings, template, checkpoint.identity)
    with lock(folder):
        agreed = plan(folder, shared, benchmarks, force=force)
        if not agreed.todo:
            _remove_parts(folder, benchmarks)
            return dict(read_json(folder / "scores.json"))
        if agreed.replaced:
            _forget(folder, agreed)
        started = time.monotonic()
        work = _prepare(folder, agreed, checkpoint, prompts)
        _generate(work, checkpoint, settings, open_engine, chunk)
        for item in work:
            name = item.benchmark.name
            write_graded(folder, name, grade_lines(list(item.lines()), template, name))
        record = {
            "step": checkpoint.step,
            "model": checkpoint.model,
            "settings": shared,
            "how": _how(settings, time.monotonic() - started),
            "benchmarks": {**agreed.kept, **{b.name: _entry(b) for b in agreed.todo}},
        }
        scores = write_scores(folder, record)
        _remove_parts(folder, benchmarks)
        return scores


def _entry(benchmark: LoadedBenchmark) -> dict[str, Any]:
    return {"settings": benchmark_identity(benchmark), "path": benchmark.path}


def _remove_parts(folder: Path, benchmarks: Sequence[LoadedBenchmark]) -> None:
    for benchmark in benchmarks:
        _part_path(folder, benchmark).unlink(missing_ok=True)


def _part_path(folder: Path, benchmark: LoadedBenchmark) -> Path:
    return folder / f"{benchmark.name}.jsonl.part"


def _forget(folder: Path, agreed: Plan) -> None:
    """Take replaced scores out first: a redo that is killed then continues, with or without force.

    What is kept stays scored meanwhile.
    """
    print(f"note: {folder} is redone: {'; '.join(agreed.replaced)}")
    path = folder / "scores.json"
    if agreed.kept:
        write_scores(folder, {**read_json(path), "benchmarks": agreed.kept})
    else:
        path.unlink()
    _remove_parts(folder, agreed.todo)


def _how(settings: Settings, seconds: float) -> dict[str, Any]:
    """What is recorded and not compared; the seconds are those of the last, finishing process."""
    return {
        "bank": settings.bank,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel": settings.tensor_parallel,
        "wall_seconds": seconds,
    }


def _prepare(
    folder: Path, agreed: Plan, checkpoint: Checkpoint, prompts: Prompts
) -> list[PendingSamples]:
    from transformers import AutoTokenizer  # deferred: refusals come before its slow import

    tokenizer = AutoTokenizer.from_pretrained(checkpoint.model)
    work = []
    for benchmark in agreed.todo:
        identity = {"shared": agreed.shared, "benchmark": benchmark_identity(benchmark)}
        part = PartFile(_part_path(folder, benchmark), identity)
        work.append(PendingSamples(benchmark, prompts, tokenizer, part))
    return work


def _generate(
    work: Sequence[PendingSamples],
    checkpoint: Checkpoint,
    settings: Settings,
    open_engine: OpenEngine,
    chunk: int,
) -> None:
    context = _context(work, checkpoint, settings)
    pending = [item.pending(context) for item in work]
    _warn_too_long(work, context)
    if not any(pending):
        return
    with open_engine(checkpoint.model, settings, context) as engine:
        for item, requests in zip(work, pending, strict=True):
            item.complete(engine, requests, chunk)


def _context(work: Sequence[PendingSamples], checkpoint: Checkpoint, settings: Settings) -> int:
    """The engine's context in tokens: as long as the prompts need, within what the model has."""
    from transformers import AutoConfig

    needed = max(item.longest_prompt for item in work) + settings.max_tokens
    config = AutoConfig.from_pretrained(checkpoint.model)
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if settings.max_model_len is None:
        return min(needed, limit or needed)
    if limit is not None and settings.max_model_len > limit:
        raise EvaluationError(
            f"max_model_len {settings.max_model_len} is more than the {limit} positions of "
            f"{checkpoint.model}"
        )
    return settings.max_model_len


def _warn_too_long(work: Sequence[PendingSamples], context: int) -> None:
    for item in work:
        lengths = [len(ids) for ids in item.token_ids]
        unasked = sum(length >= context for length in lengths)
        if unasked == len(lengths):
            raise EvaluationError(
                f"no question of {item.benchmark.name} fits into the context of {context} tokens "
                f"(the shortest prompt has {min(lengths)}); raise max_model_len or take a model "
                "with a longer context"
            )
        if unasked:
            print(
                f"warning: {unasked} of {len(lengths)} questions of {item.benchmark.name} do not "
                f"fit into the context of {context} tokens and count as wrong (prompt_too_long)"
            )
