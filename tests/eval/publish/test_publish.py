"""What other tools are given: their files by hand, their own readers where they are installed."""

import json
import re
import shutil
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluated import write_checkpoint
from huggingface_hub import HfApi, ModelCard, constants
from pytest_httpserver import HTTPServer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from werkzeug import Request, Response

from eval.publish import card
from eval.publish.__main__ import main
from eval.publish.evaluated import evaluated
from prompt_aug.base.files import read_json, read_lines, write_json, write_lines
from prompt_aug.questions import make_question, write_parquet

OUTCOMES = {"toy": [[1, 0], [1, 1], [0, 0], [1, 1]]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "grpo"
    write_checkpoint(folder / "eval" / "s", 0, {"toy": [[0, 0]] * 4})
    write_checkpoint(folder / "eval" / "s", 20, OUTCOMES, response="thus \ud800<b>", gold="7")
    exported = folder / "hf" / "step_20"
    exported.mkdir(parents=True)
    (exported / "config.json").write_text("{}")
    write_json(exported / "manifest.json", {"step": 20, "files": {"config.json": "x"}})
    write_json(folder / "hf" / "step_0" / "manifest.json", {"step": 0, "model_path": "some/model"})
    return folder


def unasked(benchmark: Path, number: int) -> None:
    """Make a question of a benchmark one that was too long to be asked."""
    questions = read_lines(benchmark / "questions.jsonl")
    questions[number]["asked"] = False
    write_lines(benchmark / "questions.jsonl", questions)


def test_nothing_asked_and_unknown_steps_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run)]) == 2
    assert main([str(run), "--steps", "30", "--card"]) == 1
    assert main([str(run), "--push", "me/model"]) == 2
    told = capsys.readouterr().err
    assert "nothing to do" in told and "no scores of the steps [30]: [0, 20]" in told
    assert "--push uploads one checkpoint" in told


def test_samples_for_the_harness(run: Path, tmp_path: Path) -> None:
    assert main([str(run), "--steps", "20", "--lm-eval", str(tmp_path / "lm")]) == 0
    folder = tmp_path / "lm" / "grpo-step_20"
    (results,) = folder.glob("results_*.json")
    date = results.stem.removeprefix("results_")
    lines = read_lines(folder / f"samples_toy_{date}.jsonl")
    assert [line["exact_match"] for line in lines] == [0.5, 1.0, 0.0, 1.0]
    assert lines[0]["resps"] == [["thus \ud800<b>"] * 2] and lines[0]["target"] == "7"
    assert lines[0]["arguments"] == {
        "gen_args_0": {"arg_0": "question 0\n", "arg_1": {"temperature": 0.0}}
    }
    record = read_json(results)
    assert record["results"]["toy"]["exact_match,none"] == 5 / 8
    assert record["n-samples"] == {"toy": {"original": 4, "effective": 4}}


