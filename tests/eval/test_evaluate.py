"""From requests to scores.json: kills, more samples, other settings, locks, broken engines."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composed import composed
from fake_engine import FakeEngine, Runner
from omegaconf import OmegaConf

from eval.ask.benchmarks import LoadedBenchmark, known_benchmarks
from eval.ask.engine import Request
from eval.ask.settings import Settings, from_run
from eval.evaluate import Evaluation
from eval.scores.score import regrade
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, read_lines, write_json
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, make_question, to_row
from recipe.rollout.agent_loop import PromptAugmentationAgentLoop
from recipe.run.folder import EvaluationFolder, RunFolder

MakeBenchmark = Callable[..., LoadedBenchmark]


def right(request: Request) -> str:
    return rf"\boxed{{{request.question + 1}}}"


def right_if_even(request: Request) -> str:
    return right(request) if request.question % 2 == 0 else r"\boxed{77}"


def benchmark_of(*questions: Question, **changes: Any) -> LoadedBenchmark:
    given = {"samples": 1, "size": len(questions), **changes}
    return LoadedBenchmark(name="toy", path="p", questions=questions, sha256="0", **given)


def sampled(engine: FakeEngine) -> list[tuple[int, int]]:
    return sorted((request.question, request.key[2]) for request in engine.requests)


def test_lost_questions_are_written_again_without_an_engine(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    before = run(FakeEngine(right), make_benchmark())["benchmarks"]
    path = run.only("*/step_20/toy/questions.jsonl")
    questions = path.read_bytes()
    path.write_bytes(b"".join(questions.splitlines(keepends=True)[2:]))
    engine = FakeEngine(right)
    assert run(engine, make_benchmark())["benchmarks"] == before
    assert path.read_bytes() == questions and engine.starts == 0


def test_scores_by_hand(run: Runner, make_benchmark: MakeBenchmark) -> None:
    def answer(request: Request) -> str:
        # Question 0 is right twice, 1 once, 2 and 3 never, with no answer at all.
        hesitant = "I shall Recheck and rethink it."  # one of eight: the first of question 3
        rest = hesitant if (request.question, request.key[2]) == (3, 0) else "no idea"
        return right(request) if request.question + request.key[2] <= 1 else rest

    scores = run(FakeEngine(answer), make_benchmark(questions=4, samples=2))
    entry = scores["benchmarks"]["toy"]
    assert entry["question_means"] == [1.0, 0.5, 0.0, 0.0]
    assert entry["accuracy"] == 3 / 8
    # Cluster sums (5/4, 1/4, -3/4, -3/4): squares sum to 11/4; times 4/3, over 64.
    assert entry["standard_error"] == pytest.approx((11 / 4 * 4 / 3 / 64) ** 0.5)
    assert entry["pass_at_k"] == {"1": 3 / 8, "2": 1 / 2}
    assert entry["pass_all_k"] == {"1": 3 / 8, "2": 1 / 4}
    assert entry["no_signal_k"] == {"2": 3 / 4}
    assert entry["majority_at_k"] == {"1": 3 / 8, "2": 1 / 2}  # no answer is no vote
    low, high = entry["interval"]
    assert 0 <= low < 3 / 8 < high <= 1
    assert entry["status_rates"] == {"correct": 3 / 8, "no_answer": 5 / 8}
    assert (entry["questions"], entry["samples"], entry["truncation_rate"]) == (4, 8, 0.0)
    assert entry["reflection_rate"] == 1 / 8
    assert scores["average"]["per_question"]["accuracy"] == 3 / 8
    folder = run.only("*/step_20")
    assert scores == json.loads((folder / "scores.json").read_text())
    head, *samples = read_lines(run.only("*/step_20/toy/samples-*.jsonl"))
    engine = FakeEngine(right).facts()
    assert head == {"model": run.checkpoint.identity, "engine": engine}
    assert len(samples) == 8


def test_a_benchmark_may_have_its_own_template(run: Runner, make_benchmark: MakeBenchmark) -> None:
    plain, made = make_benchmark("plain"), make_benchmark("own")
    run(FakeEngine(right), plain)  # an earlier sweep, without the other
    own, engine = dataclasses.replace(made, template="deepseek-r1"), FakeEngine(right)
    scores = run(engine, plain, own)
    assert len(engine.requests) == len(own.questions)  # plain is done already
    entries = scores["benchmarks"]
    named = {name: entry["settings"].get("template") for name, entry in entries.items()}
    assert named == {"plain": None, "own": "deepseek-r1"}
    lines = {name: read_lines(run.only(f"*/step_20/{name}/questions.jsonl"))[0] for name in named}
    assert lines["plain"]["prompt"] != lines["own"]["prompt"]
    assert regrade(EvaluationFolder(run.only("*/step_20")))["benchmarks"] == entries
    # Another template is asked again, beside the old samples.
    run(engine, plain, dataclasses.replace(own, template="open-r1"))
    assert len(engine.requests) == 2 * len(own.questions)


def test_a_tolerance_pays_close_decimals_and_survives_regrading(run: Runner) -> None:
    golds = ("2.50", "4")
    exact = benchmark_of(*(make_question(text=f"{g}?", answers=(g,), source="t") for g in golds))
    close = FakeEngine(lambda request: [r"\boxed{2.51}", r"\boxed{4.01}"][request.question])
    assert run(close, exact)["benchmarks"]["toy"]["question_means"] == [0, 0]
    scores = run(close, dataclasses.replace(exact, tolerance=0.01))
    assert scores["benchmarks"]["toy"]["question_means"] == [1, 0]
    assert scores["benchmarks"]["toy"]["accuracy_under"] == {"strict": 0.5, "default": 0.5}
    assert len(close.requests) == 2, "the stored samples are graded again"
    assert regrade(EvaluationFolder(run.only("*/step_20"))) == scores
    question = make_question(text=r"Compute $13.6(1-\frac14)$.", answers=("10.2",), source="t")
    copied = FakeEngine(lambda request: r"\boxed{13.6(1-\frac{1}{4})}")
    entry = run(copied, benchmark_of(question, tolerance=0.01))["benchmarks"]["toy"]
    assert entry["question_means"] == [0] and entry["status_rates"] == {"echo": 1.0}


# ------------------------------------------------------------------------- kill and resume


def test_a_killed_evaluation_resumes_with_the_same_bytes(
    run: Runner, make_benchmark: MakeBenchmark, tmp_path: Path
) -> None:
    benchmark = make_benchmark(questions=6, samples=2)
    dying = FakeEngine(right_if_even, die_after=8)
    with pytest.raises(KeyboardInterrupt):
        run(dying, benchmark)
    assert dying.stops == 1
    assert not run.contents("scores.json")
    part = run.only("*/step_20/toy/samples-*.jsonl")
    before = part.read_bytes()
    part.write_bytes(before + b'{"uid": "4", "sam')  # torn by the kill
    second = FakeEngine(right_if_even)
    scores = run(second, benchmark)
    assert sampled(second) == [(0, 0), (0, 1), (1, 0), (1, 1)]  # the fake completes the last first
    assert part.read_bytes().startswith(before)
    fresh = Runner(tmp_path / "whole", run.checkpoint)
    assert scores["benchmarks"] == fresh(FakeEngine(right_if_even), benchmark)["benchmarks"]
    grades, expected = (r.only("*/step_20/toy/grades.jsonl").read_bytes() for r in (run, fresh))
    assert grades == expected


# ------------------------------------------------------------------------- what is asked again


def test_more_samples_generate_the_missing_ones_and_fewer_generate_none(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    run(FakeEngine(right), make_benchmark(questions=3, samples=4))
    engine = FakeEngine(right)
    more = run(engine, make_benchmark(questions=3, samples=6))
    assert sampled(engine) == [(q, s) for q in range(3) for s in (4, 5)]
    assert more["benchmarks"]["toy"]["samples"] == 18
    less = run(engine, make_benchmark(questions=2, samples=1))
    assert less["benchmarks"]["toy"]["samples"] == 2 and len(engine.requests) == 6


def test_other_weights_are_sampled_again_and_old_samples_stay(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    toy, two_questions = make_benchmark(), make_benchmark("two_questions", questions=2)
    run(FakeEngine(right), toy, two_questions)
    old = run.contents("samples-*")
    retrained = dataclasses.replace(run.checkpoint, identity={"files": "others"})
    engine = FakeEngine(right_if_even)
    scores = Runner(run.root, retrained)(engine, toy)
    assert len(engine.requests) == 6
    assert list(scores["benchmarks"]) == ["toy"]  # the other's score is of other weights
    assert run.contents("samples-*").items() >= old.items()
    again = FakeEngine(right)
    assert set(run(again, toy, two_questions)["benchmarks"]) == {"toy", "two_questions"}
    assert again.requests == []


def test_a_repeated_question_is_asked_once_and_counts_twice(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    benchmark = make_benchmark(questions=2)
    twice = dataclasses.replace(benchmark, questions=(*benchmark.questions, benchmark.questions[0]))
    engine = FakeEngine(lambda request: right(request) if request.question == 0 else "")
    entry = run(engine, twice)["benchmarks"]["toy"]
    assert sampled(engine) == [(0, 0), (1, 0)]
    assert entry["question_means"] == [1.0, 0.0, 1.0]


def test_a_prompt_that_is_too_long_counts_as_wrong(
    run: Runner, make_benchmark: MakeBenchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = make_benchmark(questions=4)
    long = dataclasses.replace(benchmark.questions[1], text="x" * 2000)
    questions = (benchmark.questions[0], long, *benchmark.questions[2:])
    engine = FakeEngine(right)
    scores = run(engine, dataclasses.replace(benchmark, questions=questions))
    entry = scores["benchmarks"]["toy"]
    assert engine.context == 1024
    assert [question for question, _ in sampled(engine)] == [0, 2, 3]
    assert entry["question_means"] == [1.0, 0.0, 1.0, 1.0]
    assert entry["status_rates"]["prompt_too_long"] == 1 / 4
    assert "1 of 4 questions of toy" in capsys.readouterr().out


def test_the_context_fits_all_benchmarks_or_is_the_requested_one(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    benchmark, engine = make_benchmark(), FakeEngine(right)
    run(engine, benchmark, make_benchmark("a_benchmark_of_a_longer_name"))
    longest = max(len(request.prompt_token_ids) for request in engine.requests)
    assert engine.context == longest + 64 and engine.starts == 1
    run(engine, benchmark, max_model_len=900)
    assert engine.context == 900
    with pytest.raises(UserError, match="max_model_len"):
        run(engine, benchmark, max_model_len=10)


def test_a_lost_completion_is_an_error(run: Runner, make_benchmark: MakeBenchmark) -> None:
    class Lossy(FakeEngine):
        def stream(self, requests: Any) -> Any:
            yield from list(super().stream(requests))[1:]

    with pytest.raises(UserError, match="6 prompts gave 5"):
        run(Lossy(right), make_benchmark())


def test_another_system_prompt_is_another_benchmark(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    """A uid is of text and answers alone."""
    plain, digests = make_benchmark(), []
    for earlier in ((), (("system", "Be brief."),), (("system", "Answer 77."),)):
        asked = [dataclasses.replace(q, earlier=earlier) for q in plain.questions]
        engine = FakeEngine(right)
        benchmark = dataclasses.replace(plain, questions=tuple(asked))
        digests.append(run(engine, benchmark)["benchmarks"]["toy"]["settings"]["sha256"])
        assert len(engine.requests) == len(asked)
    assert digests[0] == plain.sha256 and len(set(digests)) == 3


def test_samples_of_two_engines_in_one_score_are_noted(
    run: Runner, make_benchmark: MakeBenchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    for samples, version, noted in ((1, "0.28", 0), (2, "0.28", 0), (4, "0.31", 2)):
        engine = FakeEngine(right)
        engine.facts = lambda version=version: {"vllm": version}  # type: ignore
        run(engine, make_benchmark(samples=samples))
        assert capsys.readouterr().out.count("of another engine (vllm: '0.28' -> ") == noted


OWN = {"toy": "own_verifiers.even"}


@pytest.mark.config  # starts worker processes
def test_a_verifier_of_the_user_scores_and_grades_again(
    run: Runner, make_benchmark: MakeBenchmark
) -> None:
    """Golds 1 to 6: the grader finds none of them, the verifier takes the three even ones."""
    benchmark, engine = make_benchmark(), FakeEngine(lambda _: "\\boxed{77}")
    entry = run(engine, benchmark)["benchmarks"]["toy"]
    assert entry["accuracy"] == 0.0
    assert not {"verifiers", "parts"} & {*entry, *entry["settings"]}
    entry = run(engine, benchmark, verifiers=OWN)["benchmarks"]["toy"]
    (item,) = run.items
    assert len(engine.requests) == 6  # the same responses, graded again
    assert entry["accuracy"] == 0.5
    assert entry["parts"] == {"score": 0.75}
    assert entry["settings"]["verifiers"]["functions"] == {"toy": "own_verifiers.even"}
    lines = read_lines(item.folder.grades)[1:]
    assert [line["parts"]["score"] for line in lines] == [0.5, 1.0] * 3
    assert item.entry == entry

    older = copy.deepcopy(entry)
    older["settings"]["verifiers"]["sha256"] = {"own_verifiers.even": "older"}
    write_json(item.folder.scores, older)
    (again,) = item.evaluation.items([item.checkpoint])
    assert again.entry is None  # scores of another version of the function
    assert regrade(item.above)["benchmarks"]["toy"] == entry == read_json(item.folder.scores)


# ------------------------------------------------------------------------- same prompt
# A question has the same tokens in the checks, training, validation and evaluation.


# One example per bank, template, format, style and turn that the examples configure.
NAMES = ("grpo", "prompt_aug", "cw_grpo", "ta_grpo")


class Tokenizer:
    """Like DeepSeek-R1-Distill's, whose chat template opens a ``<think>`` tag."""

    chat_template = "opens <think>, reads enable_thinking"
    bos_token, bos_token_id = "<bos>", 0

    def __init__(self) -> None:
        self.encoded: list[list[int]] = []

    def apply_chat_template(self, chat: list[dict[str, str]], **given: object) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat)
        return f"<bos>{turns}<assistant>{given.get('enable_thinking', '')}<think>\n"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [1 + ord(character) for character in text]

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        self.encoded = [self.encode(text, add_special_tokens) for text in texts]
        return {"input_ids": self.encoded}


