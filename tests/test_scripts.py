"""The shell scripts, with stand-ins for what they start: no installation, no training."""

import os
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.config  # short processes
ROOT = Path(__file__).resolve().parents[1]

OWN = ("RECIPE_VENV", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX")  # of whoever runs the tests
# Stands for the environment's interpreter: notes its arguments, and does what a stage would.
PYTHON = """\
[[ $1 == -c ]] && exit 0
echo "$*" >>"$CALLS"
case "$*" in
    "-m pip "*) [[ -z ${PIP_USER:-}${PIP_CONSTRAINT:-}${PYTHONPATH:-} ]] || exit 9 ;;
    *metadata* | -) cat >/dev/null ;;
    *nosuch*--dry-run) echo "no example 'nosuch'" >&2; exit 1 ;;
    *here*--dry-run) echo "on ${RECIPE_MACHINE:-this machine}" >&2; exit 1 ;;
    *--cfg) echo 'recipe.run_dir=runs/my gym' ;;
    *"$FAIL"*) [[ -n $FAIL ]] && exit 7 ;;
esac
exit 0
"""


def write_program(path: Path, text: str) -> None:
    """Write an executable bash script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts, with an environment that setup.sh takes for whole."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "requirements").mkdir()
    for path in (ROOT / "scripts").glob("*.s[bh]*"):
        (tmp_path / "scripts" / path.name).write_bytes(path.read_bytes())
    for name in ("requirements/cpu.txt", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    write_program(tmp_path / ".venv" / "bin" / "python", PYTHON)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    stamp = "cat requirements/cpu.txt pyproject.toml | sha256sum | cut -d' ' -f1"
    digest = subprocess.check_output(["bash", "-c", stamp], cwd=tmp_path, text=True).strip()
    (tmp_path / ".venv" / ".setup-stamp").write_text(f"{digest} {tmp_path}")
    return tmp_path


def run(checkout: Path, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """(exit code, output) of a script of the copy."""
    environment = {k: v for k, v in os.environ.items() if k not in OWN}
    environment |= {"CALLS": str(checkout / "calls"), "FAIL": "", **variables}
    command, output = ["bash", f"scripts/{script}", *arguments], subprocess.PIPE
    done = subprocess.run(
        command, cwd=checkout, env=environment, text=True, stdout=output, stderr=subprocess.STDOUT,
        timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


def calls(checkout: Path) -> list[str]:
    path = checkout / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_setup_installs_the_cpu_torch_before_a_changed_lock(checkout: Path) -> None:
    with (checkout / "requirements" / "cpu.txt").open("a") as file:
        file.write("# another lock\n")
    (checkout / ".venv" / ".setup-stamp").write_text(f"1a2b {checkout / 'moved'}")  # its old place
    image = {"PIP_USER": "1", "PIP_CONSTRAINT": "/etc/pip/constraint.txt", "PYTHONPATH": "/opt"}
    code, output = run(checkout, "setup.sh", **image)
    assert "done:" in output and code == 0
    installs = [call for call in calls(checkout) if " install " in call]
    assert installs[0].endswith("install --no-deps torch==2.13.0+cpu")
    assert installs[1].endswith("install --no-deps -r requirements/cpu.txt")
    assert installs[2].endswith("--no-deps --no-build-isolation -e .")
    assert run(checkout, "setup.sh") == (0, "")


def test_setup_rejects_a_python_without_modules(checkout: Path) -> None:
    (checkout / ".venv").rename(checkout / "elsewhere")
    write_program(checkout / "python3", "[[ $2 != *lzma* ]]")
    code, output = run(checkout, "setup.sh", PYTHON=str(checkout / "python3"))
    assert code == 1 and "lzma" in output and not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("conda-meta", "a conda environment"),
        ("thesis", "no Python environment"),
        ("", "is the environment of"),  # another clone, whose editable installation would move
    ],
)
def test_setup_leaves_a_folder_of_something_else_alone(
    checkout: Path, made: str, message: str
) -> None:
    (checkout / ".venv" / made).mkdir(parents=True, exist_ok=True)
    assert run(checkout, "setup.sh") == (0, "")  # whole, and so its own
    stamp = checkout / ".venv" / ".setup-stamp"
    stamp.unlink() if made else stamp.write_text(f"1a2b {checkout.parent}")
    if made == "thesis":
        (checkout / ".venv" / "pyvenv.cfg").unlink()
    code, output = run(checkout, "demo.sh")
    assert code == 1 and message in output and "RECIPE_VENV" in output
    assert calls(checkout) == [] and (checkout / ".venv" / made).exists()


def test_demo_runs_its_stages_in_order(checkout: Path) -> None:
    code, output = run(checkout, "demo.sh", "trainer.save_freq=5", RUN="runs/x")
    assert code == 0, output
    train, *others = calls(checkout)
    assert train == "-m recipe.train toy recipe.run_dir=runs/x trainer.save_freq=5"
    assert others == [f"-m {m} runs/x" for m in ("recipe.export", "eval.sweep", "eval.report")]


@pytest.mark.parametrize("given", [["cw_grpo"], ["method=cw_grpo"], ["cw_grpo", "recipe.name=a"]])
def test_the_run_that_is_trained_is_exported_and_shown(checkout: Path, given: list[str]) -> None:
    for folder in ("data/SVAMP", "data/smollm2", "models/smollm2", "models/smollm2-warm"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "data/SVAMP/SVAMP.json").touch()
    assert run(checkout, "smollm2.sh", *given)[0] == 0
    train, *others = calls(checkout)
    assert "method=cw_grpo" in train and train.endswith("recipe.run_dir=runs/smollm2_cw_grpo")
    assert [call.split()[-1] for call in others] == ["runs/smollm2_cw_grpo"] * 3
    for script, words in (
        ("smollm2.sh", ["grpo", "method=cw_grpo"]),
        ("smollm2.sh", ["recipe.run_dir=runs/x"]),
        ("demo.sh", ["recipe.run_dir=runs/x"]),
    ):
        assert run(checkout, script, *words)[0] == 2
    assert len(calls(checkout)) == 4


def test_a_link_to_another_disk_stays_a_link(checkout: Path) -> None:
    (checkout / ".venv").rename(checkout / "elsewhere")
    (checkout / ".venv").symlink_to("elsewhere")
    assert run(checkout, "setup.sh") == (0, "")
    (checkout / "elsewhere" / ".setup-stamp").unlink()  # a build that was cut
    (checkout / "elsewhere" / ".made-by-setup").touch()
    run(checkout, "setup.sh", PYTHON=str(checkout / "elsewhere/bin/python"))
    assert (checkout / ".venv").is_symlink()


# Stands for Python on a machine without a GPU.
MEASURES = """\
[[ $1 == -c ]] && exit 1
echo "$*" >>"$CALLS"
[[ $FAIL && $* == *$FAIL* ]] && exit 7
[[ $1 == -m ]] || echo "result: $*"
"""


def test_parts_of_the_gpu_script_run_until_each_has_a_line(checkout: Path) -> None:
    write_program(checkout / "measures", MEASURES)
    given = {"PYTHON": str(checkout / "measures")}

    def lines() -> dict[str, str]:
        text = (checkout / "runs/gpu-cpu/results.txt").read_text()
        return dict(line.split(": ", 1) for line in text.splitlines())

    code, output = run(checkout, "gpu.sh", FAIL="gpu.py learned", **given)
    assert code == 1 and output.count("failed with exit code 7") == 2, output
    assert list(lines()) == ["attention", "step", "export", "v1", "v2", "at_once"]
    assert lines()["v2"].startswith("skipped: no GPU")
    (checkout / "calls").unlink()
    code, output = run(checkout, "gpu.sh", SECONDS_LEFT="9", **given)
    assert (code, output.count("no time left"), calls(checkout)) == (1, 2, [])
    assert run(checkout, "gpu.sh", "learn", **given)[0] == 0
    made = calls(checkout)
    assert [call.split()[1] for call in made] == ["recipe.train", "learned"]
    code, output = run(checkout, "gpu.sh", **given)
    assert code == 0 and list(lines())[-2:] == ["learn", "compare"], output
    assert not any("export" in call for call in calls(checkout)[len(made) :])
    assert run(checkout, "gpu.sh", "nonsense", **given)[0] == 2


# Stands for SLURM's commands: a job in the state $STATE that ends in $LEFT seconds.
SCONTROL = """\
if [[ -e $CALLS.silent ]]; then rm "$CALLS.silent"; exit 1; fi # the controller restarts
if [[ $1 == show ]]; then
    [[ $SLURM_TIME_FORMAT == standard ]] || LEFT=0
    echo "JobId=17 JobState=$STATE EndTime=$(date -d "+$LEFT seconds" +%Y-%m-%dT%H:%M:%S) X=1"
else
    echo "scontrol $*" >>"$CALLS"
fi
"""
# Stands for a training: SIGNAL comes to the job's script, a TERM of the script ends it with $CODE.
TRAINING = """\
[[ $1 == -c ]] && exit "${NO_RECIPE:-0}"
[[ $* == *--cfg ]] && echo "recipe.run_dir=runs/gym" && exit "${CFG:-0}"
trap 'sleep 0.3; echo ended >>"$CALLS"; exit $CODE' TERM
echo "$*" >>"$CALLS"
ray=${RAY_TMPDIR:+, Ray in $RAY_TMPDIR}
echo "ROCR ${ROCR_VISIBLE_DEVICES:-unset}, offline ${TRANSFORMERS_OFFLINE:-no}$ray" >>"$CALLS"
[[ -n $SIGNAL ]] && kill -"$SIGNAL" $PPID
[[ -z $SIGNAL ]] && exit "$CODE"
while :; do sleep 0.1; done
"""
TRAIN = "-m recipe.train toy recipe.run_dir=runs/x trainer.nnodes=1 trainer.save_freq=5"


def job(
    checkout: Path,
    *arguments: str,
    script: str = "train.sbatch",
    stand_in: str | None = None,
    scontrol: str = SCONTROL,
    **variables: str,
) -> tuple[int, str, list[str]]:
    """(exit code, output, calls) of a sbatch file as a job of a SLURM that is not there."""
    tools = checkout / "tools"
    write_program(tools / "scontrol", scontrol)
    stand_in = stand_in or (TRAINING if script == "train.sbatch" else PYTHON)
    write_program(checkout / ".venv" / "bin" / "python", stand_in)
    of_slurm = {
        "SLURM_SUBMIT_DIR": str(checkout),
        "SLURM_JOB_ID": "17",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    usual = {"STATE": "RUNNING", "LEFT": "86400", "SIGNAL": "", "CODE": "0", "RUN": "runs/x"}
    code, output = run(checkout, script, *arguments, **{**usual, **of_slurm, **variables})
    return code, output, calls(checkout)


@pytest.mark.parametrize(
    ("signal", "state", "code", "again"),
    [
        ("USR1", "RUNNING", 75, True),  # before the time limit
        ("USR1", "RUNNING", 1, True),  # before Python listened, or Ray died of the signal too
        ("USR1", "RUNNING", 0, False),  # it was at its end
        ("TERM", "RUNNING", 75, True),  # a preemption
        ("TERM", "COMPLETING", 75, False),  # scancel: SLURM has taken the job off already
        ("USR1", "CANCELLED", 75, False),
        ("", "RUNNING", 75, True),  # ended by itself, because the next step would not fit
        ("", "RUNNING", 1, False),  # a failure
        ("", "RUNNING", 143, False),  # ended by a user's second TERM
    ],
)
def test_which_ends_of_a_job_are_queued_again(
    checkout: Path, signal: str, state: str, code: int, again: bool
) -> None:
    """A signal reaches the training, whose end is awaited; then scontrol is asked to requeue."""
    result, output, commands = job(
        checkout, "toy", "trainer.save_freq=5", SIGNAL=signal, STATE=state, CODE=str(code)
    )
    assert result == code, output
    assert commands[0] == TRAIN
    assert ("ended" in commands) == bool(signal)
    assert (commands[-1] == "scontrol requeue 17") == again
    assert ("queued again" in output) == again
    request = checkout / "runs" / "x" / ".stop"  # for the trainer, less a minute to end in
    assert request.exists() == bool(signal)
    assert not signal or 86_000 < int(request.read_text()) - time.time() <= 86_400 - 60


# A second TERM would end a training without a save.
TWICE = """\
trap 'echo TERM >>"$CALLS"' TERM
kill -USR1 $PPID; sleep 0.5; kill -TERM $PPID; sleep 0.5; exit 75
"""
SILENT = TRAINING.replace('exit "$CODE"', 'touch "$CALLS.silent" && exit "$CODE"')


@pytest.mark.parametrize(
    ("training", "site", "code", "calls_made"),
    [
        (SILENT, "", 75, 3),  # the controller restarts: it is asked again
        (TWICE, "", 75, 2),  # two signals are one to the command
        # While modules are loaded, or Ray is awaited: bash alone would end the job as FAILED.
        (TRAINING, "kill -TERM $$", 143, 1),
    ],
)
def test_no_signal_is_lost_or_sent_twice(
    checkout: Path, training: str, site: str, code: int, calls_made: int
) -> None:
    (checkout / "scripts" / "cluster.env").write_text(site)
    given = {"CODE": "75", "REQUEUE_PAUSES": "0 0", "SLURM_TIME_FORMAT": "relative"}
    result, output, commands = job(checkout, "toy", stand_in=training, **given)
    assert (result, len(commands)) == (code, calls_made), output
    assert commands[-1] == "scontrol requeue 17"


def test_starts_that_get_nowhere_come_to_an_end(checkout: Path) -> None:
    """A step that does not fit into the limit would else be begun for ever."""
    tracker = checkout / "runs/x/checkpoints/latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True)
    # The id of the array's last task is that of the array, and would name all tasks.
    array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    for step in ("10", "20"):
        tracker.write_text(step)
        _, output, commands = job(checkout, "toy", CODE="75", MOST_REQUEUES="1", **array)
        assert commands[-1] == "scontrol requeue 17_3"
    _, output, commands = job(checkout, "toy", CODE="75", MOST_REQUEUES="1", **array)
    assert "queued again 1 times without progress" in output
    assert commands[-1] != "scontrol requeue 17_3"
    assert job(checkout, "toy", CODE="75", MOST_REQUEUES="1")[2][-1] == "scontrol requeue 17"


def test_a_sweep_exports_all_steps_and_tells_a_training_nothing(checkout: Path) -> None:
    job(checkout, "runs/x", script="sweep.sbatch")
    assert "-m eval.sweep runs/x --export" in calls(checkout)
    stop, stages = checkout / "runs" / "x" / ".stop", "kill -USR1 $PPID; sleep 0.3\n"
    job(checkout, "runs/x", script="sweep.sbatch", stand_in=stages)
    assert stop.parent.is_dir() and not stop.exists()


def test_a_job_shorter_than_its_own_warning_does_not_start(checkout: Path) -> None:
    code, output, commands = job(checkout, "toy", LEFT="500")
    assert (code, commands) == (1, []) and "give it at least 600 s" in output
    assert job(checkout, "toy", LEFT="700")[0] == 0 and calls(checkout)


def test_the_run_folder_and_the_site(checkout: Path) -> None:
    def folder(*overrides: str, **variables: str) -> str:
        return job(checkout, "mine", *overrides, **variables)[2][-2].split("recipe.run_dir=")[1]

    assert folder(RUN="").split()[0] == "runs/gym"
    assert folder("recipe.run_dir=runs/y", RUN="runs/x").split()[0] == "runs/y"
    assert folder(RUN="", NO_RECIPE="1").split()[0] == "runs/mine"
    assert folder("recipe.run_dir='runs/a=1'", RUN="").split()[0] == "runs/a=1"
    assert (checkout / "runs/a=1").is_dir()  # where its progress is looked for
    before = calls(checkout)
    assert job(checkout, "mine", RUN="", CFG="1")[0] == 1 and calls(checkout) == before
    site = "HF_HUB_OFFLINE=1\nA=/opt:$NOT_SET_ANYWHERE\nRUNS=$A\n"  # as `module load` reads
    (checkout / "scripts" / "cluster.env").write_text(site)
    assert folder(RUN="", CUDA_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="0").startswith(
        "/opt:/gym"
    )
    (long := checkout / "".ljust(40, "t")).mkdir()  # Ray's sockets in it have too long names
    for place, ray in (("/var/tmp/", "/var/tmp"), ("", "/tmp"), (str(long), "/tmp")):
        folder(RUN="", TMPDIR=place, CUDA_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="0")
        assert calls(checkout)[-1] == f"ROCR unset, offline 1, Ray in {ray}/ray_of_{os.getuid()}"


def dry_run(checkout: Path, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    code, output = run(checkout, "submit.sh", "--dry-run", *arguments, **variables)
    return code, [line.strip() for line in output.splitlines()]


def test_a_dry_run_shows_the_jobs_commands_and_starts_nothing(checkout: Path) -> None:
    nodes, sizes = ["--nodes=2", "--gpus-per-node=4"], "trainer.nnodes=2 trainer.n_gpus_per_node=4"
    code, lines = dry_run(checkout, *nodes, "train", "toy", "a=1")
    assert code == 0 and calls(checkout) == [
        "-m recipe.train toy a=1 --cfg",
        f"-m recipe.train toy recipe.run_dir=runs/my gym {sizes} a=1 --dry-run",
    ]
    command = f".venv/bin/python -m recipe.train toy recipe.run_dir=runs/my\\ gym {sizes} a=1"
    submitted = "sbatch --nodes=2 --gpus-per-node=4 scripts/train.sbatch toy a=1"
    assert lines == [submitted, "start_ray 4", command]
    options = ["--benchmark", "amc", "--steps", "0", "50", "--samples", "4"]
    code, lines = dry_run(checkout, "sweep", "runs/x", *options)
    assert code == 1 and "runs/x: no such run folder" in lines[-1]
    (checkout / "runs" / "x").mkdir(parents=True)
    sweep, report = dry_run(checkout, "sweep", "runs/x", *options)[1][1:]
    assert sweep.endswith(f"eval.sweep runs/x --export {' '.join(options)}")
    assert report.endswith("eval.report runs/x")
    code, lines = dry_run(checkout, "sweeep", "runs/x")
    assert code == 1 and "doctor rephrase sweep train" in lines[-1]
    trial = ".venv/bin/python -m recipe.doctor --runs runs --train"
    lines = dry_run(checkout, "doctor", "a=1")[1]
    assert lines[1:] == [f"{trial} trainer.nnodes=1 trainer.n_gpus_per_node=8 a=1"]
    lines = dry_run(checkout, *nodes, "doctor", "grpo")[1]
    assert lines[1:] == ["start_ray 4", f"{trial} grpo {sizes}"]
    server, rephrase = dry_run(checkout, "--gpus-per-node=4", "rephrase", "q", "o")[1][1:]
    assert "--tensor-parallel-size 4" in server
    assert rephrase.startswith(".venv/bin/python -m prompt_aug.rephrase q o --model")
    assert len(calls(checkout)) == 2
    lines = dry_run(checkout, *nodes, "train", "--script", "my.sh", "method=cw_grpo")[1]
    assert lines[-1].endswith(f"--script my.sh recipe.run_dir=runs/my\\ gym {sizes} method=cw_grpo")
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "1"}
    for given in (["--nodes=2-4", "--gpus-per-node=h100:8"], ["-N2", "--gres=gpu:h100:8,ssd:1"]):
        lines = dry_run(checkout, *given, "train", "toy", **inside)[1]
        assert lines[2].endswith("trainer.nnodes=2 trainer.n_gpus_per_node=8")
    lines = dry_run(checkout, "train", "toy", **inside, SBATCH_GPUS_PER_NODE="2")[1]
    assert lines[1].endswith("trainer.nnodes=1 trainer.n_gpus_per_node=2")


def test_nodes_or_gpus_of_separate_engines_are_not_the_actors(checkout: Path) -> None:
    rollout = "actor_rollout_ref.rollout"
    keys = ["recipe.run_dir=runs/x", "trainer.v1.trainer_mode=recipe_separate_async"]
    for nodes, (own, gpus), actor in ((4, (1, 8), (3, 8)), (1, (1, 2), (1, 6))):
        composed = [*keys, f"{rollout}.nnodes={own}", f"{rollout}.n_gpus_per_node={gpus}"]
        python = PYTHON.replace("recipe.run_dir=runs/my gym", "\n".join(composed))
        write_program(checkout / ".venv" / "bin" / "python", python)
        lines = dry_run(checkout, f"--nodes={nodes}", "--gpus-per-node=8", "train", "toy")[1]
        sizes = "trainer.nnodes={} trainer.n_gpus_per_node={}".format(*actor)
        assert lines[-1].endswith(f"{sizes} {rollout}.n_gpus_per_node={gpus}")


@pytest.mark.parametrize("dry", [True, False])
def test_a_training_that_the_checks_refuse_is_not_submitted(checkout: Path, dry: bool) -> None:
    write_program(checkout / "tools" / "sbatch", 'echo "sbatch $*"\n')
    path = {"PATH": f"{checkout / 'tools'}:{os.environ['PATH']}", "RUN": "runs/x"}
    line = ["submit.sh", *["--dry-run"] * dry, "train"]
    assert run(checkout, *line, "nosuch", **path) == (1, "no example 'nosuch'\n")
    for gpus, machine in ((8, "gpu"), (0, "this machine")):  # the job's, not this node's
        sized = [*line[:-1], f"--gpus-per-node={gpus}", "train", "here"]
        assert run(checkout, *sized, **path) == (1, f"on {machine}\n")
    later = [*line[:-1], "--dependency=afterok:7", "train", "nosuch"]  # its data are made by then
    assert "scripts/train.sbatch nosuch" in run(checkout, *later, **path)[1]
    code, output = run(checkout, *line, "toy", **path)
    assert code == 0 and "sbatch scripts/train.sbatch toy" in output and "note:" not in output
    code, output = run(checkout, *line, "toy", RECIPE_VENV="none", **path)
    assert code == 1 and "none/bin/python cannot import recipe: set RECIPE_VENV" in output
    write_program(checkout / "tools" / "srun", SRUN)  # would ask for an allocation
    for runner in ("apptainer exec x.sif", "srun --container-image=x.sqsh"):
        container = {"RECIPE_VENV": "none", "RECIPE_RUNNER": runner, **path}
        assert "scripts/train.sbatch nosuch" in run(checkout, *line, "nosuch", **container)[1]
    assert not any(call.startswith("srun ") for call in calls(checkout))


def test_the_active_environment_is_that_of_the_jobs(checkout: Path) -> None:
    (checkout / ".venv").rename(checkout / "conda")

    def chosen(**variables: str) -> str:
        return dry_run(checkout, "train", "toy", CONDA_PREFIX="conda", **variables)[1][1]

    assert chosen().startswith("conda/bin/python -m recipe.train toy")
    # Beside .venv, of the quick start, it needs verl: conda's base is active on many clusters.
    write_program(checkout / ".venv" / "bin" / "python", PYTHON)
    assert chosen().startswith(".venv")
    (checkout / "conda" / "lib" / "python3.11" / "site-packages" / "verl").mkdir(parents=True)
    assert chosen().startswith("conda/bin")
    assert chosen(RECIPE_RUNNER="env").startswith("env .venv/bin")  # .venv is inside the image


# Stands for srun: `hostname -I` and `ip` answer $ADDRESS, Ray lives on unless $RAY is set.
SRUN = """\
[[ $* == *"sleep infinity"* ]] && exit # the step that notices a preemption: see tests/drills
gpus=${SLURM_GPUS:-}${SLURM_GPUS_PER_NODE:-}
echo "srun ${*//$'\\n'/ } ($SLURM_EXPORT_ENV, GPUs ${gpus:-not given})" >>"$CALLS"
case "$*" in
    *bash\ -c\ hostname* | *bash\ -c\ ip*) echo "$ADDRESS"; exit 0 ;;
