"""The results of the pipeline: questions with rephrasings, provenance, manifest, dataset card.

OUT.parquet                  what `recipe.train` reads: extra_info.rephrasings, by rank
OUT.parquet.candidates.jsonl every candidate: verdict, reasons, source, pass rates, reviewer, rank
OUT.parquet.README.md        a dataset card with the hub's metadata block
OUT.parquet.manifest.json    counts, settings, digests; written last
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prompt_aug.base.files import sha256, write_json, write_lines, write_text
from prompt_aug.questions import Question, write_parquet
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Choice, Rate


def beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is written, by uid: candidates, choices, and the chosen candidates by rank."""

    questions: Sequence[Question]
    candidates: Mapping[str, Sequence[Candidate]]
    choices: Mapping[str, Choice]
    chosen: Mapping[str, Sequence[Candidate]]
    rates: Mapping[tuple[str, str], Rate]

    def records(self) -> Iterator[dict[str, Any]]:
        ranks = {id(c): rank for listed in self.chosen.values() for rank, c in enumerate(listed)}
        for candidate in (c for listed in self.candidates.values() for c in listed):
            rate = self.rates.get((candidate.uid, candidate.text))
            yield asdict(candidate) | {
                "rank": ranks.get(id(candidate)),
                "pass_rate": rate and {"right": rate[0], "responses": rate[1]},
            }

    def summary(self) -> dict[str, Any]:
        listed = [candidate for group in self.candidates.values() for candidate in group]
        filters = Counter(
            f for c in listed for f in {f"{r.filter}: {r.verdict}" for r in c.reasons}
        )
        known = [c for c in self.choices.values() if c.mixed is not None]
        sizes = Counter(len(self.chosen[q.uid]) for q in self.questions)
        return {
            "questions": len(self.questions),
            "candidates": len(listed),
            "verdicts": dict(sorted(Counter(c.verdict for c in listed).items())),
            "accepted_by": dict(Counter(c.path for c in listed if c.verdict == "accept")),
            "decided": sum(c.reviewer is not None for c in listed),
            "filters": dict(filters.most_common()),
            "rephrasings": {str(count): number for count, number in sorted(sizes.items())},
            "chosen_by": "pass rates, then distance" if known else "distance alone (no pass rates)",
            "expected_groups_with_signal": {"questions_with_pass_rates": len(known)}
            | {"chosen": sum(choice.mixed or 0.0 for choice in known)},
        }


def write_results(
    out: Path, outcome: Outcome, settings: Mapping[str, Any], solver: Mapping[str, int] | None
) -> dict[str, Any]:
    """Write all four files, the manifest last; return the manifest's content."""
    files = (out, *(beside(out, end) for end in (".candidates.jsonl", ".README.md")))
    manifest = beside(out, ".manifest.json")
    manifest.unlink(missing_ok=True)
    chosen = {uid: tuple(c.text for c in ranked) for uid, ranked in outcome.chosen.items()}
    write_parquet([replace(q, rephrasings=chosen[q.uid]) for q in outcome.questions], out)
    write_lines(files[1], outcome.records())
    report = outcome.summary() | {"solver": solver, "settings": settings}
    write_text(files[2], card(out, report))
    report["sha256"] = {path.name: sha256(path) for path in files}
    write_json(manifest, report)
    return report


def card(out: Path, report: Mapping[str, Any]) -> str:
    """Return README.md of a dataset on the hub: the metadata block, content and origin."""
    verdicts = ", ".join(f"{n} {name}" for name, n in report["verdicts"].items()) or "none"
    accepted = ", ".join(f"{name} {n}" for name, n in report["accepted_by"].items()) or "nothing"
    rows = "\n".join(f"| {name} | {count} |" for name, count in report["filters"].items())
    rephrasings = ", ".join(f"{q} questions with {n}" for n, q in report["rephrasings"].items())
    return f"""---
pretty_name: {out.stem}, rephrased
task_categories: [question-answering]
language: [en]
tags: [mathematics, rephrased, synthetic]
configs:
- config_name: default
  data_files: {out.name}
---

{report["questions"]} questions, each with rephrasings in `extra_info.rephrasings`, by rank
({rephrasings}). Made with `python -m prompt_aug.rephrase`, after TA-GRPO (arXiv 2601.22478).

Of {report["candidates"]} candidates: {verdicts}. Accepted by: {accepted}. The checks accept what
shows no difference in numbers and formulas; that is no proof. Chosen by {report["chosen_by"]}.
`{out.name}.candidates.jsonl` has every candidate with its reasons and its source.

| filter: verdict | candidates |
|---|---|
{rows}

The questions keep the license of their source. A provider may restrict the use of its model's text.

```json
{json.dumps(report["settings"], indent=2, default=str)}
```
"""
