"""The settings of an evaluation: from the run's own configuration, overridden by flags.

What can change a response makes the digest that names the folder of its samples: other settings
have another folder beside it, and nothing is mixed or replaced.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml

from eval.benchmarks import MOST_SAMPLES, BenchmarkRequest, LoadedBenchmark
from eval.errors import EvaluationError
from prompt_aug.base.files import read_text
from prompt_aug.extraction import EXTRACTIONS, ExtractionName
from prompt_aug.prompts import FORM, Prompts
from prompt_aug.templates import Form, load_bank
from prompt_aug.templates.rendering import PLAIN, Style, System, Turn
from recipe.run.folder import RunFolder

DTYPES = ("float32", "bfloat16", "float16", "auto")
STYLES = get_args(Style)
MOST = f"between 1 and {MOST_SAMPLES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One evaluation. Lengths are tokens; `max_model_len` None means as long as needed.

    `gpu_memory_utilization`, `tensor_parallel` and `reload_weights` (one engine for all
    checkpoints) say how to run, not what is measured: they are never compared. `samples` of each
    question; None: as the request or the benchmark says.
    """

    template: str = "qwen-math"
    bank: str | None = None
    style: Style = "auto"
    chat: Mapping[str, Any] = field(default_factory=dict)
    instruction: Turn = "system"
    system: System = "row"
    extraction: ExtractionName = "default"
    benchmarks: tuple[BenchmarkRequest, ...] = ()
    samples: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 3000
    seed: int = 0
    dtype: str = "auto"
    max_model_len: int | None = None
    max_questions: int | None = None
    gpu_memory_utilization: float = 0.8
    tensor_parallel: int = 1
    reload_weights: bool = True

    def __post_init__(self) -> None:
        finite = math.isfinite(self.temperature) and math.isfinite(self.top_p)
        problems = [
            (not finite or self.temperature < 0, "temperature", "a number >= 0"),
            (not finite or not 0 < self.top_p <= 1, "top_p", "in (0, 1]"),
            (self.max_tokens < 1, "max_tokens", "at least 1"),
            (self.dtype not in DTYPES, "dtype", f"one of {', '.join(DTYPES)}"),
            (self.style not in STYLES, "style", f"one of {', '.join(STYLES)}"),
            (self.extraction not in EXTRACTIONS, "extraction", f"one of {', '.join(EXTRACTIONS)}"),
            (self.max_questions is not None and self.max_questions < 1, "max_questions", ">= 1"),
            (self.max_model_len is not None and self.max_model_len < 2, "max_model_len", ">= 2"),
            (self.tensor_parallel < 1, "tensor_parallel", "at least 1"),
            (self.samples is not None and not 1 <= self.samples <= MOST_SAMPLES, "samples", MOST),
            (not 0 < self.gpu_memory_utilization <= 1, "gpu_memory_utilization", "in (0, 1]"),
        ]
        for wrong, name, wanted in problems:
            if wrong:
                raise EvaluationError(f"evaluation: {name} is {getattr(self, name)}, not {wanted}")

    @property
    def form(self) -> Form:
        """How a template's texts become a prompt."""
        return Form(**{name: getattr(self, name) for name in FORM})

    def prompts(self) -> Prompts:
        """The renderer of these settings; raises for an unknown bank or template."""
        bank = load_bank(self.bank)
        bank[self.template]
        return Prompts(
            bank=bank,
            source=self.bank,
            format="strict",
            form=self.form,
            validation_template=self.template,
        )

    @property
    def greedy(self) -> bool:
        """True where decoding takes the most likely token each time."""
        return self.temperature == 0.0