esac
[[ -n $RAY ]] && exit 1
for _ in {1..90}; do
    [[ -e $CALLS.lost ]] && exit 1
    sleep 0.1
done >/dev/null 2>&1
"""
# Stands for the Python of ray_nodes.sh that waits for nodes, and for the training.
READY = """\
[[ $1 != -c ]] || set -- ready "${@:3}"
echo "$*" >>"$CALLS"
[[ $1 != ready || -z ${DEAF:-} ]] || trap '' TERM # as Ray's handler
[[ $1 != ready || -n $JOINED ]] || exec sleep 60
[[ $* != *recipe.train* ]] || eval "$TRAIN"
"""


def nodes_job(checkout: Path, **variables: str) -> tuple[int, str, list[str]]:
    """A job of two nodes, n1 and n2."""
    write_program(checkout / "tools" / "srun", SRUN)
    names = "if [[ $1 == show && $2 == hostnames ]]; then echo n1; echo n2; exit; fi\n"
    usual = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "4"}
    usual |= {
        "ADDRESS": "10.0.0.1",
        "RAY": "",
        "JOINED": "1",
        "TRAIN": "",
        "SLURM_CPUS_ON_NODE": "96",
    }
    return job(checkout, "toy", scontrol=names + SCONTROL, stand_in=READY, **{**usual, **variables})


@pytest.mark.parametrize(
    ("listed", "ip", "address"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.1:20017"),
        ("fd00::1:7f00 10.0.0.1", "fd00::1:7f00", "[fd00::1:7f00]:20017"),
    ],
)
def test_ray_starts_on_every_node_before_the_driver(
    checkout: Path, listed: str, ip: str, address: str
) -> None:
    # The last is that of train.sbatch, where --gres=gpu:4 has replaced it: steps would be refused.
    given = {"SLURM_EXPORT_ENV": "NONE", "SLURM_GPUS": "8", "SLURM_GPUS_PER_NODE": "8"}
    code, output, commands = nodes_job(checkout, ADDRESS=listed, **given)
    assert code == 0 and f"({address})" in output, output
    for words in (  # a busy machine may start the programs in another order
        ("hostname -I", "--nodelist=n1 ", "(ALL, GPUs not given)"),
        (
            "--head",
            "--nodelist=n1 ",
            "--cpus-per-task=96 ",
            f"--node-ip-address={ip} --port=20017",
            "GPUs not given",
        ),
        (
            f"--address={address}",
            "--nodelist=n2 ",
            "--num-gpus=4",
            "--cpus-per-task=96 ",
            "GPUs not given",
        ),
        ("ready 2 300",),
        ("recipe.train", "trainer.nnodes=2 trainer.n_gpus_per_node=4"),
    ):
        assert any(all(word in call for word in words) for call in commands), words


DEAD, LOST = {"RAY": "dies", "JOINED": ""}, 'touch "$CALLS.lost"; sleep 1; exit 1'


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (DEAD, "Ray ended on a node while it started"),
        ({**DEAD, "DEAF": "1"}, "Ray ended on a node while it started"),
        ({"ADDRESS": "", "NETWORK_INTERFACE": "ib7"}, "n1 has no address on ib7"),
        ({"ADDRESS": "127.0.1.1"}, "127.0.1.1"),
        ({"ADDRESS": "::1", "NETWORK_INTERFACE": "lo"}, "::1, on lo"),
        # As when the raylet of another node was killed, while SLURM sees healthy nodes.
        ({"TRAIN": LOST}, "a node was lost: queued again"),
        ({"TRAIN": "exit 1"}, "== end, exit code 1"),
    ],
)
def test_a_ray_that_does_not_start_or_ends_is_told_at_once(
    checkout: Path, variables: dict[str, str], message: str
) -> None:
    code, output, commands = nodes_job(checkout, **variables)
    assert code == 1 and output.count(message) == 1
    assert any("recipe.train" in call for call in commands) == ("TRAIN" in variables)
    requeued = variables.get("TRAIN") == LOST or variables.get("RAY") == "dies"
    assert (commands[-1] == "scontrol requeue 17") == requeued


# Stands for the model server, which answers when $ANSWERS is set, and for prompt_aug.rephrase.
SERVER = """\
if [[ $1 == -c ]]; then [[ -n $ANSWERS ]] && grep -q api_server "$CALLS"; exit; fi
[[ $2 == *api_server ]] && trap 'echo "server ended" >>"$CALLS"; exit' TERM
echo "$2 with a key of ${#OPENAI_API_KEY}, ${#VLLM_API_KEY}: ${*:3}" >>"$CALLS"
case $2 in
    *api_server)
        [[ -n $DIES ]] && exit 1
        while :; do sleep 0.1; done ;;
    *) [[ -n $SIGNAL ]] && kill -"$SIGNAL" $PPID && exec sleep 60; exit "$CODE" ;;
