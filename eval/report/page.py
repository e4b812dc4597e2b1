"""The page of a report: index.html, which holds everything and needs no network.

Its Content-Security-Policy names the digests of its two scripts, so no other script runs and
nothing is fetched. Tables are escaped by the template engine. Metrics and samples are JSON, which
the page writes as text nodes.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eval import EvaluationError
from eval.report import tables
from eval.report.answers import Archive, packed
from eval.report.data import RunData
from eval.report.figures import Figure, logged

KATEX = ("sphinxcontrib", "katex.min.js")  # package and file, embedded as installed
ABOUT = (
    "Percent of samples right, ± one standard error clustered by question. Gains and differences "
    "are in points and paired by question; brackets hold 95 % intervals. The training time "
    "excludes the start model's preparation, export and evaluation."
)
CHECKPOINTS = (
    "At 0 and 100 % with the 95 % interval (Wilson, over questions). p is the probability of a "
    "gain at least as large if there were none (random signs). In the head: questions x samples "
    "of each. No answer and truncated are percentages of samples; tokens is the mean length of a "
    "response."
)
PASS_AT_K = "Unbiased, from all samples of a question, in percent."


@dataclass(frozen=True)
class Block:
    """A part of a page. `kind` is the CSS class of its table."""

    title: str = ""
    note: str = ""
    table: tables.Table = field(default_factory=list)
    kind: str = "numbers"


def results(runs: Sequence[RunData], expected: str | None = None) -> list[Block]:
    """Return the blocks of a report: the facts, the scores, the settings and notes."""
    blocks = [Block("", ABOUT, tables.facts_table(runs), "header")]
    if len(runs) > 1:
        differing = tables.configurations_table(runs)
        blocks.append(Block("What differs in the configuration", "", differing, ""))
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        blocks.append(Block(f"Checkpoints{of}", tables.chosen(run)))
        if run.rows:
            asked = [[key, str(x)] for key, x in run.eval_settings.items() if x is not None]
            blocks += [
                Block("", CHECKPOINTS, tables.checkpoint_table(run)),
                Block(f"pass@k{of}", PASS_AT_K, tables.pass_at_k_table(run)),
                Block(f"Which text counts as the answer{of}", "", tables.extraction_table(run)),
                Block(f"Settings of the evaluation{of}", "", [["name", "value"], *asked], ""),
            ]
        notes = [["note"], *([note] for note in run.notes)]
        blocks.append(Block(f"Notes{of}", "", notes, ""))
    for source, table in tables.expected_tables(runs, expected):
        blocks.append(Block("Published", source, table))
    return [block for block in blocks if len(block.table) != 1]  # a head alone


def library(package: str, file: str) -> str:
    """Return a script of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path.read_text(encoding="utf-8")
    raise EvaluationError(f"the report needs {file} of {package}: install requirements/ again")


def as_data(value: Any) -> Markup:
    """Return JSON that is safe inside a script element, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def html(
    name: str,
    runs: Sequence[RunData],
    blocks: Sequence[Block],
    samples: Archive,
    pictures: Sequence[tuple[Figure, bytes]] = (),
) -> str:
    """Return the page. `pictures` has the PNG of each figure."""

    def own(file: str) -> str:
        return resources.files("eval.report").joinpath(file).read_text(encoding="utf-8")

    scripts = [own("report.js").strip(), library(*KATEX).strip()]
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    metrics = logged(runs)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(own("report.html.j2")).render(
        name=name,
        several=len(runs) > 1,
        style=Markup(own("report.css")),
        scripts=list(map(Markup, scripts)),
        allowed=Markup(" ".join(f"'sha256-{digest.decode()}'" for digest in digests)),
        blocks=blocks,
        pictures=[(f, base64.b64encode(png).decode()) for f, png in pictures],
        metrics=[(g, list(keys)) for g, keys in groupby(metrics, lambda k: k.split("/")[0])],
        metric_block=packed(metrics),
        run_names=as_data([run.name for run in runs]),
        sample_index=as_data(samples.index),
        samples=samples,
    )
