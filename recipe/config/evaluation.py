"""The section `eval` of a run's configuration.

Training checks the section when it starts. `eval` reads it from the run folder.
"""

from typing import Annotated, Literal

from pydantic import Field

from prompt_aug.extraction import ExtractionName
from prompt_aug.typed import (
    Above0,
    Count,
    FileName,
    Part,
    Positive,
    Record,
    Seed,
    Several,
    Share,
    Text,
    Weight,
)
from prompt_aug.verifiers import VerifierLimits

MOST_SAMPLES = 100_000  # of a question; a larger number is a typing error
DType = Literal["float32", "bfloat16", "float16", "auto"]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]


class BenchmarkRequest(Record):
    """A benchmark to evaluate. None: path and samples of the benchmark `name`."""

    name: FileName
    path: Text | None = None
    samples: Samples | None = None


class EvaluationSection(Record):
    """The section `eval`. Lengths are tokens; `max_model_len` None: as long as needed.

    `top_k` 0 keeps all tokens. `stop` are stop strings beside the template's. `system_prompt`
    replaces that of templates and questions.
    `verifiers`: dotted path of the function that grades the questions of a data source.
    """

    template: Text = "qwen-math"
    benchmarks: Several[BenchmarkRequest] = ()
    extraction: ExtractionName = "default"
    verifiers: dict[str, Text] | None = None
    verifier_limits: VerifierLimits = VerifierLimits()
    temperature: Weight = 0.0
    top_p: Part = 1.0
    top_k: Count = 0
    min_p: Share = 0.0
    repetition_penalty: Above0 = 1.0
    stop: Several[Annotated[str, Field(min_length=1)]] = ()
    system_prompt: Text | None = None
    max_tokens: Positive = 3000
    seed: Seed = 0
    dtype: DType = "auto"
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    gpu_memory_utilization: Part = 0.8
    max_questions: Positive | None = None
