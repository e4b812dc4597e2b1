"""Our exports and protocols in lm-evaluation-harness and inspect_ai: see README.md."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluated import SETTINGS, write_checkpoint
from tiny_model import save_tiny
from vllm_server import serving_model

from eval.publish.__main__ import main
from prompt_aug.base.files import read_json, read_lines, write_lines
from prompt_aug.prepare.sources import load_rows

PYTHON = os.environ.get("INTEROP_PYTHON", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not PYTHON, reason="needs INTEROP_PYTHON (tests/interop/README.md)"),
]
ROOT = Path(__file__).resolve().parents[2]
TOKENS, STOP = 64, "Question:"
PROMPT = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
READER = """
import json, sys
from inspect_ai.log import read_eval_log
from lm_eval.utils import get_results_filenames, get_sample_results_filenames
log, files = read_eval_log(sys.argv[1]), sys.argv[2:]
print(json.dumps({
    "top_k": log.plan.config.top_k, "stop": log.plan.config.stop_seqs,
    "status": log.status, "task": log.eval.task, "epochs": log.eval.config.epochs,
    "metrics": {k: m.value for k, m in log.results.scores[0].metrics.items()},
    "scores": [s.scores["grader"].value for s in log.samples],
    "results": get_results_filenames(files), "samples": get_sample_results_filenames(files),
}))
"""


def theirs(*arguments: str, offline: bool = False) -> str:
    """Run a command in the other environment, which must not see our packages."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    done = subprocess.run([PYTHON, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_both_packages_read_the_exports(tmp_path: Path) -> None:
    run = tmp_path / "grpo"
    settings = {**SETTINGS, "top_k": 20, "stop": ["END"]}
    outcomes = {"toy": [[1, 0], [1, 1], [0, 0], [1, 1]]}
    write_checkpoint(run / "eval" / "s", 20, outcomes, settings=settings)
    assert (
        main([str(run), "--lm-eval", str(tmp_path / "lm"), "--inspect", str(tmp_path / "i")]) == 0
    )
    (log,), names = (tmp_path / "i").iterdir(), [str(p) for p in (tmp_path / "lm").rglob("*.json*")]
    found = json.loads(theirs("-c", READER, str(log), *names))
    assert (found["status"], found["task"], found["epochs"]) == ("success", "toy", 2)
    assert (found["top_k"], found["stop"]) == (20, ["END"])
    assert found["metrics"]["accuracy"] == 5 / 8 and found["scores"].count("C") == 5
    assert sorted([*found["results"], *found["samples"]]) == sorted(names)


def task_of(name: str, data: Path, folder: Path) -> None:
    """A task of the harness with the prompt of our template."""
    task = {
        "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test", "output_type": "generate_until",
        "doc_to_text": PROMPT % "{{question}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": [STOP], "do_sample": False, "temperature": 0.0, "max_gen_toks": TOKENS,
        },
        "filter_list": [{"name": "boxed", "filter": [
            {"function": "regex", "regex_pattern": r"boxed\{([^{}]*)\}", "group_select": -1},
            {"function": "take_first"},
        ]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def stored_questions(shared_data: Path) -> dict[str, list[dict[str, str]]]:
    numbers = [(i, 3 * i % 500 + 100) for i in range(101, 900, 40)]
    sums = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in numbers]
    rows = load_rows(str(shared_data / "evaluation_suite" / "math"))
    names = {"question": "problem", "answer": "answer"}
    count = int(os.environ.get("INTEROP_QUESTIONS", "20"))
    math500 = [{k: str(row[v]) for k, v in names.items()} for row in rows][:count]
    found = {"sums": sums, "math500_part": math500}
    if file := os.environ.get("INTEROP_GSM8K"):
        gsm8k = [
            {**row, "answer": row["answer"].split("#### ")[1]} for row in read_lines(Path(file))
        ]
        found["gsm8k_part"] = gsm8k[:count]
    return found


def test_the_same_protocol_gives_the_same_responses_and_scores(
    tmp_path: Path, shared_data: Path
) -> None:
    model, tasks = Path(os.environ.get("INTEROP_MODEL") or tmp_path / "model"), tmp_path / "tasks"
    if not model.exists():
        save_tiny(model, seed=5, positions=2048)
    tasks.mkdir()
    template = {"category": "own", "user": PROMPT % "{question}"}
    (tmp_path / "bank.yaml").write_text(yaml.safe_dump({"templates": {"plain": template}}))
    questions = stored_questions(shared_data)
    for name, rows in questions.items():
        write_lines(tmp_path / f"{name}.jsonl", rows)
        task_of(name, tmp_path / f"{name}.jsonl", tasks)
    with serving_model(model, "served", tmp_path / "log", length=2048) as url:
        ours = [sys.executable, "-m", "eval.sweep", "--endpoint", url, "--model", "served"]
        ours += ["--tokenizer", str(model), "--out", str(tmp_path / "out"), "--style", "bare"]
        ours += ["--bank", str(tmp_path / "bank.yaml"), "--template", "plain", "--stop", STOP]
        ours += ["--max-tokens", str(TOKENS), "--extraction", "strict"]
        ours += [f"--benchmark={name}={tmp_path / name}.jsonl" for name in questions]
        subprocess.run(ours, cwd=ROOT, check=True)
        where = f"model=served,base_url={url}/completions,tokenizer_backend=None,num_concurrent=8"
        theirs("-m", "lm_eval", "run", "--model", "local-completions", "--model_args", where,
               "--tasks", ",".join(questions), "--include_path", str(tasks), "--log_samples",
               "--output_path", str(tmp_path / "theirs"))  # fmt: skip
    (results,) = (tmp_path / "theirs").rglob("results_*.json")
    for name in questions:
        (folder,) = (tmp_path / "out").glob(f"*/served/{name}")
        (file,) = results.parent.glob(f"samples_{name}_*.jsonl")
        found = {line["doc"]["question"]: line["resps"][0][0] for line in read_lines(file)}
        assert responses_of(folder) == found and len(set(found.values())) > 10
        accuracy = read_json(results)["results"][name]["exact_match,boxed"]
        assert read_json(folder / "scores.json")["accuracy"] == accuracy


def responses_of(folder: Path) -> dict[str, Any]:
    """Our responses by question, without the stop string, which the harness drops."""
    texts = {q["uid"]: q["question"] for q in read_lines(folder / "questions.jsonl")}
    lines = [line for p in folder.glob("samples-*.jsonl") for line in read_lines(p)[1:]]
    return {texts[line["uid"]]: line["response"].removesuffix(STOP) for line in lines}