esac
"""
OWN_MODEL = {"ANSWERS": "1", "DIES": "", "SERVER_LOOK": "0.2", "MODEL": "m", "PORT": "5"}


@pytest.mark.parametrize(
    ("variables", "code", "message", "last"),
    [
        ({}, 0, "the server answers after", "server ended"),
        ({"SIGNAL": "USR1"}, 143, "time limit: queued again", "server ended"),
        ({"DIES": "1", "ANSWERS": ""}, 1, "the server ended while it started: see", "--port 5"),
        ({"ANSWERS": "", "SERVER_SECONDS": "1"}, 1, "no answer from the server", "server ended"),
    ],
)
def test_rephrasing_serves_its_own_model_and_ends_the_server(
    checkout: Path, variables: dict[str, str], code: int, message: str, last: str
) -> None:
    result, output, commands = job(
        checkout, "q.parquet", "out.parquet", "--n", "3",
        script="rephrase.sbatch", stand_in=SERVER, **{**OWN_MODEL, **variables},
    )  # fmt: skip
    assert (result, message in output) == (code, True), output
    assert last in commands[-1]
    key = "with a key of 64, 64:"
    assert commands[0].startswith(f"vllm.entrypoints.openai.api_server {key} --model m")
    line = "--model m --base-url http://127.0.0.1:5/v1 --concurrency 128 --n 3"
    called = f"prompt_aug.rephrase {key} q.parquet out.parquet {line}"
    assert (called in commands) == ("ANSWERS" not in variables)


def test_answers_of_the_solver_are_progress_too(checkout: Path) -> None:
    own = {**OWN_MODEL, "SIGNAL": "USR1", "MOST_REQUEUES": "1"}
    solved = checkout / "out.parquet.work" / "solved" / "answers.jsonl"
    solved.parent.mkdir(parents=True)
    (solved.parents[1] / "answers.jsonl").write_text("1")
    said = []
    for answers in ("1", "12", "12"):
        solved.write_text(answers)
        words = ("q.parquet", "out.parquet")
        _, output, _ = job(checkout, *words, script="rephrase.sbatch", stand_in=SERVER, **own)
        said.append("without progress" in output)
    assert said == [False, False, True]
