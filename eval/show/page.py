"""The page of a report: index.html, which holds everything.

Its Content-Security-Policy names the digests of its three scripts, so no other script runs and
nothing is fetched. Tables are escaped by the template engine. Figures and samples are JSON, which
the page writes as text nodes.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eval.show import tables
from eval.show.answers import Archive, packed
from eval.show.data import RunData
from eval.show.figures import Figure, logged, status_notes
from prompt_aug.base.errors import UserError

# Package and file of the JavaScript libraries, embedded as installed.
LIBRARIES = (("plotly", "package_data/plotly.min.js"), ("sphinxcontrib", "katex.min.js"))
TRAINING_TIME = "The training time excludes the start model's preparation, export and evaluation."
COMPARED = (
    'Percent of samples right, ± one standard error clustered by question. "Against" '
    "is the difference of the results in points with its 95 % interval and its p-value, over the "
    f"same questions. {TRAINING_TIME}"
)
CHECKPOINTS = (
    "Percent of samples right, ± one standard error clustered by question; at 0 and 100 % the "
    "95 % interval (Wilson, over questions). The gain is paired by question. p is the probability "
    "of a gain at least as large if there were none (random signs). In brackets: questions x "
    "samples of each. No answer and truncated are percentages of samples; tokens is the mean "
    "length of a response."
)


@dataclass(frozen=True)
class Block:
    """A part of a page. `level` is that of its heading, `kind` the CSS class of its table."""

    title: str = ""
    note: str = ""
    table: tables.Table = field(default_factory=list)
    level: int = 3
    kind: str = "numbers"
    id: str = ""


def results(runs: Sequence[RunData]) -> list[Block]:
    """Return the blocks before the curves: comparison or header, and the scores."""
    several = len(runs) > 1
    if several:
        differing = tables.configurations_table(runs)
        same = "" if len(differing) > 1 else "Only names and folders differ."
        blocks = [
            Block(note=COMPARED, table=tables.runs_table(runs), kind="numbers comparison"),
            Block("What differs in the configuration", same, [] if same else differing, 2, ""),
        ]
    else:
        header = [["", ""], *rows] if (rows := tables.header_table(runs[0])) else []
        blocks = [Block(note=TRAINING_TIME, table=header, kind="header")]
    about = CHECKPOINTS if any(run.rows for run in runs) else ""
    blocks.append(Block("Checkpoints", about, level=2, id="checkpoints"))
    blocks += [Block(note=f"{run.name}: " * several + tables.chosen(run)) for run in runs]
    blocks += [Block(of, table=table) for of, table in tables.checkpoints_of_all(runs)]
    for run in runs:
        of = f" of {run.name}" if several else ""
        unbiased = "Unbiased, from all samples of a question, in percent."
        recent = "Training rollouts of the last 10 steps, in percent; format is a mean reward."
        blocks += [
            Block(f"pass@k{of}", unbiased, tables.pass_at_k_table(run)),
            Block(f"By template{of}", recent, tables.template_table(run)),
        ]
    return [b for b in blocks if len(b.table) > 1 or b.level == 2 or not b.title]


def settings_blocks(run: RunData, several: bool) -> list[Block]:
    settings, of = run.eval_settings.items(), f" of {run.name}" if several else ""
    head = ["name", "value"]
    tables_by_title: dict[str, tables.Table] = {
        "Evaluation": [head, *([name, str(x)] for name, x in settings if x is not None)],
        "Environment of training": [head, *tables.environment_table(run)],
        "Notes": [["note"], *([note] for note in run.notes)],
    }
    return [
        Block(f"{t}{of}", "", rows, kind="") for t, rows in tables_by_title.items() if len(rows) > 1
    ]


def library(package: str, file: str) -> str:
    """Return a script of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path.read_text(encoding="utf-8")
    raise UserError(f"the report needs {file} of {package}: install requirements/ again")


def as_data(value: Any) -> Markup:
    """Return JSON that is safe inside a script element, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of a report. `blocks` are those of `results`; `rollouts` has a list per run."""

    name: str
    runs: Sequence[RunData]
    blocks: Sequence[Block]
    samples: Archive
    rollouts: Sequence[Sequence[Mapping[str, Any]]]
    headline: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()

    def html(self) -> str:
        kind = "Training report" if any(r.metrics or r.config for r in self.runs) else "Comparison"

        def own(file: str) -> str:
            return resources.files("eval.show").joinpath(file).read_text(encoding="utf-8")

        scripts = [own("report.js").strip(), *(library(*place).strip() for place in LIBRARIES)]
        metrics = logged(self.runs)
        statuses = status_notes(self.samples.index["statuses"])
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        return environment.from_string(own("report.html.j2")).render(
            title=f"{kind}: {self.name}",
            sections={block.id: block.title for block in self.blocks if block.id and block.title},
            style=Markup(own("report.css")),
            scripts=list(map(Markup, scripts)),
            allowed=Markup(" ".join(f"'sha256-{digest.decode()}'" for digest in digests)),
            headline=self.headline,
            results=self.blocks,
            runs=[
                {
                    "name": run.name,
                    "settings": settings_blocks(run, len(self.runs) > 1),
                    "configuration": tables.configuration(run),
                    "rollouts": rollouts,
                }
                for run, rollouts in zip(self.runs, self.rollouts, strict=True)
            ],
            metrics=[(g, list(keys)) for g, keys in groupby(metrics, lambda k: k.split("/")[0])],
            metric_block=packed(metrics),
            run_names=as_data([run.name for run in self.runs]),
            figure_data=as_data([figure.as_json() for figure in self.figures]),
            sample_index=as_data(self.samples.index),
            samples=self.samples,
            statuses=f"Statuses: {statuses}." if statuses else "",
        )