def checked(config: Any, question: Question) -> list[int]:
    """Return the tokens that the check of lengths measures before a run."""
    tokenizer, prompts = Tokenizer(), Prompts.from_config(config)
    prompts.overlong([question], [prompts.validation_template], tokenizer, 10_000)
    return tokenizer.encoded[0]


def trained(config: Any, question: Question, split: str) -> list[int]:
    """Return the tokens that the agent loop renders for a row of the split."""
    config = OmegaConf.create(OmegaConf.to_container(config))
    name = config.recipe.augment.validation_template
    if split == "train":
        config.recipe.augment.update(mode="fixed", templates=[name], weights=None)
    loop: Any = object.__new__(PromptAugmentationAgentLoop)  # verl's __init__ starts too much
    loop.recipe, loop.tokenizer = config.recipe, Tokenizer()
    loop.prompts = Prompts.from_config(config)
    loop.rollout_config = SimpleNamespace(n=1)
    loop.prompt_length = 10_000
    row = to_row(dataclasses.replace(question, split=split))
    drawn, _, ids = loop.prompt(
        {**row, "raw_prompt": row["prompt"], "session_id": 0}, question.text
    )
    assert drawn == name
    return ids


def evaluated(settings: Settings, benchmark: LoadedBenchmark) -> list[int]:
    evaluation = Evaluation(Path("unused"), settings, [benchmark])
    return list(evaluation.questions.render(benchmark, Tokenizer())[0].ids)


