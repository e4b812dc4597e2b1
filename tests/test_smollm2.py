"""scripts/smollm2.py: no training question is held out, asked twice, or in the warm start.

scripts/study.py: order of the commands, resumes after kills, lines, what is rejected. Also the
order of the commits: a protocol precedes its lines.
"""

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import smollm2
import study
import yaml
from fake_engine import write_checkpoint

from eval.show.arms import read_protocol
from eval.show.compare import main as compare
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_lines, write_json, write_lines
from prompt_aug.prepare.filters import OverlapIndex, overlapping, words
from prompt_aug.questions import Question, read_parquet
from recipe.run.folder import RunFolder

THINGS = "kites drums coins ropes lamps forks tents belts vases gloves shells stamps".split()


def asked(thing: str, first: str = "Anna") -> str:
    things = f"{thing} in her {thing} box and buys number1 {thing}"
    return f"{first} has number0 {things} , how many {thing} are there ?"


def filled(thing: str) -> str:
    return asked(thing).replace("number0", "7").replace("number1", "2")


def write_csv(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Question", "Numbers", "Equation", "Answer"])
        table.writerows([text, "7.0 2.0", "+ number0 number1", 9] for text in texts)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two held-out folds and SVAMP share a question with training, in other letters."""
    monkeypatch.setattr(smollm2, "SOLVED", 2)
    data = tmp_path / "svamp" / "data"
    write_csv(data / "cv_asdiv-a/fold0/dev.csv", [asked("KITES"), asked("pipes", "Bob")])
    write_csv(data / "cv_asdiv-a/fold1/dev.csv", ["so " + asked("drums") + " tell me now"])
    write_csv(data / "mawps-asdiv-a_svamp/train.csv", [*map(asked, THINGS), asked("LAMPS")])
    body, _, query = filled("coins").partition(" , ")
    row = {"Body": body, "Question": f"And {query}", "Answer": 9.0}
    (data.parent / "SVAMP.json").write_text(json.dumps([row]))
    return data.parent


def made(clone: Path, out: Path, *para: str) -> dict[str, list[Question]]:
    assert smollm2.main(["data", str(out), str(clone), *para]) == 0
    return {path.stem: read_parquet(path) for path in out.glob("*.parquet")}


def overlaps(questions: Sequence[Question], others: Sequence[Question]) -> int:
    index = OverlapIndex({"others": [q.text for q in others]})
    return len(overlapping(list(enumerate(questions)), index))


def test_training_has_no_held_out_question_and_no_repeat(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = made(clone, tmp_path / "out")
    assert {name: len(rows) for name, rows in files.items()} == {
        "train": 7,  # 13 rows: three are held out, one is a repeat, two are of the warm start
        "asdiv_a": 3,
        "svamp": 1,
    }
    assert overlaps(files["train"], [*files["asdiv_a"], *files["svamp"]]) == 0
    assert len({tuple(words(q.text)) for q in files["train"]}) == 7
    output = capsys.readouterr().out
    assert "3 of 13 questions dropped" in output and "1 dropped" in output
    solved, rest = smollm2.training(clone / "data")
    assert len(solved) == 2 and overlaps(rest, solved) == 0


def test_a_repeat_of_a_worked_answer_and_two_answers_to_one_question(clone: Path) -> None:
    train = clone / "data" / smollm2.TRAIN
    solved, before = smollm2.training(clone / "data")
    # All but two words of a worked answer's question, which overlap finds and equality does not.
    near = [
        q.text.replace("7", "number0").replace("2", "number1")[:-2] + "in all ?" for q in solved
    ]
    write_csv(train, [*map(asked, THINGS), *near])
    again, after = smollm2.training(clone / "data")
    assert overlaps(after, again) == 0
    assert len(again) + len(after) <= len(solved) + len(before) + 1
    with train.open("a", newline="") as file:
        csv.writer(file).writerow([asked("Tents"), "7.0 2.0", "- number0 number1", 5])
    assert not [q for part in smollm2.training(clone / "data") for q in part if "ents" in q.text]


def test_rewordings_have_the_answer_and_the_numbers(clone: Path, tmp_path: Path) -> None:
    """A third of the questions with three good rewordings is held out, wording by wording."""
    rows = []
    for number, thing in enumerate(THINGS):
        rows.append({"id": number, "original_text": filled(thing), "ans": 9})
        good = [f"Sum 7 {thing} and 2 {thing} number {n}." for n in "abc"]
        bad = [(f"Sum seven {thing} and 2.", 9), (f"From 7 {thing} take 2.", "5"), ("7 2 ?", "")]
        if thing != THINGS[-1]:  # one question has two only
            bad.append((good.pop(), 9))
        texts = [*bad, *((text, 9) for text in good)]
        for place, (text, answer) in enumerate(texts, start=1):
            rows.append({"id": place * 10_000 + number, "original_text": text, "ans": answer})
    para = tmp_path / "para"
    for name in smollm2.PARAPHRASED:
        (para / name).parent.mkdir(parents=True, exist_ok=True)
        (para / name).write_text("[]" if name.endswith("json") else "id,original_text,ans\n")
    (para / smollm2.PARAPHRASED[0]).write_text(json.dumps(rows))
    files = made(clone, tmp_path / "out", str(para))
    assert files["train"] == made(clone, tmp_path / "other")["train"]
    wordings = [files[f"para_q{n}"] for n in range(4)]
    tested, trained = wordings[0], files["para"]
    assert tested and trained and not {q.uid for q in tested} & {q.uid for q in trained}
    assert {len(part) for part in wordings} == {len(tested)}
    for question in trained:
        assert len(question.rephrasings) == 3 and question.answers == ("9",)
        assert all("7" in text and "2" in text for text in question.rephrasings)
    for same in zip(*wordings, strict=True):  # one order in all files
        assert len({t for t in THINGS if all(t in q.text for q in same)}) == 1
        assert len({q.text for q in same}) == 4
    (para / smollm2.PARAPHRASED[1]).unlink()
    assert smollm2.main(["data", str(tmp_path / "none"), str(clone), str(para)]) == 2
    assert not (tmp_path / "none").exists()


# ------------------------------------------------------------------------- study

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "examples" / "smollm2" / "study"
PROTOCOLS = sorted(STUDY.glob("*.yaml"))
COMMIT = "c0ffee" * 6 + "0000"
RUNS = f"TEST-code-{COMMIT[:12]}"
PROTOCOL = {
    "claim": "TEST",
    "code": COMMIT,
    "question": "does it?",
    "measure": "pass@1",
    "rule": "lower > 0: seen",
    "settings": ["smollm2", "trainer.total_training_steps=20"],
    "arms": {
        "grpo": {"seeds": [3, 4], "settings": ["method=grpo"]},
        "cw": {"seeds": [4], "settings": ["method=cw_grpo"]},
    },
    "evaluations": [
        {"steps": [0], "benchmarks": ["x=x.parquet:4"]},
        {"steps": [20], "benchmarks": ["x=x.parquet:2"]},
        {"steps": [20], "benchmarks": ["greedy=x.parquet:1"], "temperature": 0.0},
    ],
}


class Machine:
    """Stands in for git, the warm start, training, export and sweep; dies before call `die_at`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.die_at: int | None = None
        self.changed, self.weights, self.commit = "", "start", COMMIT

    def __call__(self, command: Sequence[str], folder: Path, **variables: str) -> str:
        if command[0] == "git":
            return self.git([*command], folder)
        assert variables["PYTHONPATH"] == str(folder) and "code-" in folder.name
        if len(self.calls) == self.die_at:
            self.die_at = None
            raise KeyboardInterrupt
        self.calls.append([*command])
        if command[0] == "bash":
            (folder / study.MODEL).parent.mkdir(parents=True, exist_ok=True)
            (folder / study.MODEL).write_text(self.weights)
        else:
            getattr(self, command[2].partition(".")[2])([*command[3:]])
        return ""

    def git(self, command: list[str], folder: Path) -> str:
        if command[1:3] == ["worktree", "move"]:
            Path(command[-2]).rename(command[-1])
        elif command[1] == "worktree":
            code = Path(command[-2])
            (code / "requirements").mkdir(parents=True)
            (code / "requirements/cpu.txt").write_text("scipy")
            (code / "train.parquet").write_text("questions")
        if command[1] == "rev-parse":
            return self.commit
        return self.changed if folder == study.ROOT else ""

    def train(self, settings: list[str]) -> None:
        values = dict(setting.split("=", 1) for setting in settings if "=" in setting)
        self.run = RunFolder(Path(values["recipe.run_dir"]))
        config = {"recipe": {"seed": int(values["recipe.seed"])}}
        write_json(self.run.config, config | {"data": {"train_files": ["train.parquet"]}})
        write_lines(
            self.run.metrics,
            [{"step": n, "actor/entropy": n / 10, "actor/lr": None} for n in range(1, 21)],
        )
        self.run.checkpoint(20).mkdir(parents=True, exist_ok=True)

    def export(self, run: list[str]) -> None:
        RunFolder(Path(run[0])).exported(20).mkdir(parents=True, exist_ok=True)

    def sweep(self, arguments: list[str]) -> None:
        run, temperature, _, _, step, *benchmarks = arguments
        outcomes = {
            text.removeprefix("--benchmark=").partition("=")[0]: [[1, 0, 0, 0][: int(text[-1])]] * 3
            for text in benchmarks
        }
        write_checkpoint(Path(run) / "eval" / f"s{temperature[-3:]}", int(step), outcomes)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(study, "call", made)
    monkeypatch.setattr(study, "multiplies_bfloat16", lambda: True)
    return made


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., int]:
    def start(*more: str, **changes: Any) -> int:
        path = tmp_path / "TEST.yaml"
        path.write_text(json.dumps(PROTOCOL | changes))
        return study.main([str(path), "--work", str(tmp_path / "work"), *more])

    return start


