"""The section `eval` of a run's configuration: each setting of an evaluation, defined once.

Training checks the section when it starts; `eval` reads it from the run folder. Every field is part
of the identity that names the folder of an evaluation, unless it is `Shared`.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from prompt_aug import typed
from prompt_aug.extraction import ExtractionName
from prompt_aug.verifiers import VerifierLimits

T = TypeVar("T")
MOST_SAMPLES = 100_000  # of a question; a larger number is a typing error
DType = Literal["float32", "bfloat16", "float16", "auto"]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Shared = Annotated[T, Field(exclude=True)]  # changes no response: other values use the same folder
Sampling = Annotated[T, "sampling"]  # a parameter of vLLM's sampling, by its name there


def option(default: Any, text: str) -> Any:
    """Return a field that is an option of `eval.sweep`, with this help."""
    return Field(default, description=text)


class BenchmarkRequest(typed.Record):
    """A benchmark to evaluate. None: path and samples of the benchmark `name`."""

    name: typed.FileName
    path: typed.Text | None = None
    samples: Samples | None = None


class EvaluationSection(typed.Record):
    """The section `eval`. Lengths are tokens; `max_model_len` None: as long as needed.

    `verifiers`: dotted path of the function that grades the questions of a data source.
    """

    template: typed.Text = option("qwen-math", "template of every question")
    benchmarks: Shared[typed.Several[BenchmarkRequest]] = ()
    extraction: Shared[ExtractionName] = option("default", "which text counts as the answer")
    verifiers: Shared[dict[str, typed.Text] | None] = None
    verifier_limits: Shared[VerifierLimits] = VerifierLimits()
    temperature: Sampling[typed.Weight] = option(0.0, "0 is greedy")
    top_p: Sampling[typed.Part] = option(
        1.0, "sample from the likeliest tokens of this probability"
    )
    top_k: Sampling[typed.Count] = option(0, "sample from the k likeliest tokens; 0: all")
    min_p: Sampling[typed.Share] = option(0.0, "least share of the likeliest token's probability")
    repetition_penalty: Sampling[typed.Above0] = option(1.0, "above 1: fewer repeated tokens")
    stop: typed.Several[Annotated[str, Field(min_length=1)]] = option(
        (), "a stop string beside the template's; may be repeated; it stays in the response"
    )
    system_prompt: typed.Text | None = option(
        None, "replaces that of the template and of the questions"
    )
    max_tokens: typed.Positive = option(3000, "limit of a response")
    seed: typed.Seed = option(0, "seed of the samples")
    dtype: DType = option("auto", "precision of the engine")
    max_model_len: Annotated[int, Field(ge=2)] | None = option(
        None, "limit of prompt and response together"
    )
    gpu_memory_utilization: Shared[typed.Part] = option(0.8, "share of a GPU's memory")
    max_questions: Shared[typed.Positive | None] = option(
        None, "only the first N of each benchmark"
    )


SAMPLING = tuple(
    name for name, field in EvaluationSection.model_fields.items() if "sampling" in field.metadata
)
