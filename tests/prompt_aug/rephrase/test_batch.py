"""Batch files on a scripted endpoint: complete, expired in part, and only the rest again."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from rephrase_pipeline import command, rephrase, write_questions
from werkzeug import Request, Response

from prompt_aug.questions import read_parquet
from prompt_aug.rephrase.__main__ import main


class Hosted:
    """Files and batches of a hosted endpoint, as far as the pipeline uses them."""

    def __init__(self, server: HTTPServer) -> None:
        self.files: dict[str, str] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.submitted: list[list[str]] = []
        for path, handle in (
            ("/v1/files", self.upload),
            ("/v1/batches", self.create),
        ):
            server.expect_request(path, method="POST").respond_with_handler(handle)
        server.expect_request(re.compile("/v1/batches/.*")).respond_with_handler(self.retrieve)
        server.expect_request(re.compile("/v1/files/.*/content")).respond_with_handler(self.content)

    def upload(self, request: Request) -> Response:
        name = f"file-{len(self.files)}"
        self.files[name] = request.files["file"].read().decode()
        body = {"id": name, "object": "file", "bytes": 1, "created_at": 0, "filename": "x"}
        return self.json(body | {"purpose": "batch", "status": "processed"})

    def create(self, request: Request) -> Response:
        name = f"batch_{len(self.batches)}"
        body = json.loads(request.data)
        batch = {"id": name, "object": "batch", "status": "in_progress", "created_at": 0}
        self.batches[name] = batch | body
        lines = self.files[body["input_file_id"]].splitlines()
        self.submitted.append([json.loads(line)["custom_id"] for line in lines])
        return self.json(self.batches[name])

    def retrieve(self, request: Request) -> Response:
        return self.json(self.batches[request.path.rpartition("/")[2]])

    def content(self, request: Request) -> Response:
        return Response(self.files[request.path.split("/")[3]])

    @staticmethod
    def json(body: Any) -> Response:
        return Response(json.dumps(body), content_type="application/json")

    def end(self, name: str, status: str, answered: int, garbage: str = "") -> None:
        """Answer the first lines of a batch; the others are in the error file, expired."""
        lines = [
            json.loads(x) for x in self.files[self.batches[name]["input_file_id"]].splitlines()
        ]
        done, left = lines[:answered], lines[answered:]
        self.files[f"{name}-out"] = garbage + "".join(
            json.dumps(
                {
                    "custom_id": line["custom_id"],
                    "response": {"status_code": 200, "body": rephrase(0, line["body"]).body},
                }
            )
            + "\n"
            for line in reversed(done)
        )
        self.files[f"{name}-err"] = "".join(
            json.dumps(
                {"custom_id": x["custom_id"], "response": None, "error": {"code": "batch_expired"}}
            )
            + "\n"
            for x in left
        )
        self.batches[name] |= {"status": status, "output_file_id": f"{name}-out"}
        self.batches[name] |= {"error_file_id": f"{name}-err" if left else None}


@pytest.fixture
def hosted(httpserver: HTTPServer) -> Hosted:
    return Hosted(httpserver)


def run(tmp_path: Path, server: HTTPServer, *more: str) -> int:
    questions = tmp_path / "q.parquet"
    if not questions.exists():
        write_questions(questions, 6)
    return main(command(questions, tmp_path / "out.parquet", server.url_for("/v1"), *more))


def test_a_batch_is_submitted_once_collected_in_part_and_only_the_rest_again(
    tmp_path: Path, httpserver: HTTPServer, hosted: Hosted
) -> None:
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    assert [len(names) for names in hosted.submitted] == [6]
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    assert len(hosted.submitted) == 1, "what is under way is not submitted again"
    assert run(tmp_path, httpserver, "--batch", "collect") == 4, "still in progress"
    hosted.end("batch_0", "expired", answered=4, garbage='{"custom_id": 3}\n{bro\n[]\n')
    assert run(tmp_path, httpserver, "--batch", "collect") == 4
    assert not (tmp_path / "out.parquet").exists()
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    assert hosted.submitted[1] == hosted.submitted[0][4:]
    hosted.end("batch_1", "completed", answered=2)
    assert run(tmp_path, httpserver, "--batch", "collect") == 0
    written = read_parquet(tmp_path / "out.parquet")
    assert {len(question.rephrasings) for question in written} == {3}
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    assert len(hosted.submitted) == 2
    assert run(tmp_path, httpserver) == 0, "the plain way finds the same answers"


def test_a_batch_over_the_budget_is_not_submitted(
    tmp_path: Path, httpserver: HTTPServer, hosted: Hosted
) -> None:
    assert run(tmp_path, httpserver, "--batch", "submit", "--max-requests", "5") == 3
    assert hosted.submitted == []
    limits = ["--max-cost", "0.01", "--price", "1", "1"]
    assert run(tmp_path, httpserver, "--batch", "submit", *limits) == 3
    assert hosted.submitted == []


def test_a_refused_line_is_final(tmp_path: Path, httpserver: HTTPServer, hosted: Hosted) -> None:
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    hosted.end("batch_0", "completed", answered=5)
    name = hosted.submitted[0][5]
    refused = {"status_code": 400, "body": {"error": {"message": "too long"}}}
    hosted.files["batch_0-err"] = json.dumps({"custom_id": name, "response": refused}) + "\n"
    assert run(tmp_path, httpserver, "--batch", "collect") == 0
    assert run(tmp_path, httpserver, "--batch", "submit") == 0
    assert len(hosted.submitted) == 1


def test_an_endpoint_without_batches_is_told(
    tmp_path: Path, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    httpserver.expect_request("/v1/files").respond_with_data("{}", status=404)
    assert run(tmp_path, httpserver, "--batch", "submit") == 1
    assert "batches: NotFoundError" in capsys.readouterr().err
