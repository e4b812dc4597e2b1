"""Data sources: weights of their rows in training, samples in validation, and verifiers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from prompt_aug.extraction import extraction
from prompt_aug.grading.pool import GraderError
from prompt_aug.questions import Question, count_repeats, to_row
from prompt_aug.typed import shown
from prompt_aug.verifiers import Verified, verifier_row, verifiers_of
from recipe.errors import ConfigError

WEIGHTS, VERIFIERS = "recipe.source_weights", "recipe.reward.verifiers"
MOST_REPEATS = 1000  # of a question in an epoch; a larger number is a typing error


def weighted(questions: Sequence[Question], weights: Mapping[str, float] | None) -> list[Question]:
    """Return the rows of an epoch, in which each source has its share of `weights`.

    Every question occurs at least once. Counts within a source differ by at most one. The questions
    of the source with the most questions per weight occur once. verl shuffles the rows.
    """
    if not weights:
        return list(questions)
    sources: dict[str, list[Question]] = {}
    for question in questions:
        sources.setdefault(question.source, []).append(question)
    if set(weights) != set(sources):
        raise ConfigError(
            f"{WEIGHTS}={shown(sorted(weights))}: the sources of data.train_files are "
            f"{', '.join(sorted(sources))}. Give each a weight."
        )
    total = max(len(rows) / weights[name] for name, rows in sources.items())
    counts = {name: round(total * weights[name]) for name in sources}
    for name, rows in sources.items():
        if counts[name] > MOST_REPEATS * len(rows):
            raise ConfigError(
                f"{WEIGHTS}.{name}={weights[name]:g}: a question would occur "
                f"{counts[name] // len(rows)} times in an epoch. Set a smaller weight."
            )
    return [rows[i % len(rows)] for name, rows in sources.items() for i in range(counts[name])]


def samples_of(rows: list[Question], n: int) -> tuple[list[Question], list[int] | None]:
    """Return the validation questions, and if rows repeat them, the samples of each.

    verl counts each row as a question, so the standard error would be too small.
    """
    counted = count_repeats(rows)
    if len(counted) == len(rows):
        return rows, None
    print(
        f"data.val_files: {len(rows)} rows hold {len(counted)} questions. Repeated rows count "
        "as samples of one question."
    )
    return [question for question, _ in counted], [n * count for _, count in counted]


def counts_of(questions: Iterable[Question]) -> dict[str, int]:
    """Return the number of rows of each source."""
    return dict(sorted(Counter(question.source for question in questions).items()))


def check_verifiers(config: DictConfig, questions: Sequence[Question]) -> dict[str, Any]:
    """Call each verifier on the first row of its source; return their entries for the manifest.

    The responses are the gold answer and the empty text. Raises ConfigError if a source has no row,
    or if a call fails, as every call of the training would.
    """
    reward = config.recipe.reward
    verifiers = verifiers_of(reward.verifiers, reward.verifier_limits)
    first: dict[str, Question] = {}
    for question in questions:
        first.setdefault(question.source, question)
    found = []
    try:
        for source, path in verifiers.functions.items():
            if source not in first:
                found.append(
                    f"{VERIFIERS}.{source}={path}: no row of data.train_files or data.val_files "
                    f"has the data_source {source}. Use one of {', '.join(first)}."
                )
                continue
            row = verifier_row(to_row(first[source]))
            for response in (first[source].answers[0], ""):
                graded = verifiers.grade(response, row, extraction(reward.extraction))
                if graded.status not in ("correct", "wrong"):
                    found.append(_failure(source, path, response, graded))
                    break
        record = verifiers.record(set(first))
    except GraderError as error:
        raise ConfigError(str(error)) from error
    if found:
        raise ConfigError("\n".join(found))
    return record


def _failure(source: str, path: str, response: str, graded: Verified) -> str:
    limited = graded.status == "timeout" or "memory" in graded.detail
    more = ", or raise recipe.reward.verifier_limits" if limited else ""
    return (
        f"{VERIFIERS}.{source}={path}: on the first row of {source} with the response "
        f"{response[:60]!r} it ends with {graded.status} ({graded.detail}). Correct the "
        f"function{more}."
    )
