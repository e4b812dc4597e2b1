"""The pages of a report: HTML that holds everything and runs nothing but its own scripts; Markdown.

The policy in the page's head (Content-Security-Policy) names the digests of its three scripts, so
a script that hostile text might smuggle in does not run, and nothing is fetched from anywhere.
Tables are escaped by the template engine; figures and samples are JSON, of which the page makes
text nodes.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eval.errors import EvaluationError
from eval.report import tables
from eval.report.archive import Archive
from eval.report.data import RunData
from eval.report.figures import Figure
from eval.report.rollouts import Sample
from eval.report.tables import markdown_table

# Package and file of the JavaScript of others, embedded as it was installed.
LIBRARIES = (("plotly", "package_data/plotly.min.js"), ("sphinxcontrib", "katex.min.js"))


def library(package: str, file: str) -> str:
    """A script of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path.read_text(encoding="utf-8")
    raise EvaluationError(f"the report needs {file} of {package}: install requirements/ again")


def own(file: str) -> str:
    """A file that lies beside this one."""
    return resources.files("eval.report").joinpath(file).read_text(encoding="utf-8")


def as_data(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def scripts() -> tuple[list[Markup], str]:
    """The scripts of the page and the source list that allows these and no others."""
    texts = [own("report.js").strip(), *(library(*place).strip() for place in LIBRARIES)]
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return [Markup(text) for text in texts], allowed


def render_html(
    name: str,
    runs: Sequence[RunData],
    numbers: Sequence[Mapping[str, Any]],
    figures: Sequence[Figure],
    rollouts: Sequence[Sequence[Sample]],
    samples: Archive,
    beside: Mapping[str, Any],
) -> str:
    """The page. `beside`: the tables that compare runs, by name."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    code, allowed = scripts()
    return environment.from_string(own("report.html.j2")).render(
        name=name,
        style=Markup(own("report.css")),
        scripts=code,
        allowed=Markup(allowed),
        runs=[
            _sections(run, found, texts)
            for run, found, texts in zip(runs, numbers, rollouts, strict=True)
        ],
        figure_data=as_data([figure.as_json() for figure in figures]),
        sample_index=as_data(samples.index),
        blocks=samples.blocks,
        **beside,
    )


def _sections(
    run: RunData, numbers: Mapping[str, Any], rollouts: Sequence[Sample]
) -> dict[str, Any]:
    return {
        "name": run.name,
        "header": tables.header_table(run),
        "headline": tables.headline(run, numbers),
        "chosen": tables.chosen(run),
        "pass_at_k": tables.pass_at_k_table(run),
        "extraction": tables.extraction_table(run),
        "levels": tables.level_table(run),
        "templates": tables.template_table(run),
        "rollouts": rollouts,
        "settings": tables.settings_table(run),
        "environment": tables.environment_table(run),
        "configuration": tables.configuration(run),
        "notes": run.notes,
    }


def render_markdown(
    name: str,
    runs: Sequence[RunData],
    numbers: Sequence[Mapping[str, Any]],
    figures: Sequence[Figure],
    beside: Mapping[str, Any],
) -> str:
    """The report without the model's texts, which are in index.html."""
    several = len(runs) > 1
    parts = [f"# {name}"]
    if several:
        parts.append(markdown_table(beside["comparison"]))
        parts += ["## What differs in the configuration", markdown_table(beside["differing"])]
    else:
        parts += [", ".join(f"{k} {v}" for k, v in tables.headline(runs[0], numbers[0]))]
    parts.append("Per cent of samples right, ± one standard error clustered by question.")
    parts += [(f"{run.name}: " if several else "") + tables.chosen(run) for run in runs]
    parts += [f"{of}\n\n{markdown_table(table)}" for of, table in beside["checkpoints"]]
    for run in runs:
        if table := tables.pass_at_k_table(run):
            parts += [f"### pass@k of {run.name}" if several else "", markdown_table(table)]
        if table := tables.extraction_table(run):
            parts += [f"### {run.name}: answers read by rule", markdown_table(table)]
    parts += [f"**{source}**\n\n{markdown_table(table)}" for source, table in beside["expected"]]
    parts += [
        f"## {figure.title}\n\n{figure.caption} ([data]({figure.name}.csv))\n\n"
        f"![{figure.title}]({figure.name}.png)"
        for figure in figures
    ]
    for run in runs:
        parts += _settings(run, f" of {run.name}" if len(runs) > 1 else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings(run: RunData, of: str) -> list[str]:
    named = (
        ("Evaluation settings", tables.settings_table(run)),
        ("Environment", tables.environment_table(run)),
    )
    parts = [
        f"## {title}{of}\n\n" + markdown_table([["name", "value"], *table])
        for title, table in named
        if table
    ]
    if run.notes:
        parts.append(f"## Notes{of}\n\n" + "\n".join(f"- {note}" for note in run.notes))
    return parts
