"""Settings of this project: every key of the section `recipe`, with type, default and meaning.

hydra gets the defaults from here (`recipe.config.compose`). ``python -m recipe.train --keys``
prints the keys. A setting that is `free` may change when a run is resumed. Rules about several keys
together are in `recipe.start`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic.fields import FieldInfo

from prompt_aug.draw import Mode
from prompt_aug.extraction import ExtractionName
from prompt_aug.templates.rendering import Style, System, Turn
from prompt_aug.templates.template import FormatSetting
from prompt_aug.typed import (
    UNSET,
    Above0,
    Count,
    Names,
    Part,
    Positive,
    Record,
    Seed,
    Share,
    Text,
    Weight,
    shown,
)
from prompt_aug.verifiers import VerifierLimits


def setting(default: Any, meaning: str) -> Any:
    """Return the field of a setting that a resumed run may not change."""
    return Field(default, description=meaning)


def free(default: Any, meaning: str) -> Any:
    """Return the field of a setting that a resumed run may change."""
    return Field(default, description=meaning, json_schema_extra={"free": True})


def _validation(key: str) -> str:
    source = key.removeprefix("val/").removesuffix("/accuracy")
    if key != f"val/{source}/accuracy" or not source:
        raise ValueError("should be val/SOURCE/accuracy, SOURCE a data_source of data.val_files")
    return key


ValidationKey = Annotated[str, AfterValidator(_validation)]


class Augment(Record):
    """Prompt augmentation, arXiv 2602.03190."""

    bank: Text | None = setting(None, "null: our 13; papers; or a file")
    templates: Names | None = setting(None, "names to draw from; null: the whole bank")
    mode: Mode = setting("per_question", "per_question (the paper), per_rollout or fixed")
    format: FormatSetting = setting("strict", "strict, or published: each marker once")
    style: Style = setting("auto", "auto, chat, raw (base models), bare, row (its messages)")
    instruction: Turn = setting("system", "instruction's turn: system, user")
    system: System = setting("row", "system prompt: row (the row's own, if any) or template")
    validation_template: Text = setting("qwen-math", "template of validation prompts")


class Overlong(Record):
    """DAPO's soft overlong punishment, arXiv 2503.14476."""

    enable: bool = setting(False, "punish long responses")
    buffer: Positive | None = setting(None, "tokens of the ramp; null: a fifth of the limit")
    factor: Above0 = setting(1.0, "largest penalty; 0.5 is DAPO's 1, whose rewards are +-1")


class Reward(Record):
    """reward = score + format_weight x format - overlong."""

    verifiers: dict[str, Text] | None = setting(None, "{DATA_SOURCE: my.check}; else the grader")
    verifier_limits: VerifierLimits = free(VerifierLimits(), "of one call")
    format_weight: Weight = setting(1.0, "weight of the format reward")
    extraction: ExtractionName = setting("default", "strict (a box), default, last_number")
    unworked: Literal["pay", "refuse"] = setting("pay", "(16-3-4)*2 for 18: pay, refuse")
    overlong: Overlong = Overlong()


class Rollout(Record):
    """Requests to the engine."""

    poll_seconds: Above0 = free(0.5, "between two looks for finished groups")
    request_seeds: bool = setting(False, "a seed per rollout, equal in all runs; slower")
    joint_limit: bool = setting(False, "max_model_len may be shorter, and ends responses")
    hang_seconds: Above0 = free(3600, "end after so long without progress")


class Rephrasings(Record):
    """TA-GRPO, arXiv 2601.22478: rephrasings join the question's group."""

    count: Count = setting(0, "N of a question, which gets (N+1) x G responses")
    ratio: Literal["anchored", "own"] = setting("anchored", "own: trained under its prompt")


class Advantage(Record):
    """reward -> advantage, over whole groups (recipe/algorithms)."""

    name: Text = setting("grpo", "a function of recipe/algorithms, verl:NAME, or a dotted path")
    arguments: dict[str, Any] | None = setting(None, "keyword arguments of the function")


