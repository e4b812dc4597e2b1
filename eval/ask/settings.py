"""Settings of an evaluation: those of the run, overridden by the command's options.

The digest of everything that can change a response is part of the folder's name, so other settings
are evaluated in another folder.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from eval import EvaluationError
from eval.ask.benchmarks import LoadedBenchmark
from prompt_aug.base.files import read_text
from prompt_aug.prompts import FORM, Prompts
from prompt_aug.templates import Bank, Form, load_bank
from prompt_aug.templates.rendering import Style, System, Turn
from prompt_aug.typed import Positive, Text, parse_typed
from recipe.config.evaluation import EvaluationSection, Samples
from recipe.run.folder import RunFolder, read_config, select

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # as vLLM names them


class Settings(EvaluationSection):
    """One evaluation: the section `eval`, how prompts are rendered, how the engine runs.

    `samples` per question; None: those of the request or the benchmark. With `reload_weights` one
    engine serves all checkpoints.
    """

    bank: Text | None = None
    style: Style = "auto"
    chat: dict[str, Any] = Field(default_factory=dict)
    instruction: Turn = "system"
    system: System = "row"
    samples: Samples | None = None
    tensor_parallel: Positive = 1
    reload_weights: bool = True

    def replaced(self, **changes: Any) -> "Settings":
        """Return a copy with validated changes. Raises EvaluationError."""
        return parse_typed({**dict(self), **changes}, Settings, "evaluation", EvaluationError)

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
    return parse_typed(given, Settings, f"{RunFolder(run).config}, section eval", EvaluationError)


@cache
def presets() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(read_text(Path(__file__).with_name("presets.yaml"))))


def shared_identity(settings: Settings, template: object) -> dict[str, Any]:
    """Return everything that can change a response, except the model and the questions.

    The number of samples is not part of it, because a sample's seed does not depend on it.
    """
    keys = (*SAMPLING, "stop", "system_prompt", "max_tokens", "seed", "dtype", "max_model_len")
    return {
        "template": settings.template,
        **dataclasses.asdict(settings.form),
        "template_sha256": _digest(template),
        **{key: getattr(settings, key) for key in keys},
        "stop": list(settings.stop),
    }


def folder_name(identity: Mapping[str, Any]) -> str:
    """Return the folder of these settings: template, temperature, and a digest of all."""
    template = re.sub(r"[^\w.-]+", "_", str(identity["template"]), flags=re.ASCII)
    return f"{template}-t{identity['temperature']:g}-{_digest(identity)[:8]}"


def benchmark_identity(
    benchmark: LoadedBenchmark,
    template: object,
    extraction: str,
    verifiers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings of a benchmark's scores. The content counts, not the path.

    `template` is part of it only if it is the benchmark's own.
    """
    own = {"template": benchmark.template, "template_sha256": _digest(template)}
    return {
        **(own if benchmark.template else {}),
        **({"tolerance": benchmark.tolerance} if benchmark.tolerance else {}),
        "sha256": benchmark.sha256,
        "questions": len(benchmark.questions),
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