def test_a_log_for_the_viewer(run: Path, tmp_path: Path) -> None:
    assert main([str(run), "--steps", "20", "--inspect", str(tmp_path / "logs")]) == 0
    (path,) = (tmp_path / "logs").glob("*_toy_*.eval")
    with zipfile.ZipFile(path) as log:
        names = set(log.namelist())
        header = json.loads(log.read("header.json"))
        sample = json.loads(log.read("samples/toy-0-0_epoch_2.json"))
    assert len([name for name in names if name.startswith("samples/")]) == 8
    assert {"header.json", "summaries.json", "_journal/start.json"} <= names
    assert header["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 5 / 8
    assert header["eval"]["config"]["epochs"] == 2
    assert sample["scores"]["grader"] == {"value": "I", "answer": "7", "explanation": "no_answer"}
    assert sample["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert (sample["input"], sample["messages"][0]["content"]) == ("question 0", "question 0\n")
    assert header["results"]["scores"][0]["metrics"]["pass@2"]["value"] == 0.75
    # 3 tokens of a prompt and 10 of a response
    used = {"input_tokens": 3, "output_tokens": 10, "total_tokens": 13}
    assert sample["model_usage"] == {"vllm/grpo-step_20": used}
    total = {name: 8 * count for name, count in used.items()}
    assert header["stats"]["model_usage"] == {"vllm/grpo-step_20": total}


def test_a_question_that_was_not_asked_costs_nothing_in_the_log(run: Path, tmp_path: Path) -> None:
    unasked(run / "eval" / "s" / "step_20" / "toy", 2)
    assert main([str(run), "--steps", "20", "--inspect", str(tmp_path / "logs")]) == 0
    (path,) = (tmp_path / "logs").glob("*_toy_*.eval")
    with zipfile.ZipFile(path) as log:
        header = json.loads(log.read("header.json"))
        sample = json.loads(log.read("samples/toy-2-0_epoch_1.json"))
    assert sample["output"]["choices"][0]["stop_reason"] == "model_length"
    assert set(sample["output"]["usage"].values()) == {0}
    (usage,) = header["stats"]["model_usage"].values()
    assert usage == {"input_tokens": 18, "output_tokens": 60, "total_tokens": 78}  # of 6 samples


def test_inspect_ai_reads_the_log(run: Path, tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed")
    unasked(run / "eval" / "s" / "step_20" / "toy", 2)
    assert main([str(run), "--steps", "20", "--inspect", str(tmp_path / "logs")]) == 0
    (path,) = (tmp_path / "logs").glob("*_toy_*.eval")
    read = log.read_eval_log(str(path))
    metrics = {name: metric.value for name, metric in read.results.scores[0].metrics.items()}
    assert (metrics["accuracy"], metrics["pass@2"]) == (5 / 8, 0.75)
    assert (read.status, read.eval.model) == ("success", "vllm/grpo-step_20")
    assert read.eval.config.epochs == 2
    assert read.eval.metadata["template"] == "qwen-math"
    verdicts = [sample.scores["grader"].value for sample in read.samples]
    assert verdicts == list("CCIC" + "ICIC")  # epoch by epoch
    stops = [sample.output.stop_reason for sample in read.samples]
    assert stops[2:5] == ["model_length", "stop", "max_tokens"]
    assert read.samples[0].output.completion == "thus \ud800<b>"
    assert not any(sample.error for sample in read.samples)
    (usage,) = read.stats.model_usage.values()
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (18, 60, 78)
    summaries = log.read_eval_log_sample_summaries(str(path))
    assert {(s.id, s.epoch, s.input) for s in summaries} == {
        (f"toy-{q}-0", epoch, f"question {q}") for q in range(4) for epoch in (1, 2)
    }


@pytest.mark.config  # imports torch
def test_scores_in_tensorboard_are_replaced_and_not_repeated(run: Path) -> None:
    training = run / "tensorboard" / "events.out.tfevents.1.host"
    training.parent.mkdir()
    training.write_bytes(b"")
    for _ in range(2):
        assert main([str(run), "--log", "tensorboard"]) == 0
    assert training.exists()
    events = EventAccumulator(str(training.parent)).Reload()
    points = [(e.step, e.value) for e in events.Scalars("eval/toy/accuracy")]
    assert points == [(0, 0.0), (20, 0.625)]
    assert events.Scalars("eval/toy/pass@2")[-1].value == 0.75


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log with wandb's header of 7 bytes: (crc, length, kind), bytes."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # a block's end that holds no header
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.config  # starts wandb's process
def test_scores_in_the_trainings_wandb_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    (run / ".wandb_run_id").write_text("abcd1234")
    assert main([str(run), "--log", "wandb"]) == 0
    (file,) = run.glob("wandb/offline-run-*-abcd1234/run-abcd1234.wandb")
    records: list[Any] = []
    end = time.monotonic() + 60  # wandb's own process writes the file, its end last
    while not any(r.WhichOneof("record_type") == "exit" for r in records):
        assert time.monotonic() < end, "wandb's file has no end"
        time.sleep(0.1)
        data = list(log_records(file.read_bytes()))
        records = [wandb_internal_pb2.Record.FromString(record) for record in data]
    rows = [
        {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    found = [(row["eval/step"], row["eval/toy/accuracy"]) for row in rows]
    assert found == [(0, 0.0), (20, 0.625)]


def test_the_card_has_the_scores_for_a_hub_and_for_people(run: Path) -> None:
    assert main([str(run), "--card"]) == 0
    read = ModelCard.load(run / "hf" / "step_20" / "README.md")
    (result,) = read.data.eval_results or []
    assert (result.dataset_name, result.metric_value) == ("toy", 62.5)
    assert "| toy | 4 of 4 x 2 | 62.5" in read.text
    assert "\n- role: user\n  content: '{question}'\n" in read.text
    assert (read.data.base_model, read.data.license) == (None, None)  # nothing is on record
    assert not (run / "hf" / "step_0" / "README.md").exists()  # it is somebody else's model
    (run / "hf" / "step_20" / "manifest.json").unlink()
    assert main([str(run), "--steps", "20", "--card"]) == 1


def start_from(run: Path, model: str, **sections: Any) -> ModelCard:
    """The card of a run whose configuration names `model` as the start."""
    config = {"actor_rollout_ref": {"model": {"path": model}}, **sections}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main([str(run), "--steps", "20", "--card"]) == 0
    return ModelCard.load(run / "hf" / "step_20" / "README.md")


def test_the_card_names_base_model_license_data_and_method(run: Path, tmp_path: Path) -> None:
    (run / "data").mkdir()
    questions = [make_question(text="1+1?", answers=["2"], source=s) for s in ("gsm8k", "mine")]
    write_parquet(questions, run / "data" / "train.parquet")
    recipe = {"advantage": {"name": "ta_grpo"}, "augment": {"templates": ["abel", "qwen-math"]}}
    card = start_from(run, "Owner/Base-1.5B", recipe=recipe)
    assert (card.data.base_model, card.data.datasets) == ("Owner/Base-1.5B", ["openai/gsm8k"])
    assert "| method | advantage ta_grpo |" in card.text and "abel, qwen-math" in card.text
    assert "| training data | gsm8k, mine |" in card.text
    snapshot = tmp_path / "hub" / "models--Owner--Base" / "snapshots" / "1f"
    assert start_from(run, str(snapshot)).data.base_model == "Owner/Base"


def test_the_license_is_that_of_a_local_base_and_its_path_stays_private(
    run: Path, tmp_path: Path
) -> None:
    base = tmp_path / "private" / "base"
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: mit\n---\n# Base\n")
    card = start_from(run, str(base))
    assert (card.data.license, card.data.base_model) == ("mit", None)
    assert "| base model | base |" in card.text and "private" not in card.content
    toy = {"toy": {"enable": True, "cache": str(tmp_path), "world": "few"}}
    card = start_from(run, str(base), recipe=toy)
    assert card.data.license == "apache-2.0" and "toy world few" in card.text


class Hub:
    """As much of the hub's interface as an upload of small files needs."""

    def __init__(self, server: HTTPServer) -> None:
        self.asked: list[tuple[str, str]] = []
        self.files: dict[str, str] = {}
        self.private: bool | None = None
        server.expect_request("/").respond_with_data("")
        for method in ("GET", "POST", "HEAD"):
            server.expect_request(re.compile("^/.*"), method=method).respond_with_handler(self)
        self.address = server.url_for("").rstrip("/")

    def __call__(self, request: Request) -> Response:
        self.asked.append((request.method, request.path))
        answer: dict[str, Any] = {}
        if request.path.endswith("/repos/create"):
            self.private = request.get_json()["visibility"] == "private"
            answer = {"url": f"{self.address}/me/model", "name": "me/model"}
        elif "/preupload/" in request.path:
            named = [file["path"] for file in request.get_json()["files"]]
            answer = {"files": [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in named
            ]}  # fmt: skip
        elif "/commit/" in request.path:
            for line in request.get_data(as_text=True).splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    self.files[item["value"]["path"]] = item["value"]["content"]
            address = f"{self.address}/me/model/commit/1"
            answer = {"commitUrl": address, "commitOid": "1", "success": True}
        return Response(json.dumps(answer), content_type="application/json")


def test_an_upload_is_private_and_has_the_card(
    run: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(httpserver)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(card, "HfApi", lambda: HfApi(
        endpoint=hub.address, token="none"))  # fmt: skip
    assert main([str(run), "--steps", "20", "--card"]) == 0
    assert hub.asked == []  # nothing leaves without --push
    assert main([str(run), "--steps", "20", "--push", "me/model"]) == 0
    assert hub.private is True
    assert set(hub.files) == {"README.md", "config.json", "manifest.json"}


@pytest.mark.parametrize(
    ("offline", "repository"), [(True, "me/model"), (False, "me/model"), (False, "a/b/c")]
)
def test_an_upload_that_fails_ends_in_one_line(
    offline: bool,
    repository: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoint = "http://127.0.0.1:9"  # nothing listens there
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(card, "HfApi", lambda: HfApi(endpoint=endpoint, token="none"))
    assert main([str(run), "--steps", "20", "--push", repository]) == 1
    told = capsys.readouterr().err
    assert f"--push {repository}" in told and endpoint in told and told.count("\n") == 1


def test_only_a_run_that_is_evaluated_can_be_published(run: Path) -> None:
    assert [one.step for one in evaluated(run, None, None)] == [0, 20]
    shutil.rmtree(run / "eval")
    assert main([str(run), "--card"]) == 1
