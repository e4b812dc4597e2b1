"""The wider stack: what `recipe/STACK.md` calls accepted passes all checks, the rest is refused."""

import pytest
from changes import changed
from composed import composed

from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.preflight.rules import SHORT

pytestmark = pytest.mark.config

FLASH = "{MODEL}.override_config.attn_implementation=flash_attention_"
ULYSSES = "{A}.ulysses_sequence_parallel_size=2"
ADAM8 = "{A}.optim.optimizer=AdamW8bit {A}.optim.optimizer_impl="
KERNELS = "{MODEL}.use_fused_kernels=true {A}.use_fused_kernels=true "
KERNELS += "{MODEL}.fused_kernel_options.impl_backend="
IS, RS = "{C}.rollout_is=", "{C}.rollout_rs_threshold=0.5_2.0 {C}.rollout_rs="
WITHOUT_BOUNDS = "{A}.clip_ratio=0.2 {A}.clip_ratio_low=null {A}.clip_ratio_high=null"

MUON = "{A}.optim.optimizer_impl=recipe.actor.muon {A}.optim.optimizer=MuonAdamW"
# On the CPU's toy and, with its packages, in a setting for GPUs.
ON_BOTH = [
    "{A}.strategy=fsdp2 {REF}.strategy=fsdp2",
    "{A}.optim.optimizer=SGD",
    MUON,
    KERNELS + "torch",
    *(IS + level for level in ("token", "sequence")),
    f"{IS}token {{C}}.rollout_is_threshold=0.5_5.0",
    *(RS + level for level in ("token_k1", "seq_mean_k1")),
    *(f"{{LOSS}}=dppo_{divergence} {WITHOUT_BOUNDS}" for divergence in ("tv", "kl")),
    *(f"{{A}}.use_kl_loss=true {{A}}.kl_loss_type={kind}" for kind in ("low_var_kl", "k3+")),
]
# (settings, package that they need)
ON_GPUS = [
    ("{A}.strategy=fsdp {REF}.strategy=fsdp", None),
    (f"{FLASH}2 {ULYSSES}", "flash_attn"),
    (f"{FLASH}3 {ULYSSES}", "flash_attn_interface"),
    (KERNELS + "triton", None),
    (KERNELS + "liger", "liger_kernel"),
    ("{MODEL}.use_liger=true", "liger_kernel"),
    ("{R}.quantization=fp8", None),
    ("{R}.quantization=torchao", "torchao"),
    (ADAM8 + "bitsandbytes.optim", "bitsandbytes"),
    (ADAM8 + "torchao.optim", "torchao"),
]
# (settings, reason) on any machine
REFUSED = [
    ("{A}.optim.optimizer=Muon", "2D parameters"),
    (f"{MUON} {{A}}.strategy=fsdp", "strategy=fsdp2"),
    ("{A}.optim.optimizer=LBFGS", "weight_decay"),
    ("{A}.optim.optimizer=AdamW8bit", "no such optimizer"),
    ("{A}.optim.override_optimizer_config={{momentun:0.9}}", "momentun"),
    ("critic.enable=true recipe.advantage.name=verl:gae critic.optim.optimizer=Muon", "critic"),
    (KERNELS + "cuda", "torch, triton, liger"),
    ("{R}.quantization=int4", "fp8"),
    ("{R}.name=sglang", "locks of packages"),
    ("{R}.engine_kwargs.sglang={{x:1}}", "for SGLang"),
    ("{A}.strategy=megatron", "model_engine"),
    ("model_engine=megatron", "FSDP"),
    (f"{FLASH}2 {ULYSSES} {{MODEL}}.use_remove_padding=false", "use_remove_padding=true"),
    ("{C}.loss_type=reinforce", "V1 trainer"),
    ("{A}.use_kl_loss=true {A}.kl_loss_type=full", "k3"),
]


def check(example: str, changes: str) -> None:
    with changed(composed(example), changes.format(**SHORT).split()) as config:
        validate(config)


def refusal(example: str, changes: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check(example, changes)
    return str(refused.value)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages are there."""
    monkeypatch.setattr("recipe.preflight.engine.is_missing", lambda module: False)


@pytest.mark.parametrize("changes", ON_BOTH)
@pytest.mark.parametrize("example", ["toy", "cw_grpo"])
def test_accepted_on_any_machine(example: str, changes: str) -> None:
    check(example, changes)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("changes", [changes for changes, _ in ON_GPUS])
def test_accepted_for_gpus_with_the_package(changes: str) -> None:
    check("cw_grpo", changes)


@pytest.mark.parametrize(("changes", "package"), [case for case in ON_GPUS if case[1]])
def test_refused_without_the_package(
    monkeypatch: pytest.MonkeyPatch, changes: str, package: str
) -> None:
    monkeypatch.setattr(
        "recipe.preflight.engine.is_missing", lambda module: module.split(".")[0] == package
    )
    assert package.replace("_", "-") in refusal("cw_grpo", changes).replace("_", "-")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "changes",
    [
        *("{MODEL}.use_liger=true", "{R}.quantization=fp8", "{A}.strategy=fsdp"),
        *(KERNELS + backend for backend in ("triton", "liger")),
    ],
)
def test_kernels_of_gpus_are_refused_on_a_cpu(changes: str) -> None:
    assert "trainer.device=cpu" in refusal("toy", changes)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_refused_with_the_reason(changes: str, reason: str) -> None:
    assert reason in refusal("cw_grpo", changes)
