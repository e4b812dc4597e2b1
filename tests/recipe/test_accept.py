"""The acceptance run's stages: each on its own, and what depends on one that failed."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prompt_aug.base.files import write_json
from recipe import accept
from recipe.accept import Stage, StageError, stages
from recipe.config.compose import compose_config
from recipe.preflight import accept_work
from recipe.preflight.checks import validate
from recipe.run import folder as run_folder
from recipe.toy.tokenizer import build_tokenizer


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """Five stages in place of the real ones."""
    made = [
        Stage(name="good", command=python("print('fine')"), figures=lambda: {"speed": 2.0}),
        Stage(name="bad", command=python("raise SystemExit(3)")),
        Stage(name="after bad", command=python("print(1)"), needs=("bad",)),
        Stage(name="after that", command=python("print(1)"), needs=("after bad",)),
        Stage(name="slow", command=python("import time; time.sleep(60)"), seconds=0.5),
        Stage(name="last", command=[], needs=("good",), figures=lambda: {"x": 1 / 3}),
    ]
    monkeypatch.setattr(accept, "stages", lambda folder, cpu, gpus: made)
    return made


def test_one_failure_does_not_hide_the_rest(
    given: list[Stage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept.main(["--folder", str(tmp_path / "a")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("good: ok")
    assert said[1].startswith(f"bad: exit code 3, see {tmp_path}/a/logs/bad.log")
    assert said[2].startswith("after bad: not run: bad failed")
    assert said[3].startswith("after that: not run: after bad failed")
    assert said[4].startswith("slow: not done within ")
    assert said[5].startswith("last: ok")
    page = (tmp_path / "a" / "accept.md").read_text()
    assert "| good | speed | 2 |" in page and "| last | x | 0.3333 |" in page
    assert (tmp_path / "a" / "logs" / "good.log").read_text() == "fine\n"


def test_single_stages_run_in_the_folder_as_it_is(
    given: list[Stage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path / "a")]
    assert accept.main([*folder, "--only", "good", "last"]) == 0
    with pytest.raises(SystemExit):
        accept.main([*folder, "--only", "goood"])
    assert "no stage goood; they are good, bad" in capsys.readouterr().err


@pytest.mark.parametrize("only", [[], ["--only", "good"]])
@pytest.mark.parametrize("place", [".", "thesis.tex"])
def test_a_training_run_and_a_file_are_left_alone(
    given: list[Stage], tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, only: list
) -> None:
    """A training run has logs/ as an acceptance run has."""
    for name in ("logs/train.log", "checkpoints/global_step_5/data.pt", "thesis.tex"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("years")
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    assert accept.main(["--folder", str(tmp_path / place), *only]) == 1
    assert "is not of an acceptance run: choose another --folder" in capsys.readouterr().out
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before


def test_a_folder_of_this_command_is_made_anew(given: list[Stage], tmp_path: Path) -> None:
    """Also an empty one, as a run leaves that was killed at once; --only keeps what is there."""
    folder = tmp_path / "a"
    folder.mkdir()
    accept.main(["--folder", str(folder)])
    left = folder / "prompt_aug" / "metrics.jsonl"
    left.parent.mkdir()
    left.touch()
    assert accept.main(["--folder", str(folder), "--only", "good"]) == 0 and left.exists()
    accept.main(["--folder", str(folder)])
    assert not left.exists() and (folder / accept.OWN_MARK).is_file()


NAN = float("nan")
KEYS = ("training/rollout_actor_probs_pearson_corr", "rollout_corr/k3_kl")
NAMES = ("largest log-prob error, nats", "cosine of the gradients")


@pytest.mark.parametrize(
    ("figures", "good"),
    [
        ((0.9999, 0.001), True),
        *(((found, 0.0), False) for found in (0.98, NAN)),
        *(((0.998, distance), False) for distance in (4.7, 0.006, NAN)),
    ],
)
def test_weights_that_did_not_arrive_fail(
    tmp_path: Path, figures: tuple[float, float], good: bool
) -> None:
    with pytest.raises(StageError, match="has no step"):
        accept.hand_over(tmp_path)
    run_folder.append_metrics(tmp_path, 1, dict(zip(KEYS, figures, strict=True)))
    with contextlib.nullcontext() if good else pytest.raises(StageError, match="wanted"):
        assert tuple(accept.hand_over(tmp_path).values()) == figures
    for key, value in zip(KEYS, figures, strict=True):  # one of the two alone
        run_folder.append_metrics(tmp_path, 2, {key: value})
        with pytest.raises(StageError, match="wanted"):
            accept.hand_over(tmp_path)


@pytest.mark.parametrize(
    ("figures", "good"), [((0.02, 0.999), True), ((0.2, 0.999), False), ((0.02, 0.9), False)]
)
def test_a_loss_or_a_gradient_that_is_off_fails(
    tmp_path: Path, figures: tuple[float, float], good: bool
) -> None:
    write_json(tmp_path / "reference.json", dict(zip(NAMES, figures, strict=True)))
    with contextlib.nullcontext() if good else pytest.raises(StageError, match="off"):
        assert tuple(accept.reference(tmp_path / "reference.json").values()) == figures


@pytest.mark.parametrize("cpu", [True, False])
def test_every_stage_needs_only_earlier_ones_and_three_methods_are_trained(cpu: bool) -> None:
    made = stages(Path("/x"), cpu)
    names = [stage.name for stage in made]
    for place, stage in enumerate(made):
        assert set(stage.needs) <= set(names[:place])
    trained = [name for name in names if name.startswith("train")]
    assert trained == ["train prompt_aug", "train ta_grpo", "train cw_grpo"]


@pytest.mark.parametrize("cpu", [True, False])
def test_weights_are_checked_in_both_runners_of_vllm(cpu: bool) -> None:
    """A CPU has V1 alone. The last step of both trainings begins with updated weights."""
    made = {stage.name: stage for stage in stages(Path("/x"), cpu)}
    variable = "VLLM_USE_V2_MODEL_RUNNER=1"
    in_second = [name for name, stage in made.items() if variable in stage.command]
    assert in_second == ([] if cpu else ["train cw_grpo"])
    for method in ("prompt_aug", "cw_grpo"):
        command = made[f"train {method}"].command
        assert set(accept.MOVING) < set(command)
        assert "trainer.total_training_steps=2" in command
        assert made[f"weights {method}"].needs == (f"train {method}",)
    program = "import os; print(os.environ['VLLM_USE_V2_MODEL_RUNNER'])"
    command = [*accept.IN_SECOND_RUNNER, *python(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_both_dtypes_are_exported_each_of_a_run_of_its_own() -> None:
    """A step that is exported in one is refused in the other; the evaluated run is in float32."""
    made = {stage.name: stage for stage in stages(Path("/x"), True)}
    runs = {}
    for dtype in ("bfloat16", "float32"):
        _, _, _, runs[dtype], *options = made[f"export {dtype}"].command
        assert options == ["--dtype", dtype]
        assert made[f"export {dtype}"].needs == (f"train {Path(runs[dtype]).name}",)
    assert runs["bfloat16"] != runs["float32"] == made["evaluation"].command[3]
    assert made["evaluation"].needs == ("export float32",)


@pytest.mark.config
@pytest.mark.parametrize("method", ["prompt_aug", "ta_grpo", "cw_grpo"])
def test_the_sizes_of_the_gpu_form_compose_and_divide(method: str) -> None:
    name, *overrides = accept.train_arguments(Path("/x"), method, 2, cpu=False)
    config = compose_config(name, overrides)
    validate(config)
    assert config.trainer.save_freq == (2 if method in accept.EXPORTED else -1)


def test_the_cosine_of_long_vectors_is_summed_in_float64() -> None:
    torch.manual_seed(0)
    a = torch.randn(2**24 + 5)
    b = a + 0.05 * torch.randn(len(a))  # torch's own function gives 1.00006
    assert accept_work.cosine(a, b) == pytest.approx((1 + 0.05**2) ** -0.5, abs=1e-5)
    assert accept_work.cosine(a, -a) == pytest.approx(-1)


def test_the_filled_vocabulary_has_a_text_for_every_id_and_encodes_as_before() -> None:
    tokenizer = build_tokenizer(["12 + 3 = 15\n"])
    prompt = "<|im_start|>12 + 3 <|700|>"
    before, known = tokenizer.encode(prompt), len(tokenizer)
    accept_work.fill_vocabulary(tokenizer, 2000)
    assert len(tokenizer) == 2000 > known
    assert tokenizer.encode(prompt) == before
    assert tokenizer.decode([1999]) == "<|1999|>"
