"""The results of the pipeline: questions with rephrasings, provenance, manifest.

OUT.parquet                  what `recipe.train` reads: extra_info.rephrasings, by rank
OUT.parquet.candidates.jsonl every candidate: verdict, reasons, source, pass rates, rank
OUT.parquet.manifest.json    counts, settings, digests; written last
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prompt_aug.base.files import sha256, write_json, write_lines
from prompt_aug.questions import Question, write_parquet
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Rate


def beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is written, by uid: candidates, and the chosen ones by rank."""

    questions: Sequence[Question]
    candidates: Mapping[str, Sequence[Candidate]]
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
        sizes = Counter(len(self.chosen[q.uid]) for q in self.questions)
        return {
            "questions": len(self.questions),
            "candidates": len(listed),
            "verdicts": dict(sorted(Counter(c.verdict for c in listed).items())),
            "accepted_by": dict(Counter(c.path for c in listed if c.verdict == "accept")),
            "filters": dict(filters.most_common()),
            "rephrasings": {str(count): number for count, number in sorted(sizes.items())},
            "chosen_by": "pass rates, then distance"
            if self.rates
            else "distance alone (no pass rates)",
        }


def write_results(out: Path, outcome: Outcome, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write all three files, the manifest last; return the manifest's content."""
    files = (out, beside(out, ".candidates.jsonl"))
    manifest = beside(out, ".manifest.json")
    manifest.unlink(missing_ok=True)
    chosen = {uid: tuple(c.text for c in ranked) for uid, ranked in outcome.chosen.items()}
    write_parquet([replace(q, rephrasings=chosen[q.uid]) for q in outcome.questions], out)
    write_lines(files[1], outcome.records())
    report = outcome.summary() | {"settings": settings}
    report["sha256"] = {path.name: sha256(path) for path in files}
    write_json(manifest, report)
    return report
