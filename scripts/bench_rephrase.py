"""Our own time per request, and what kills lose, of `python -m prompt_aug.rephrase`.

    python scripts/bench_rephrase.py --questions 7498 --samples 3
    python scripts/bench_rephrase.py --questions 400 --kills 50

Both run the real command against a scripted server in this process that answers at once (or, with
--kills, after 20 ms). The first prints seconds per request of the command, server included, and of
the checks; the second kills the command at random moments after its first request, lets it end, and
compares the file with that of a run without kills.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from scripted_endpoint import Reply, chat, serving

from prompt_aug.commands import make_parser
from prompt_aug.questions import make_question, write_parquet

CONCURRENCY = 16


def text(i: int) -> str:
    return f"Ada has {10 + i} apples and buys {30 + 2 * i} more. How many are there now?"


def reply(body: dict[str, Any], delay: float) -> Reply:
    asked = body["messages"][0]["content"].rpartition("Question: ")[2]
    a, b = [int(word) for word in asked.split() if word.isdigit()][:2]
    texts = [
        f"{b} apples are bought by Ada, who already has {a}. Afterwards, how many are there?",
        f"At first there are {a} apples in the basket of Ada; then {b} are added. Find the total.",
        f"How many apples will Ada own after buying {b}, with {a} at the start?",
    ]
    return Reply(chat((texts * 3)[: body["n"]]), delay=delay)


def write_questions(folder: Path, count: int) -> Path:
    path = folder / "questions.parquet"
    questions = [
        make_question(text=text(i), answers=[str(40 + 3 * i)], source="own") for i in range(count)
    ]
    write_parquet(questions, path)
    return path


def command(questions: Path, out: Path, url: str, samples: int) -> list[str]:
    arguments = [str(questions), str(out), "--model", "m", "--base-url", url]
    arguments += ["--n", str(samples), "--candidates", str(samples)]
    arguments += ["--per-request", "1" if samples == 1 else str(samples)]
    return [sys.executable, "-m", "prompt_aug.rephrase", *arguments]


def timed(arguments: list[str]) -> tuple[float, float]:
    """(wall, processor) seconds of a run of the command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def own_time(folder: Path, count: int, samples: int, per_request: int) -> None:
    """Wall and processor time of a whole run."""
    questions, out = write_questions(folder, count), folder / "out.parquet"
    with serving(lambda n, body: reply(body, 0.0)) as endpoint:
        arguments = command(questions, out, endpoint.url, samples)
        arguments[-1] = str(per_request)
        wall, used = timed(arguments)
        requests = len(endpoint.bodies)
        again, used_again = timed(arguments)
        assert len(endpoint.bodies) == requests, "the second run asked again"
    result = {
        "questions": count,
        "candidates": count * samples,
        "requests": requests,
        "wall_s": round(wall, 1),
        "processor_s": round(used, 1),
        "second_run_s": round(again, 1),
        "second_run_processor_s": round(used_again, 1),
        "processor_ms_per_request_asked": round(1000 * (used - used_again) / requests, 2),
    }
    print(json.dumps(result))


def kills(folder: Path, count: int, times: int) -> None:
    """Kill a run `times` times; what was asked twice, and whether the result is the same."""
    questions, rng = write_questions(folder, count), random.Random(0)
    with serving(lambda n, body: reply(body, 0.02)) as endpoint:
        out = folder / "killed.parquet"
        arguments = [*command(questions, out, endpoint.url, 3), "--concurrency", str(CONCURRENCY)]
        killed = 0
        while killed < times:
            before = len(endpoint.bodies)
            process = subprocess.Popen(
                arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while len(endpoint.bodies) == before and process.poll() is None:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.02 + 0.04 * count / times / CONCURRENCY))
            if process.poll() is not None:
                break  # it has ended by itself: there are too few questions for so many kills
            killed += 1
            process.kill()
            process.wait()
        answered = sum(1 for _ in (folder / "killed.parquet.work" / "answers.jsonl").open())
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        asked = [json.dumps(body) for body in endpoint.bodies]
        plain = folder / "plain.parquet"
        subprocess.run(
            command(questions, plain, endpoint.url, 3),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    result = {
        "kills": killed,
        "requests_needed": count,
        "requests_sent": len(asked),
        "lost_in_flight_at_most": killed * CONCURRENCY,
        "samples_before_the_last_run": answered,
        "same_file": plain.read_bytes() == out.read_bytes(),
    }
    print(json.dumps(result))
    assert count <= len(asked) <= count + killed * CONCURRENCY
    assert result["same_file"]


def main() -> None:
    parser = make_parser(
        "python scripts/bench_rephrase.py",
        __doc__,
        example="python scripts/bench_rephrase.py --questions 400 --kills 50",
    )
    parser.add_argument("--questions", type=int, default=1000, help="made-up questions")
    parser.add_argument("--samples", type=int, default=3, help="candidates of each")
    parser.add_argument("--per-request", type=int, default=1, help="candidates of one request")
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        help="kills before the end; 0: none, time is measured instead",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.kills:
            kills(Path(folder), options.questions, options.kills)
        else:
            own_time(Path(folder), options.questions, options.samples, options.per_request)


if __name__ == "__main__":
    main()
