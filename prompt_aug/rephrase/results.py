"""What the pipeline leaves: questions with rephrasings, provenance, manifest, dataset card.

OUT.parquet                  what `recipe.train` reads: extra_info.rephrasings, by rank
OUT.parquet.candidates.jsonl every candidate: verdict, reasons, source, pass rates, reviewer, rank
OUT.parquet.README.md        a dataset card with the hub's metadata block
OUT.parquet.manifest.json    counts, settings, digests; written last
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_aug.base.files import sha256, write_json, write_lines, write_text
from prompt_aug.questions import Question, write_parquet
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Choice, Rate


def beside(out: Path, ending: str) -> Path:
    """The file of the results with this ending."""
    return out.with_name(out.name + ending)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is written, by uid: candidates, choices, and the chosen candidates by rank."""

    questions: Sequence[Question]
    candidates: Mapping[str, Sequence[Candidate]]
    choices: Mapping[str, Choice]
    chosen: Mapping[str, Sequence[Candidate]]
    rates: Mapping[tuple[str, str], Rate]

    def rephrased(self) -> list[Question]:
        """The questions with the chosen texts as rephrasings."""
        return [
            dataclasses.replace(q, rephrasings=tuple(c.text for c in self.chosen[q.uid]))
            for q in self.questions
        ]

    def records(self) -> Iterator[dict[str, Any]]:
        """The line of every candidate."""
        ranks = {id(c): rank for listed in self.chosen.values() for rank, c in enumerate(listed)}
        for listed in self.candidates.values():
            for candidate in listed:
                yield record(candidate, ranks.get(id(candidate)), self.rates)


def write_results(
    out: Path,
    outcome: Outcome,
    settings: Mapping[str, Any],
    solver: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write all four files, the manifest last; return the manifest's content.

    `solver`: how many questions the solver was asked, and answered in their own wording.
    """
    manifest = beside(out, ".manifest.json")
    manifest.unlink(missing_ok=True)
    written = outcome.rephrased()
    write_parquet(written, out)
    write_lines(beside(out, ".candidates.jsonl"), outcome.records())
    report = summary(written, outcome.candidates, outcome.choices)
    report |= {"solver": solver and dict(solver), "settings": dict(settings)}
    write_text(beside(out, ".README.md"), card(out, report))
    names = (out, beside(out, ".candidates.jsonl"), beside(out, ".README.md"))
    report["sha256"] = {path.name: sha256(path) for path in names}
    write_json(manifest, report)
    return report


def record(
    candidate: Candidate, rank: int | None, rates: Mapping[tuple[str, str], Rate]
) -> dict[str, Any]:
    """The line of one candidate."""
    rate = rates.get((candidate.uid, candidate.text))
    return {
        "uid": candidate.uid,
        "text": candidate.text,
        "verdict": candidate.verdict,
        "reasons": [dataclasses.asdict(reason) for reason in candidate.reasons],
        "rank": rank,
        "pass_rate": None if rate is None else {"right": rate[0], "responses": rate[1]},
        "reviewer": candidate.reviewer,
        "path": candidate.path,
        "source": candidate.source,
    }


def summary(
    questions: Sequence[Question],
    candidates: Mapping[str, Sequence[Candidate]],
    choices: Mapping[str, Choice],
) -> dict[str, Any]:
    """Counts of verdicts, of each filter, of rephrasings; expected groups with signal."""
    listed = [candidate for group in candidates.values() for candidate in group]
    filters: Counter[str] = Counter()
    for candidate in listed:
        filters.update({f"{r.filter}: {r.verdict}" for r in candidate.reasons})
    known = [c for c in choices.values() if c.mixed is not None and c.random is not None]
    return {
        "questions": len(questions),
        "candidates": len(listed),
        "verdicts": dict(sorted(Counter(c.verdict for c in listed).items())),
        "accepted_by": dict(Counter(c.path for c in listed if c.verdict == "accept")),
        "filters": dict(filters.most_common()),
        "rephrasings": {
            str(count): number
            for count, number in sorted(Counter(len(q.rephrasings) for q in questions).items())
        },
        "chosen_by": "pass rates, then distance" if known else "distance alone (no pass rates)",
        "expected_groups_with_signal": {
            "questions_with_pass_rates": len(known),
            "chosen": sum(c.mixed or 0.0 for c in known),
            "chosen_at_random": sum(c.random or 0.0 for c in known),
        },
    }


def card(out: Path, report: Mapping[str, Any]) -> str:
    """README.md of a dataset on the hub: the metadata block, what it is, how it was made."""
    settings = json.dumps(report["settings"], indent=2, default=str)
    verdicts = ", ".join(f"{n} {name}" for name, n in report["verdicts"].items()) or "none"
    accepted = ", ".join(f"{name} {n}" for name, n in report["accepted_by"].items()) or "nothing"
    rows = "\n".join(f"| {name} | {count} |" for name, count in report["filters"].items())
    rephrasings = ", ".join(f"{q} questions with {n}" for n, q in report["rephrasings"].items())
    return f"""---
pretty_name: {out.stem}, rephrased
task_categories:
- question-answering
language:
- en
tags:
- mathematics
- rephrased
- synthetic
configs:
- config_name: default
  data_files: {out.name}
---

{report["questions"]} questions, each with rephrasings in `extra_info.rephrasings`, by rank
({rephrasings}). Made with `python -m prompt_aug.rephrase`, after TA-GRPO (arXiv 2601.22478).

Of {report["candidates"]} candidates: {verdicts}. Accepted by: {accepted}. The checks accept what
shows no difference in numbers and formulas; that is no proof. Chosen by {report["chosen_by"]}.
`{out.name}.candidates.jsonl` has every candidate with its reasons and where it is from.

| filter: verdict | candidates |
|---|---|
{rows}

The questions keep the licence of their source; a model's provider may restrict the use of what its
model wrote.

```json
{settings}
```
"""
