"""Checks and environment of the machine before an engine starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eval import EvaluationError
from eval.engine import ENVIRONMENT, check_hardware, prepare_environment
from eval.settings import Settings
from recipe.run.environment import COMMON


def test_workers_are_spawned_and_use_vllms_own_sampler() -> None:
    assert ENVIRONMENT["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"  # forked ones fail with CUDA
    assert COMMON["VLLM_USE_FLASHINFER_SAMPLER"] == "0"  # the other one needs nvcc


def test_counting_gpus_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> bool:
        raise AssertionError("this starts CUDA, after which forked workers die")

    for name in ("init", "_lazy_init", "current_device", "get_device_name", "is_available"):
        monkeypatch.setattr(torch.cuda, name, started)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_hardware(Settings(tensor_parallel=2))
    with pytest.raises(EvaluationError, match=r"--tensor-parallel 4 .* 2"):
        check_hardware(Settings(tensor_parallel=4))


@pytest.mark.config  # starts a process
def test_the_sweep_is_imported_without_torch_and_vllm() -> None:
    slow = "{'torch', 'vllm', 'transformers'}"
    program = f"import sys, eval.sweep\nprint(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("size", "before", "after"),
    [(1000, None, "1"), (1000, "4", "4"), (2**27, None, None), (0, None, None)],
)
def test_small_models_get_one_thread_unless_the_user_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, before: str, after: str
) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # or the function sets it for good
    monkeypatch.setenv("OMP_NUM_THREADS", before or "")
    if before is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    prepare_environment(str(tmp_path))
    assert os.environ.get("OMP_NUM_THREADS") == after