class GaussianCovariance(Record):
    """CW-GRPO, arXiv 2605.11538. `recipe.weights.arguments` can override parts of the preset."""

    preset: Text = setting("paper", "paper or official_code")
    gradient: Literal["detached", "through"] | None = setting(
        None, "of w: constant, or as the authors; null: through where it can"
    )


class ClipCov(Record):
    """Clip-Cov, arXiv 2505.22617, over the whole batch."""

    ratio: Part = setting(0.0002, "share of the tokens that lose their gradient")
    lower: float = setting(1.0, "drawn from tokens of a larger covariance")
    upper: float = setting(5.0, "and of a smaller one")


class TokenWeights(Record):
    """A factor for every token's advantage (recipe/algorithms)."""

    name: Text = setting("none", "none, a function of recipe/algorithms, or a dotted path")
    arguments: dict[str, Any] | None = setting(None, "keyword arguments of the function")
    gaussian_covariance: GaussianCovariance = GaussianCovariance()
    clip_cov: ClipCov = ClipCov()


class DynamicSampling(Record):
    """Bounds on algorithm.filter_groups (DAPO, arXiv 2503.14476)."""

    max_gen_batches: Positive = free(10, "a step generates <= this x batches")
    on_exhausted: Literal["train", "stop"] = free("train", "or stop: end the run")


class History(Record):
    """HAPO, arXiv 2505.11225: reward for beating one's shortest answer."""

    enable: bool = setting(False, "add the length reward")
    weight: Above0 = setting(1.0, "of the length reward")


class Curriculum(Record):
    """Prefer questions whose pass rate in this run is near the target."""

    enable: bool = setting(False, "choose the questions of a step")
    candidates: Positive = setting(4, "candidate questions for each one taken")
    target: Share = setting(0.5, "pass rate")
    value_model: bool = setting(False, "the critic predicts the pass rates, as in PCL")


class Recipe(Record):
    """The section `recipe`."""

    name: Text = free(UNSET, "the example sets it")
    method: Text | None = free("${hydra:runtime.choices.method}", "chosen method")
    run_dir: Text = free("runs/${recipe.name}", "run folder")
    seed: Seed = setting(42, "data order, draws, engine sampling, model initialisation")
    save_rollouts_every: Count = free(1, "steps between files; 0: never")
    save_tensors_every: Count = free(0, "(ids, log-probs, ...) as above")
    keep_every: Positive | None = free(None, "also keep the checkpoints of every m-th step")
    keep_best: ValidationKey | None = free(None, "and the best by val/SOURCE/accuracy")
    # verl's key of the model has the same value, and may not change.
    model_path: Text | None = free(None, "start model: a folder or hub id")
    augment: Augment = Augment()
    reward: Reward = Reward()
    rollout: Rollout = Rollout()
    rephrasings: Rephrasings = Rephrasings()
    advantage: Advantage = Advantage()
    weights: TokenWeights = TokenWeights()
    dynamic_sampling: DynamicSampling = DynamicSampling()
    overlong_filter: bool = setting(False, "leave truncated responses out of the loss (DAPO)")
    history: History = History()
    curriculum: Curriculum = Curriculum()
    source_weights: dict[str, Above0] | None = setting(None, "{DATA_SOURCE: weight of its rows}")
    one_question: Text | Count | None = setting(None, "uid of the only training question")


def defaults() -> dict[str, Any]:
    """Return the section `recipe` with every default, interpolations unresolved."""
    return Recipe().model_dump(warnings=False)


def fields(
    section: BaseModel | None = None, prefix: str = "recipe"
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield (full key, field) of every setting."""
    for name, field in type(section := section or Recipe()).model_fields.items():
        inner = getattr(section, name)
        if isinstance(inner, BaseModel) and not isinstance(inner, VerifierLimits):
            yield from fields(inner, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", field


def free_keys() -> frozenset[str]:
    """Return the settings that may change when a run is resumed."""
    return frozenset(key for key, field in fields() if field.json_schema_extra)


def page() -> str:
    """Return every setting with its default and meaning, a line each."""
    lines = []
    for key, field in fields():
        value = "" if isinstance(field.default, BaseModel) else f"={shown(field.default)}"
        lines.append(f"{key + value:<60}  # {field.description}")
    return "\n".join(lines)