def test_another_model_is_not_the_warm_start(
    machine: Machine, start: Callable[..., int], tmp_path: Path
) -> None:
    settings = ["smollm2", f"recipe.model_path={tmp_path}"]
    assert start(settings=settings) == 2 and not machine.calls
    (tmp_path / "model.safetensors").write_text("another")
    assert start(settings=settings) == 0
    assert ["bash", "scripts/smollm2.sh", "start"] not in machine.calls
    for line in read_lines(tmp_path / "TEST.jsonl"):
        assert line["start_sha"] == hashlib.sha256(b"another").hexdigest()


def test_blocks_of_all_arms_leave_a_line_of_each_result(
    machine: Machine, start: Callable[..., int], tmp_path: Path
) -> None:
    assert start() == 0
    done = [command[1] if command[0] == "bash" else command[2] for command in machine.calls]
    first, other = ["recipe.train", "recipe.export"] + ["eval.sweep"] * 3, ["recipe.train"]
    other += ["recipe.export"] + ["eval.sweep"] * 2  # step 0 once in a block
    begin = ["scripts/smollm2.sh"]
    assert done == [*begin, *first, *begin, *first, *begin, *other]
    lines = read_lines(tmp_path / "TEST.jsonl")
    assert sorted((x["seed"], x["arm"], x["step"], x["set"], x["n"]) for x in lines) == [
        *((3, "grpo", 0, "x", 4), (3, "grpo", 20, "greedy", 1), (3, "grpo", 20, "x", 2)),
        *((4, "cw", 20, "greedy", 1), (4, "cw", 20, "x", 2), (4, "grpo", 0, "x", 4)),
        *((4, "grpo", 20, "greedy", 1), (4, "grpo", 20, "x", 2)),
    ]
    for line in lines:
        assert line["right"] == [1, 1, 1] and line["commit"] == COMMIT
        assert line["start_sha"] == hashlib.sha256(b"start").hexdigest()
        assert line["data_sha"] == hashlib.sha256(b"questions").hexdigest()
        assert line["train"]["entropy"] == [0.55, 1.55] and line["train"]["lr"] == [None, None]
        assert line["distinct"] == 1
    assert not [*tmp_path.rglob("global_step_*"), *tmp_path.rglob("hf")]  # disk
    before = len(machine.calls)
    assert start() == 0
    assert len(machine.calls) == before  # nothing runs again
    assert read_lines(tmp_path / "TEST.jsonl") == lines


