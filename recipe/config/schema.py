"""The type and the range of every setting: records of `recipe` and `eval`, and verl's keys.

`check_types` refuses, when a configuration is composed, what no run can mean: text for a number,
a temperature of 0, an infinite learning rate. Records are closed: tests compare them with the keys
of recipe.yaml. Defaults stand there, beside what each key does. Of verl's keys those are here that
an example or a group file sets, and those whose impossible values verl accepts silently.

Values of one key only; `recipe.checks` looks at several together.
"""

from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic import ValidationError as PydanticError

from prompt_aug.draw import Mode
from prompt_aug.extraction import ExtractionName
from prompt_aug.templates.rendering import Style, System, Turn
from prompt_aug.templates.template import FormatSetting
from recipe.config.wording import ACTOR, ROLLOUT, WHY, WORDING
from recipe.errors import ConfigError
from recipe.kinds import (
    UNSET,
    Above0,
    Count,
    Names,
    OrAll,
    OrNever,
    Part,
    Positive,
    Record,
    Seed,
    Share,
    Text,
    Texts,
    Weight,
    Weights,
    as_list,
    validated,
)
from recipe.run.evaluation import EvaluationSection


class Toy(Record):
    enable: bool
    cache: Text
    world: Text
    train_questions: Positive | None
    validation_questions: Positive | None
    test_questions: Positive | None
    templates: Names | None
    updates: Positive | None


class Augment(Record):
    bank: Text | None
    templates: Names | None
    weights: Weights | None
    mode: Mode
    format: FormatSetting
    style: Style
    instruction: Turn
    system: System
    validation_template: Text


class Overlong(Record):
    enable: bool
    buffer: Positive
    factor: Above0


class Reward(Record):
    format_weight: Weight
    format_gated: bool
    extraction: ExtractionName
    overlong: Overlong


class Rollout(Record):
    poll_seconds: Above0
    request_seeds: bool
    joint_limit: bool
    hang_seconds: Above0


class Rephrasings(Record):
    count: Count
    ratio: Literal["anchored", "own"]


class Advantage(Record):
    name: Text
    group: Text | None
    arguments: dict[str, Any] | None


class GaussianCovariance(Record):
    preset: Text | None
    centre: Text | None
    advantage_centre: Text | None
    sigma: Text | None
    normaliser: Text | None
    logprob_temperature: Above0 | None


class ClipCov(Record):
    ratio: Part
    lower: float
    upper: float


class TokenWeights(Record):
    name: Text
    arguments: dict[str, Any] | None
    gaussian_covariance: GaussianCovariance
    clip_cov: ClipCov


class DynamicSampling(Record):
    max_gen_batches: Positive
    on_exhausted: Literal["train", "stop"]


class History(Record):
    enable: bool
    weight: Above0
    floor: Annotated[float, Field(ge=-1, le=0)]


class Curriculum(Record):
    enable: bool
    candidates: Positive
    target: Share
    decay: Part


class Recipe(Record):
    """The section `recipe`."""

    name: Text
    method: Text | None
    run_dir: Text
    seed: Seed
    min_free_gib: Weight
    save_rollouts_every: Count
    keep_every: Positive | None
    keep_best: Annotated[str, AfterValidator(validated)] | None
    worker_logs: bool
    model_path: Text | None
    toy: Toy
    augment: Augment
    reward: Reward
    rollout: Rollout
    rephrasings: Rephrasings
    advantage: Advantage
    weights: TokenWeights
    dynamic_sampling: DynamicSampling
    overlong_filter: bool
    history: History
    curriculum: Curriculum
    one_question: Text | Count | None
    save_tensors_every: Count


# verl's own list (verl.utils.tracking, which imports torch): a test holds them together.
Logger = Literal[
    "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard",
    "console", "clearml", "trackio", "file", "rl_insight",
]  # fmt: skip
Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum",
    "seq-mean-token-sum-norm", "seq-mean-token-mean",
]  # fmt: skip
Precision = Literal["float32", "bfloat16", "float16", "fp32", "bf16", "fp16"]
LearningRate = Annotated[float, Field(gt=0, le=1)]
Loggers = Annotated[list[Logger], BeforeValidator(as_list)]


