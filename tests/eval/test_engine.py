"""What is asked of the machine before an engine starts."""

import os
import subprocess
import sys

import pytest
import torch

from eval.engine import ENVIRONMENT, check_hardware
from eval.errors import EvaluationError
from eval.settings import Settings
from recipe.run.environment import COMMON


def test_cuda_is_not_started_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> bool:
        raise AssertionError("this starts CUDA, after which forked workers die")

    def counted_by_nvml() -> bool:
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
        return True

    for name in ("init", "_lazy_init", "current_device", "get_device_name"):
        monkeypatch.setattr(torch.cuda, name, started)
    monkeypatch.setattr(torch.cuda, "is_available", counted_by_nvml)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_hardware(Settings(tensor_parallel=2))
    with pytest.raises(EvaluationError, match="needs as many GPUs, this machine shows 2"):
        check_hardware(Settings(tensor_parallel=4))


def test_workers_are_spawned_and_sample_with_vllms_own_sampler() -> None:
    assert ENVIRONMENT["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert COMMON["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_the_sweep_is_imported_without_torch_and_vllm() -> None:
    slow = "{'torch', 'vllm', 'transformers'}"
    program = f"import sys, eval.sweep\nprint(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
