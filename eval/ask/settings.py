"""Settings of an evaluation: those of the run, overridden by the command's options.

The digest of everything that can change a response is part of the folder's name, so other settings
are evaluated in another folder.
"""

import argparse
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from eval.ask.benchmarks import LoadedBenchmark
from prompt_aug.base.errors import UserError
from prompt_aug.prompts import FORM, Prompts
from prompt_aug.questions import to_row
from prompt_aug.templates import Bank, Form, load_bank
from prompt_aug.templates.rendering import Style, System, Turn
from prompt_aug.typed import Positive, Text, parse_typed, read_typed, shown
from recipe.config.evaluation import EvaluationSection, Samples, Shared, option
from recipe.run.folder import RunFolder, read_config, select


class Settings(EvaluationSection):
    """One evaluation: the section `eval`, how prompts are rendered, how the engine runs.

    `samples` None: those of the request or the benchmark. The identity has the digest of the
    template, not `bank`.
    """

    bank: Shared[Text | None] = option(None, "template bank file")
    style: Style = option("auto", "how a prompt is made of a template")
    chat: dict[str, Any] = option({}, "arguments of the chat template: '{enable_thinking: false}'")
    instruction: Turn = "system"
    system: System = "row"
    samples: Shared[Samples | None] = option(None, "per question (default: the benchmark's)")
    tensor_parallel: Shared[Positive] = option(1, "GPUs of one engine")
    reload: Shared[bool] = option(True, "start an engine for every checkpoint")

    def replaced(self, **changes: Any) -> "Settings":
        """Return a copy with validated changes. Raises UserError."""
        return parse_typed({**dict(self), **changes}, Settings, "evaluation", UserError)

    @property
    def form(self) -> Form:
        form = {name: getattr(self, name) for name in FORM}
        return Form(**form | ({} if self.system_prompt is None else {"system": "template"}))

    def prompts(self) -> Prompts:
        """Return the renderer. Raises BankError or UnknownTemplateError."""
        bank = load_bank(self.bank)
        bank[self.template]
        own = {} if self.system_prompt is None else {"system": self.system_prompt}
        bank = Bank([
            template.model_copy(update={"stop": (*template.stop, *self.stop), **own})
            for template in bank.values()
        ])  # fmt: skip
        return Prompts(
            bank=bank,
            source=self.bank,
            format="strict",
            form=self.form,
            validation_template=self.template,
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def from_run(run: Path) -> Settings:
    """Read the section `eval` of RUN/config.yaml, templates and style of RUN/prompts.yaml.

    A run without prompts.yaml has templates and style in its section ``recipe.augment``.
    """
    prompts, config = RunFolder(run).prompts, read_config(run)
    augment, section = select(config, "recipe.augment") or {}, config.get("eval") or {}
    if prompts.exists():
        form = {"bank": str(prompts), **dataclasses.asdict(Prompts.read(prompts).form)}
    else:
        form = {**augment, "chat": select(config, "data.apply_chat_template_kwargs")}
    section = {**section, **{key: form[key] for key in ("bank", *FORM) if key in form}}
    given = {key: value for key, value in section.items() if value is not None}
    return parse_typed(given, Settings, f"{RunFolder(run).config}, section eval", UserError)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting with a description; for a switch, one that turns it off."""
    for name, field in Settings.model_fields.items():
        if text := field.description:
            off = "no-" if field.annotation is bool else ""
            if not off and field.default not in (None, (), {}):
                text += f" (default: the run's, or {shown(field.default)})"
            option = f"--{off}{name.replace('_', '-')}"
            parser.add_argument(option, dest=name, help=text, **_parsing(field.annotation))


def _parsing(kind: Any) -> dict[str, Any]:
    """Return how argparse reads a value of the type `kind`; a section is read by the caller."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool:
        return {"action": "store_false", "default": None}
    if origin is Literal:
        return {"choices": inner}
    if origin is dict:
        return {"metavar": "{KEY: VALUE}"}
    if origin is tuple:
        return {"action": "append"}
    return _parsing(inner[0]) if inner else {"type": kind}  # of X | None, or Annotated[X, ...]


@cache
def presets() -> dict[str, dict[str, Any]]:
    return read_typed(Path(__file__).with_name("presets.yaml"), dict[str, dict[str, Any]])


def shared_identity(settings: Settings, template: object) -> dict[str, Any]:
    """Return everything that can change a response, except the model and the questions."""
    form = dataclasses.asdict(settings.form)
    return {**settings.model_dump(mode="json"), **form, "template_sha256": _digest(template)}


def folder_name(identity: Mapping[str, Any]) -> str:
    """Return the folder of these settings: template, temperature, and a digest of all."""
    template = re.sub(r"[^\w.-]+", "_", str(identity["template"]), flags=re.ASCII)
    return f"{template}-t{identity['temperature']:g}-{_digest(identity)[:8]}"


def benchmark_identity(
    benchmark: LoadedBenchmark,
    template: object,
    extraction: str,
    verifiers: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings of a benchmark's scores. The content counts, not the path.

    `template` is part of it only if it is the benchmark's own. A uid holds neither system prompts
    nor what a verifier reads, so the digest has them where there are any.
    """
    verified, questions = verifiers.get("functions", ()), benchmark.questions
    rows = [to_row(q) for q in questions if q.earlier or q.options or q.source in verified]
    sha256 = _digest([benchmark.sha256, *sorted(map(_digest, rows))]) if rows else benchmark.sha256
    own = {"template": benchmark.template, "template_sha256": _digest(template)}
    return {
        **(own if benchmark.template else {}),
        **({"tolerance": benchmark.tolerance} if benchmark.tolerance else {}),
        "sha256": sha256,
        "questions": len(questions),
        "of": benchmark.size,
        "samples": benchmark.samples,
        "extraction": extraction,
        **({"verifiers": dict(verifiers)} if verifiers else {}),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: old -> new`` for each key that differs."""
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(set(old) | set(new))
        if old.get(key) != new.get(key)
    ]


def _digest(value: object) -> str:
    def stable(value: object) -> str:  # a record within a record is a text of JSON
        plain = dict(value) if isinstance(value, BaseModel) else value
        return json.dumps(plain, sort_keys=True, default=stable)

    return hashlib.sha256(stable(value).encode()).hexdigest()