def _per_role(role: str) -> dict[str, Any]:
    """Keys that the actor and the reference model share."""
    return {
        f"{role}.fsdp_config.dtype": Precision,
        f"{role}.fsdp_config.model_dtype": Precision,
        f"{role}.fsdp_config.use_torch_compile": bool,
        f"{role}.entropy_from_logits_with_chunking": bool,
        f"{role}.use_torch_compile": bool,
        f"{role}.ulysses_sequence_parallel_size": Positive,
    }


# verl's keys, with what we let through; what verl itself refuses at once is not repeated.
VERL: dict[str, Any] = {
    "data.train_files": Texts | None,
    "data.val_files": Texts | None,
    "data.seed": Seed | None,
    "data.shuffle": bool,
    "data.train_batch_size": Positive,
    "data.gen_batch_size": Positive | None,
    "data.max_prompt_length": Positive,
    "data.max_response_length": Positive,
    "data.train_max_samples": OrAll,
    "data.val_max_samples": OrAll,
    "data.val_batch_size": Positive | None,
    "data.dataloader_num_workers": Count,
    "data.filter_overlong_prompts": bool,
    "algorithm.filter_groups.enable": bool,
    "algorithm.filter_groups.metric": Text,
    "algorithm.use_kl_in_reward": bool,
    "algorithm.kl_ctrl.kl_coef": Weight,
    **_per_role(ACTOR),
    f"{ACTOR}.strategy": Literal["fsdp", "fsdp2"],
    f"{ACTOR}.ppo_mini_batch_size": Positive,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Positive | None,
    f"{ACTOR}.ppo_max_token_len_per_gpu": Positive,
    f"{ACTOR}.ppo_epochs": Positive,
    f"{ACTOR}.use_dynamic_bsz": bool,
    f"{ACTOR}.data_loader_seed": Seed,
    f"{ACTOR}.entropy_coeff": float,
    f"{ACTOR}.entropy_checkpointing": bool,
    f"{ACTOR}.use_kl_loss": bool,
    f"{ACTOR}.kl_loss_coef": Weight,
    f"{ACTOR}.loss_agg_mode": Aggregation,
    f"{ACTOR}.loss_scale_factor": Above0 | None,
    f"{ACTOR}.clip_ratio": Above0,
    f"{ACTOR}.clip_ratio_low": Weight | None,
    f"{ACTOR}.clip_ratio_high": Weight | None,
    f"{ACTOR}.clip_ratio_c": Annotated[float, Field(gt=1)],
    f"{ACTOR}.tau_pos": Above0,
    f"{ACTOR}.tau_neg": Above0,
    f"{ACTOR}.policy_loss.loss_mode": Text,
    f"{ACTOR}.policy_loss.clip_cov_ratio": Part,
    f"{ACTOR}.policy_loss.clip_cov_lb": float,
    f"{ACTOR}.policy_loss.clip_cov_ub": float,
    f"{ACTOR}.policy_loss.kl_cov_ratio": Part,
    f"{ACTOR}.policy_loss.ppo_kl_coef": Weight,
    f"{ACTOR}.fsdp_config.seed": Seed,
    f"{ACTOR}.optim.lr": LearningRate,
    f"{ACTOR}.optim.lr_warmup_steps": OrNever,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": Share,
    f"{ACTOR}.optim.lr_scheduler_type": Literal["constant", "cosine"],
    f"{ACTOR}.optim.min_lr_ratio": Share | None,
    f"{ACTOR}.optim.weight_decay": Weight,
    f"{ACTOR}.optim.betas": Annotated[
        list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)
    ],
    f"{ACTOR}.optim.clip_grad": Above0,
    **_per_role("actor_rollout_ref.ref"),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": Positive | None,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": Positive,
    "actor_rollout_ref.model.path": Text | None,
    "actor_rollout_ref.model.external_lib": Texts | None,
    "actor_rollout_ref.model.use_remove_padding": bool,
    "actor_rollout_ref.model.enable_gradient_checkpointing": bool,
    f"{ROLLOUT}.n": Positive,
    f"{ROLLOUT}.seed": Seed,
    f"{ROLLOUT}.temperature": Above0,
    f"{ROLLOUT}.top_p": Part,
    f"{ROLLOUT}.top_k": OrAll,
    f"{ROLLOUT}.name": Literal["vllm"],
    f"{ROLLOUT}.val_kwargs.n": Positive,
    f"{ROLLOUT}.val_kwargs.temperature": Weight,
    f"{ROLLOUT}.val_kwargs.top_p": Part,
    f"{ROLLOUT}.val_kwargs.top_k": OrAll,
    f"{ROLLOUT}.dtype": Precision,
    f"{ROLLOUT}.gpu_memory_utilization": Part,
    f"{ROLLOUT}.max_num_seqs": Positive,
    f"{ROLLOUT}.max_model_len": Positive | None,
    f"{ROLLOUT}.tensor_model_parallel_size": Positive,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": Positive | None,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": Positive,
    f"{ROLLOUT}.agent.num_workers": Positive,
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": Positive,
    f"{ROLLOUT}.enforce_eager": bool,
    f"{ROLLOUT}.free_cache_engine": bool,
    f"{ROLLOUT}.enable_sleep_mode": bool | None,
    "reward.num_workers": Positive,
    "trainer.device": Literal["cpu", "cuda"],
    "trainer.nnodes": Positive,
    "trainer.n_gpus_per_node": Positive,
    "trainer.total_training_steps": Positive,
    "trainer.total_epochs": Positive,
    "trainer.save_freq": OrNever,
    "trainer.test_freq": OrNever,
    "trainer.max_actor_ckpt_to_keep": Positive | None,
    "trainer.logger": Loggers,
    "trainer.project_name": Text,
    "trainer.experiment_name": Text,
    "trainer.default_local_dir": Text,
    "trainer.val_before_train": bool,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": Positive,
    "ray_kwargs.ray_init.num_cpus": Positive | None,
}

