"""Text files that are read strictly: what is wrong is named with its line."""

import csv
import json
from pathlib import Path

from prompt_aug.base.errors import UserError


class SourceError(UserError, ValueError):
    """A source that cannot be read; the message says what to do."""


def require_json_lines(path: Path) -> None:
    """Raises SourceError with the number of the first line that is no JSON object."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                raise SourceError(f"{path}, line {number}: broken JSON ({error})") from None
            if not isinstance(found, dict):
                raise SourceError(f"{path}, line {number}: no JSON object. Write one a line.")


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows as texts; SourceError for a row of another width."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise SourceError(f"{path}: row {number} has not as many columns as the first line")
    return rows


def require_utf8(path: Path) -> None:
    """Raises SourceError for a file that is not UTF-8."""
    with path.open(encoding="utf-8") as file:
        try:
            for _ in file:
                pass
        except UnicodeDecodeError as error:
            raise SourceError(f"{path} is not UTF-8 text ({error}): convert it") from None
