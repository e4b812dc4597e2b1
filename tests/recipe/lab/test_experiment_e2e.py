"""An arm of an experiment, small: trained, exported, measured and recorded; another is simulated.

That arms share their start model is seen in test_arms.py, what a page shows in test_page.py.
"""

import os
import sys
from pathlib import Path

import pytest

from prompt_aug.base.files import read_json, read_lines
from recipe.lab import runs
from recipe.lab.experiment import Arm, Experiment, Measure
from recipe.lab.runs import command_of, read_record, run_all
from recipe.run.environment import COMMON, CPU

pytestmark = pytest.mark.e2e

# The measurement of this experiment, which is not one of those in examples/laboratory.
MEASURE = """
import sys
from pathlib import Path
from prompt_aug.base.files import write_json
from recipe.lab.measure import measure_run
from recipe.lab.experiment import Measure
settings = Measure(questions=3, samples=4, templates=("qwen-math",))
write_json(Path(sys.argv[1]) / "measured.json", measure_run(Path(sys.argv[1]), settings))
"""


def small(tmp_path: Path) -> tuple[str, ...]:
    return (
        *(f"recipe.toy.cache={tmp_path / 'cache'}", "recipe.toy.updates=60"),
        *("recipe.toy.train_questions=80", "recipe.toy.validation_questions=20"),
        "recipe.toy.test_questions=20",
        # So young a model is never right: it is paid for being short, so there is a signal.
        *("recipe.reward.overlong.enable=true", "recipe.reward.overlong.buffer=80"),
    )


def test_an_arm_is_trained_and_measured_at_its_start_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Experiment(
        name="ta_grpo",
        steps=2,
        save_every=2,
        measure=Measure(questions=3, samples=4, templates=("qwen-math",)),
        arms=(Arm(name="ta", world="primed", set=("method=ta_grpo", *small(tmp_path))),),
        compare=(),
        curves=("train/accuracy", "train/no_signal_groups"),
    )
    (tmp_path / "measure.py").write_text(MEASURE)
    measure = [sys.executable, str(tmp_path / "measure.py")]
    monkeypatch.setattr(
        runs, "command_of", lambda stage: measure if stage == "measure" else command_of(stage)
    )
    record, out = tmp_path / "record.jsonl", tmp_path / "runs"
    failed = run_all(plan, [(arm, 7) for arm in plan.arms], record=record, out=out)
    logs = "".join(path.read_text()[-2000:] for path in out.glob("*.log"))
    assert failed == [], logs
    (line,) = read_lines(record)
    assert set(line["measured"]) == {"0", "2"}
    assert line["measured"]["2"] != line["measured"]["0"]
    assert len(line["curves"]["train/accuracy"]) == 1
    assert (line["arm"], line["seed"]) == ("ta", 7)
    assert list(read_record(record, plan)) == [("ta", 7)]


WEIGHT = """
def weight(logprobs_BT, advantages_BT, mask_BT, group_B):
    return mask_BT
"""


def test_simulated_arms_run_in_forked_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_user.py").write_text(WEIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {**COMMON, **CPU, "OMP_NUM_THREADS": "1"}.items():  # set by run_all
        monkeypatch.setenv(name, os.environ.get(name, value))
    arms = {"weight": "recipe.weights.name=of_a_user.weight", "typo": "method=absent"}
    plan = Experiment(
        name="edge",
        steps=2,
        save_every=2,
        measure=Measure(questions=3, samples=4, templates=("qwen-math",)),
        arms=tuple(Arm(name=n, world="few", set=(s, *small(tmp_path))) for n, s in arms.items()),
        compare=(),
        curves=("train/accuracy",),
        simulated=True,
    )
    record, out = tmp_path / "record.jsonl", tmp_path / "runs"
    failed = run_all(plan, [(arm, 7) for arm in plan.arms], record=record, out=out)
    logs = {path.name.partition("-")[0]: path.read_text() for path in out.glob("*.log")}
    assert failed == [("typo", 7)], logs
    assert "method/absent" in logs["typo"]
    (line,) = read_lines(record)
    (run,) = out.glob("weight-7-*/")
    assert "recipe.lab.simulate laboratory/edge" in read_json(run / "environment.json")["command"]
    assert line["arm"] == "weight" and set(line["measured"]) == {"0", "2"}