_OURS: dict[str, TypeAdapter] = {
    "recipe": TypeAdapter(Recipe),
    "eval": TypeAdapter(EvaluationSection),
}
_VALUE = ConfigDict(strict=True, allow_inf_nan=False)
_VERL = {key: TypeAdapter(kind, config=_VALUE) for key, kind in VERL.items()}


def check_types(config: DictConfig) -> None:
    """Refuse values of a wrong type or out of range; ConfigError with all of them, one a line."""
    found: dict[str, str] = {}
    for section, adapter in _OURS.items():
        found |= _problems(adapter, _plain(config[section]), section)
    for key, adapter in _VERL.items():
        found |= _problems(adapter, _value(config, key), key)
    # Of keys that follow another one (data.seed is recipe.seed) the first is named.
    told = {message.partition("=")[2] or key: message for key, message in reversed(found.items())}
    if told:
        raise ConfigError("\n".join(reversed(told.values())))


def _value(config: DictConfig, key: str) -> Any:
    try:
        return _plain(OmegaConf.select(config, key, throw_on_missing=True))
    except MissingMandatoryValue:
        return UNSET


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _problems(adapter: TypeAdapter, value: Any, key: str) -> dict[str, str]:
    """{full key: what is wrong with it} of a setting, or of a section, named `key`."""
    try:
        adapter.validate_python(value)
    except PydanticError as error:
        lines: dict[str, str] = {}
        for problem in error.errors(include_url=False):
            name = _full_key(key, problem["loc"])
            lines.setdefault(name, _message(name, problem))
        return lines
    return {}


def _full_key(key: str, place: tuple[int | str, ...]) -> str:
    """``recipe`` and (augment, weights, 1) -> ``recipe.augment.weights[1]``."""
    for part in place:
        if part in ("constrained-str", "constrained-int"):  # an alternative, not a key
            continue
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    return key


def _message(key: str, problem: Any) -> str:
    value, kind = problem["input"], problem["type"]
    if kind == "missing" or value is None or value == UNSET:
        return f"{key} is not set: give it a value in the example, or as {key}=VALUE"
    said = WORDING.get(kind) or problem["msg"].replace("Input should", "should")
    said = said.removeprefix("Value error, ")
    why = WHY.get(key)
    return f"{key}={shown(value)}: {said}" + (f" ({why})" if why else "")


def shown(value: Any) -> str:
    """A value as it is written in yaml and on the command line."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