def compare(config: Any, folder: RunFolder, benchmark: LoadedBenchmark) -> None:
    """Write a run folder of `config` and compare the tokens of the four uses."""
    Prompts.from_config(config).write(folder.prompts)
    folder.config.write_text(OmegaConf.to_yaml(config))
    question, settings = benchmark.questions[0], from_run(folder.root)
    ids = checked(config, question)
    assert trained(config, question, "train") == ids
    assert trained(config, question, "test") == ids
    assert evaluated(settings, benchmark) == ids
    # Negative control: another form is another prompt.
    another = "auto" if settings.style == "raw" else "raw"
    assert evaluated(settings.replaced(style=another, chat={}), benchmark) != ids
    folder.prompts.unlink()  # as in a run without that file
    assert from_run(folder.root).form == settings.form


@pytest.mark.config
@pytest.mark.parametrize("name", NAMES)
def test_checks_training_validation_and_evaluation_have_the_same_tokens(
    name: str, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    made = make_benchmark(questions=1)
    for template in {record.template for record in known_benchmarks().values()}:
        benchmark = dataclasses.replace(made, template=template)
        compare(composed(name), RunFolder(tmp_path), benchmark)


@pytest.mark.config
def test_system_prompt_of_a_row_and_chat_arguments_reach_all_four(
    tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    made = make_benchmark(questions=1)
    own = (dataclasses.replace(made.questions[0], earlier=(("system", "Be brief."),)),)
    config = composed("grpo", "+data.apply_chat_template_kwargs={enable_thinking: false}")
    compare(config, RunFolder(tmp_path), dataclasses.replace(made, questions=own))
    assert checked(config, own[0]) != checked(config, made.questions[0])
    assert checked(config, own[0]) != checked(composed("grpo"), own[0])