def test_a_study_killed_at_any_command_resumes(
    machine: Machine, start: Callable[..., int], tmp_path: Path
) -> None:
    assert start() == 0
    whole, count = read_lines(tmp_path / "TEST.jsonl"), len(machine.calls)
    for place in range(count):
        (tmp_path / "TEST.jsonl").unlink()
        machine.calls, machine.die_at = [], place
        elsewhere = ("--work", str(tmp_path / f"work{place}"))
        assert start(*elsewhere) == 130
        assert start(*elsewhere) == 0
        assert read_lines(tmp_path / "TEST.jsonl") == whole
    torn = (tmp_path / "TEST.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "TEST.jsonl").write_text("".join([*torn[:-1], torn[-1][:40]]))
    # The run is gone: what it lacks would come from another training than what it has.
    assert start() == 1
    RunFolder(tmp_path / "work" / RUNS / "cw_4").checkpoints.mkdir()  # killed while it wrote
    assert start() == 0
    assert read_lines(tmp_path / "TEST.jsonl") == whole


def test_a_worktree_of_a_killed_start_is_made_again(
    machine: Machine, start: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "work" / "code.part" / "requirements").mkdir(parents=True)
    assert start() == 0


def test_another_commit_has_runs_of_its_own(machine: Machine, start: Callable[..., int]) -> None:
    """Else it would evaluate what a killed run of the commit before had trained."""
    machine.die_at = 2  # at the export
    assert start() == 130
    machine.commit = "ab" * 20
    assert start(code=machine.commit) == 0
    trained = [call[-1] for call in machine.calls if call[2] == "recipe.train"]
    assert [Path(run).name for run in trained] == ["grpo_3", "grpo_3", "grpo_4", "cw_4"]
    assert len({*trained}) == 4


def test_two_tasks_do_not_train_the_same_run(
    machine: Machine, start: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits, then sees the lines of the first."""
    assert start() == 0
    whole, train = read_lines(tmp_path / "TEST.jsonl"), machine.train
    (tmp_path / "TEST.jsonl").unlink()

    def train_beside(settings: list[str]) -> None:
        monkeypatch.setattr(machine, "train", train)
        others.append(pool.submit(start, "--index", "1"))  # seed 4
        assert wait(others, timeout=0.5).not_done
        train(settings)

    others = list[Future[int]]()
    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(machine, "train", train_beside)
        assert start("--index", "1") == 0
        assert others[0].result() == 0
    assert read_lines(tmp_path / "TEST.jsonl") == whole[3:]


def test_a_run_evaluated_twice_leaves_no_lines(
    machine: Machine, start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a change of the protocol before its first line."""
    old = tmp_path / "work" / RUNS / "grpo_3" / "eval" / "old"
    write_checkpoint(old, 20, {"greedy": [[1]] * 3})
    assert start() == 1 and "not evaluated once: [('grpo', 3, 'greedy'" in capsys.readouterr().err
    assert not (tmp_path / "TEST.jsonl").exists()
    shutil.rmtree(old)
    assert start() == 0


def test_lines_that_the_protocol_does_not_name_are_refused(
    machine: Machine, start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start() == 0
    path = tmp_path / "TEST.jsonl"
    lines = read_lines(path)
    *others, last = lines
    for wrong, message in (
        ([*lines, last], "'cw', 4"),
        ([*lines, last | {"seed": 5}], "'cw', 5"),
        ([*others, last | {"right": [1, 1, 99]}], "right"),
        ([*others, last | {"decode": "x"}], "TEST.jsonl"),
        ([*others, last | {"n": 64}], "n or commit: [('cw', 4"),
        ([*others, last | {"commit": "other"}], "n or commit: [('cw', 4"),
    ):
        write_lines(path, wrong)
        assert compare(["--protocol", str(tmp_path / "TEST.yaml")]) == 1
        assert message in capsys.readouterr().err


def test_a_protocol_has_a_verdict_when_all_its_runs_are_there(
    machine: Machine, start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking at a part of the runs, and stopping when it pleases, would be another rule."""
    contrast = {"arm": "cw", "baseline": "grpo", "set": "x", "step": 20}
    names = ("other", "grpo", "cw")
    arms = {name: {"seeds": [3, 4], "settings": [f"method={name}"]} for name in names}
    changes = {
        "arms": arms,
        "primary": contrast | {"expected": 9},
        "exploratory": [contrast | {"set": "greedy"}, contrast | {"arm": "other"}],
    }

    def printed() -> str:
        capsys.readouterr()
        assert compare(["--protocol", str(tmp_path / "TEST.yaml")]) == 0
        return capsys.readouterr().out

    assert start("--index", "0", **changes) == 0
    text = printed()
    assert "grpo_4" in text and "grpo_3" not in text
    assert "here" not in text and "seeds x" not in text
    before, machine.die_at = len(machine.calls), len(machine.calls) + 10
    assert start(**changes) == 130  # the arms that decide came first
    methods = [x for call in machine.calls[before:] for x in call if x.startswith("method=")]
    assert methods == ["method=grpo", "method=cw"]
    text = printed()
    assert text.count("2 seeds x 3 questions") == 2 and text.count(" here") == 1
    assert "other_4" in text and "cw_4" not in text
    assert start(**changes) == 0
    assert printed().count("2 seeds x 3 questions") == 3
    lines = read_lines(tmp_path / "TEST.jsonl")
    graded = [x | {"grader": x["arm"]} if x["set"] == "greedy" else x for x in lines]
    write_lines(tmp_path / "TEST.jsonl", graded)  # an exploratory contrast that cannot be made
    assert compare(["--protocol", str(tmp_path / "TEST.yaml")]) == 1
    assert capsys.readouterr().out.count(" here") == 1  # hides no verdict
    write_lines(tmp_path / "TEST.jsonl", lines)
    assert start(**changes, question="Another?") == 1 and "was changed" in capsys.readouterr().err


def test_a_pilot_shows_each_run(
    machine: Machine, start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start() == 0
    capsys.readouterr()
    assert compare(["--protocol", str(tmp_path / "TEST.yaml")]) == 0
    assert "grpo_3, step 20, greedy: 100.0" in (printed := capsys.readouterr().out)
    assert "cw_4, step 20, x: 50.0" in printed


def test_an_array_task_runs_one_block(
    machine: Machine, start: Callable[..., int], tmp_path: Path
) -> None:
    assert start("--index", "1") == 0
    assert {line["block"] for line in read_lines(tmp_path / "TEST.jsonl")} == {4}
    assert start("--index", "2") == 2


def test_what_does_not_start(
    machine: Machine,
    start: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert start(code=None) == 2 and "code=null" in capsys.readouterr().err
    assert start("--work", str(study.ROOT / "runs")) == 2
    assert "outside" in capsys.readouterr().err
    machine.changed = " M TEST.yaml"
    assert start() == 1 and "Commit the protocol" in capsys.readouterr().err
    assert not machine.calls
    machine.changed = ""
    with monkeypatch.context() as patch:
        patch.setattr(study, "multiplies_bfloat16", lambda: False)
        assert start() == 2 and "--any-processor" in capsys.readouterr().err
        assert start("--any-processor", "--index", "0") == 0
    machine.weights = "of another machine"  # the block of seed 3 is begun with "start"
    lines = read_lines(tmp_path / "TEST.jsonl")
    write_lines(tmp_path / "TEST.jsonl", lines[:-1])
    assert start() == 1 and "start model" in capsys.readouterr().err
    write_lines(tmp_path / "TEST.jsonl", lines)  # whole: the next one runs
    assert start() == 0
    starts = {line["seed"]: line["start_sha"] for line in read_lines(tmp_path / "TEST.jsonl")}
    assert starts[3] == hashlib.sha256(b"start").hexdigest() != starts[4]


# ------------------------------------------------------------------------- committed studies


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_committed_protocols_are_whole(path: Path) -> None:
    protocol, _ = read_protocol(path)
    assert protocol.claim == path.stem


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("primary", {"step": 39}, "('nucleus', 39)"),
        ("primary", {"set": "nucleos"}, "nucleos"),
        ("primary", {"arm": "cw_grpo"}, "cw_grpo"),
        ("primary", {"k": 9}, "Take 9"),
        ("primary", {"set": "asdiv_a", "step": 0}, "first arm"),
        ("arms", {"cw": {"seeds": [10, 30]}}, "two seeds"),
        ("gates", [{"arm": "cw", "step": 40, "sets": ["asdiv_a", "nucleus", "greedy"]}], "Take 16"),
        ("gates", [{"arm": "cw", "step": 40, "sets": ["asdiv_a"]}], "at least 2"),
        ("primary", {"baseline": "cw"}, "itself"),
        ("primary", {"drop": ["svamp", "nucleus"]}, "drop: nucleus is compared with itself"),
        ("primary", {"drop": 10, "not_below_k": 1}, "not_below_k"),
        ("evaluations", [{"steps": [40], "benchmarks": ["nucleus=x"]}], "SET=PATH:SAMPLES"),
        (
            "evaluations",
            [{"steps": [40], "benchmarks": ["nucleus=x:8"], "temperature": 0}],
            "has 1 samples",
        ),
        ("evaluations", [{"steps": [40], "benchmarks": ["asdiv_a=x:8", "asdiv_a=x:1"]}], "two of"),
    ],
)
def test_a_protocol_that_could_not_be_evaluated_is_refused(
    tmp_path: Path, part: str, change: Any, message: str
) -> None:
    """Else its runs would end, and their checkpoints be deleted, before anybody saw it."""
    protocol = yaml.safe_load((STUDY / "CW_GRPO.yaml").read_text())
    protocol[part] = {**protocol[part], **change} if isinstance(change, dict) else change
    write_json(tmp_path / "CHANGED.yaml", protocol)
    with pytest.raises(UserError, match=re.escape(message)):
        read_protocol(tmp_path / "CHANGED.yaml")


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_protocol_was_committed_before_its_lines(path: Path) -> None:
    """Each line names the content of a protocol that is an ancestor of the line's commit."""
    lines = read_protocol(path)[1]
    results = path.with_suffix(".jsonl")
    if not lines:
        return
    try:
        assert git("rev-parse", "--is-shallow-repository") == "false"
        first = git("log", "--format=%H", "--diff-filter=A", "--", str(results)).split()[-1]
        last = git("log", "-1", "--format=%H", "--", str(path))
    except (AssertionError, OSError, subprocess.CalledProcessError, IndexError):
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("no history")
    assert last != first
    git("merge-base", "--is-ancestor", last, first)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    assert {line["protocol_sha"] for line in lines} == {content}


@pytest.mark.config
@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_arms_of_a_protocol_compose_and_differ(path: Path) -> None:
    from composed import composed

    protocol, _ = read_protocol(path)
    configs = {
        name: composed(protocol.settings[0], *protocol.settings[1:], *arm.settings)
        for name, arm in protocol.arms.items()
    }
    steps = {step for e in protocol.evaluations for step in e.steps if step}
    for config in configs.values():
        assert max(steps) == config.trainer.total_training_steps
        assert all(step % config.trainer.save_freq == 0 for step in steps)
        responses = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        assert responses == 128  # as many in all arms
        assert config.data.train_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert len({str(config) for config in configs.values()}) == len(configs)