def from_run(run: Path) -> Settings:
    """The section `eval` of RUN/config.yaml; an unknown key is an error.

    Templates and style are those of RUN/prompts.yaml, which the training rendered from too. A run
    of before that file was written has them in its section ``recipe.augment``.
    """
    path, prompts = RunFolder(run).config, RunFolder(run).prompts
    if not path.exists():
        raise EvaluationError(
            f"{path} is missing: {run} is not a run folder (use --model for a model)"
        )
    config = yaml.safe_load(read_text(path)) or {}
    section = dict(config.get("eval") or {})
    augment = (config.get("recipe") or {}).get("augment") or {}
    chat = (config.get("data") or {}).get("apply_chat_template_kwargs")
    if prompts.exists():
        augment = {"bank": str(prompts), **dataclasses.asdict(Prompts.read(prompts).form)}
    section |= {key: augment[key] for key in ("bank", *FORM) if key in augment}
    section.setdefault("chat", chat)
    names = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(section) - names)
    if unknown:
        raise EvaluationError(f"{path}: unknown keys in eval: {unknown}; known: {sorted(names)}")
    listed = section.pop("benchmarks", None) or []
    requests = tuple(_request(entry, path) for entry in listed)
    given = {key: value for key, value in section.items() if value is not None}
    try:
        return Settings(benchmarks=requests, **given)
    except TypeError as error:
        raise EvaluationError(
            f"{path}, section eval: a value has the wrong type: {error}"
        ) from error


def presets() -> dict[str, dict[str, Any]]:
    """Settings of published evaluations by name."""
    return dict(yaml.safe_load(read_text(Path(__file__).with_name("presets.yaml"))))


def last_step(run: Path) -> int:
    """The step at which the training of `run` ends."""
    config = yaml.safe_load(read_text(RunFolder(run).config)) or {}
    step = (config.get("trainer") or {}).get("total_training_steps")
    if not isinstance(step, int):
        raise EvaluationError(
            f"{RunFolder(run).config}: trainer.total_training_steps is not a number"
        )
    return step


def _request(entry: Any, path: Path) -> BenchmarkRequest:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise EvaluationError(
            f"{path}: eval.benchmarks wants {{name, path, samples, template}}, got {entry}"
        )
    unknown = sorted(set(entry) - {"name", "path", "samples", "template"})
    if unknown:
        raise EvaluationError(f"{path}: unknown keys {unknown} in eval.benchmarks entry {entry}")
    name, file, samples = str(entry["name"]), entry.get("path"), entry.get("samples")
    if file is not None and not (isinstance(file, str) and file.strip()):
        raise EvaluationError(f"{path}: eval.benchmarks {name}: path {file!r} is not a path")
    if samples is not None and not isinstance(samples, int):
        raise EvaluationError(
            f"{path}: eval.benchmarks {name}: samples {samples!r} is not a number"
        )
    template = entry.get("template")
    if template is not None and not isinstance(template, str):
        raise EvaluationError(
            f"{path}: eval.benchmarks {name}: template {template!r} is not a name"
        )
    return BenchmarkRequest(name=name, path=file, samples=samples, template=template)


def shared_identity(settings: Settings, template: object) -> dict[str, Any]:
    """Everything but the model and the questions that can change a response.

    The number of samples is no part of it: a sample's seed depends on (seed, question, number).
    Of the form, what has its default is left out: older folders keep their names.
    """
    form = dataclasses.asdict(settings.form)
    return {
        "template": settings.template,
        "style": settings.style,
        **{key: value for key, value in form.items() if value != getattr(PLAIN, key)},
        "template_sha256": _digest(template),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
    }


def folder_name(identity: Mapping[str, Any]) -> str:
    """The name of the folder of these settings: template, temperature, and a digest of all."""
    digest = _digest(identity)[:8]
    template = re.sub(r"[^\w.-]+", "_", str(identity["template"]), flags=re.ASCII)
    return f"{template}-t{identity['temperature']:g}-{digest}"


def benchmark_identity(
    benchmark: LoadedBenchmark, template: object, extraction: str
) -> dict[str, Any]:
    """What a benchmark's scores must agree on; the path is not part of it, its content is.

    `template` is what it is asked with, named here where it is the benchmark's own.
    """
    own = {"template": benchmark.template, "template_sha256": _digest(template)}
    return {
        **(own if benchmark.template else {}),
        "sha256": benchmark.sha256,
        "questions": len(benchmark.questions),
        "of": benchmark.size,
        "samples": benchmark.samples,
        "extraction": extraction,
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Readable lines, ``key: old -> new``, for each key on which the two disagree."""
    keys = sorted(set(old) | set(new))
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _digest(value: object) -> str:
    return hashlib.sha256(_stable(value).encode()).hexdigest()


def _stable(value: object) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return json.dumps(value, sort_keys=True, default=_stable)
