"""Checks and environment of the machine before an engine starts."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_tokenizers import qwen_base

from eval import EvaluationError
from eval.engine import (
    Engine,
    Request,
    check_hardware,
    check_heads,
    precision,
)
from eval.settings import Settings
from prompt_aug.base.files import write_json


def test_counting_gpus_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> bool:
        raise AssertionError("this starts CUDA, after which forked workers die")

    for name in ("init", "_lazy_init", "current_device", "get_device_name", "is_available"):
        monkeypatch.setattr(torch.cuda, name, started)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_hardware(Settings(tensor_parallel=2))
    with pytest.raises(EvaluationError, match=r"--tensor-parallel 4 .* 2"):
        check_hardware(Settings(tensor_parallel=4))


@pytest.mark.parametrize(
    ("asked", "multiplies", "computed"),
    [("auto", True, "bfloat16"), ("auto", False, "float32"), ("bfloat16", False, "bfloat16")],
)
def test_precision_on_a_cpu_is_that_of_the_weights_if_it_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Any, multiplies: bool, computed: str
) -> None:
    monkeypatch.setattr("eval.engine.gpus_here", lambda: 0)
    monkeypatch.setattr("eval.engine.multiplies_bfloat16", lambda: multiplies)
    write_json(tmp_path / "config.json", {"dtype": "bfloat16"})
    assert precision(str(tmp_path), Settings(dtype=asked)) == computed


@pytest.mark.config  # imports vllm
def test_a_response_ends_as_in_training_and_a_stop_string_may_be_a_special_token(
    tmp_path: Path,
) -> None:
    pytest.importorskip("vllm")
    tokenizer = qwen_base(tags=True)
    tokenizer.save_pretrained(tmp_path)
    engine, asked = Engine(str(tmp_path), Settings(), 64), list[Any]()
    texts = ["<think>1</think>2<|im_end|>\n<|im_start|>user\n3", "<answer>2</answer>. So"]
    done = [
        SimpleNamespace(
            request_id=str(number),
            finished=True,
            outputs=[SimpleNamespace(token_ids=tokenizer.encode(text), finish_reason="stop")],
        )
        for number, text in enumerate(texts, start=1)
    ]
    add = lambda name, prompt, parameters: asked.append(parameters)  # noqa: E731
    engine._llm = SimpleNamespace(llm_engine=SimpleNamespace(add_request=add, step=lambda: done))
    requests = [
        Request(question=0, key=("u", "p", i), prompt_token_ids=(1,), stop=stop)
        for i, stop in enumerate([(), ("</answer>",)])
    ]
    found = [response["response"] for _, response in engine.stream(requests)]
    assert found == ["<think>1</think>2", "<answer>2</answer>"]
    assert [p.detokenize for p in asked] == [False, True]
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
    assert all({*ends} <= {*p.stop_token_ids} and not p.skip_special_tokens for p in asked)


def test_heads_that_vllm_does_not_support_on_a_cpu_are_rejected(tmp_path: Path) -> None:
    for heads in (4, 8):  # of 32 and 16 dimensions
        shape = {"model_type": "qwen2", "hidden_size": 128, "num_attention_heads": heads}
        write_json(tmp_path / f"{heads}" / "config.json", shape)
    check_heads(str(tmp_path / "4"))
    with pytest.raises(EvaluationError, match=r"--model=.* 16 dimensions, .* 32, 64"):
        check_heads(str(tmp_path / "8"))


@pytest.mark.config  # starts a process
def test_the_sweep_is_imported_without_torch_and_vllm() -> None:
    slow = "{'torch', 'vllm', 'transformers'}"
    program = f"import sys, eval.sweep\nprint(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
