"""Drills with jobs on the SLURM of cluster.sh. Run by hand; needs root.

    tests/drills/cluster.sh up && python tests/drills/slurm.py [NAME ...]     # by default all

Most drills replace the training by stand_in.py and take a minute or two. Each prints its result and
fails if scripts/job.sh does not behave as documented.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLUSTER = Path("/tmp/recipe-slurm")
SHORT = {"SIGNAL_LEAD": "30", "DEADLINE_SPARE": "10"}
THIS_PYTHON = {
    "RECIPE_VENV": str(Path(sys.executable).parents[1]),
    "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
}
LONGEST = 780.0  # seconds that a drill with the real training may take
submitted: list[str] = []  # jobs that are cancelled at the end of their drill


def slurm(*command: str, **more: str) -> str:
    environment = {**os.environ, "SLURM_CONF": str(CLUSTER / "slurm.conf"), **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


def submit(run: Path, *options: str, job: str = "train", arguments: tuple = (), **more: str) -> str:
    """Submit with a stand-in for Python; return the number of the job."""
    stand_in = run.parent / "venv" / "bin"
    if not stand_in.exists():
        stand_in.mkdir(parents=True)
        shutil.copy(HERE / "stand_in.py", stand_in / "python")
        (stand_in / "python").chmod(0o755)
    given = {"RECIPE_VENV": str(stand_in.parent), "RUN": str(run), **SHORT, **more}
    usual = ["--exclusive=user", "--mem=100", "--gpus-per-node=1", "--signal=B:USR1@30"]
    where = [f"--output={run.parent}/slurm-%j.out"]
    script = f"scripts/{job}.sbatch"
    job = slurm("sbatch", "--parsable", *usual, *where, *options, script, *arguments, **given)
    submitted.append(job.strip())
    return submitted[-1]


def field(job: str, name: str) -> str:
    result = re.search(rf"\b{name}=(\S*)", slurm("scontrol", "show", "job", "-o", job))
    return result.group(1) if result else ""


def wait(what: str, condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{slurm('squeue', '-l')}")
        time.sleep(1)


def steps(run: Path) -> list[str]:
    path = run / "steps.txt"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_step(run: Path, step: int) -> None:
    wait(f"step {step}", lambda: str(step) in steps(run))


def end_as(job: str, state: str, seconds: float, restarts: str = "") -> None:
    wait(f"the end as {state}", lambda: field(job, "JobState") == state, seconds)
    assert not restarts or field(job, "Restarts") == restarts


def output(run: Path) -> str:
    return "".join(p.read_text() for p in run.parent.glob("slurm-*.out"))


def once(run: Path) -> None:
    """Every step was done once, in order."""
    done = [int(line) for line in steps(run) if line.isdecimal()]
    assert done == list(range(1, len(done) + 1)), done


def limit(run: Path) -> str:
    job = submit(run, "--time=2", arguments=("toy",))
    end_as(job, "COMPLETED", 720)
    starts = [line for line in steps(run) if line.startswith("start")]
    assert len(starts) >= 2 and len(starts) - 1 == int(field(job, "Restarts"))
    once(run)
    assert "None" not in starts[0].split("until")[1]
    return f"{len(starts)} starts, 150 steps, each once; exit code 0"


def scancel(run: Path) -> str:
    job = submit(run, "--time=10", arguments=("toy",))
    wait_for_step(run, 3)
    slurm("scancel", job)
    end_as(job, "CANCELLED", 60)
    time.sleep(12)
    end_as(job, "CANCELLED", 0, restarts="0")
    return "stays CANCELLED"


def preemption(run: Path) -> str:
    job = submit(run, "--time=10", "--partition=low", arguments=("toy",))
    wait_for_step(run, 5)
    both = ["--partition=high", "--nodes=2", "--exclusive", "--mem=100", "--time=2"]
    urgent = slurm("sbatch", "--parsable", *both, "--output=/dev/null", "--wrap=sleep 15").strip()
    end_as(urgent, "COMPLETED", 200)
    wait_for_step(run, 12)
    restarts = field(job, "Restarts")
    slurm("scancel", job)
    saved = [line for line in steps(run) if line.startswith("saved")]
    assert restarts == "1" and saved, steps(run)
    once(run)
    assert int(saved[0].split()[1]) < 40, saved  # the preemption began at about 8, and lasts 60 s
    return f"requeued once, {saved[0]}, no step twice"


def node_loss(run: Path) -> str:
    job = submit(run, "--time=10", "--nodelist=n2", arguments=("toy",))
    wait_for_step(run, 55)
    subprocess.run([str(HERE / "cluster.sh"), "kill", "n2"], check=True)
    wait("the job on n1", lambda: field(job, "Restarts") == "1", 120)
    slurm("scontrol", "update", f"JobId={job}", "ReqNodeList=n1", "StartTime=now")
    wait("its second start", lambda: len([s for s in steps(run) if "start" in s]) == 2, 120)
    again = [line for line in steps(run) if line.startswith("start")][1]
    slurm("scancel", job)
    subprocess.run([str(HERE / "cluster.sh"), "start", "n2"], check=True, stdout=subprocess.DEVNULL)
    return f"requeued; {again.split(' until')[0]} (its last checkpoint), on another node"


ENDED = ("COMPLETED", "FAILED")


def twice(run: Path) -> str:
    """A run folder locked by a job on the other node is rejected, and free after its kill."""
    python, script = sys.executable, str(HERE / "stand_in.py")
    printed: list[str] = []
    jobs: list[str] = []

    def word(out: Path) -> bool:
        lines = out.read_text().splitlines() if out.exists() else []
        result = [line for line in lines if line == "held" or " is in use by " in line]
        printed.extend(result[:1])
        return bool(result)

    for node in ("n1", "n2", "n2"):
        out = run.parent / f"hold-{len(jobs)}.out"
        where = [f"--nodelist={node}", "--mem=100", f"--output={out}", "--time=5"]
        line = f"--wrap=exec {python} {script} hold {run}"
        jobs.append(slurm("sbatch", "--parsable", *where, line, **THIS_PYTHON).strip())
        submitted.append(jobs[-1])
        wait(f"word of job {len(jobs)}", lambda out=out: word(out), 180)
        if len(jobs) == 2:
            slurm("scancel", "--signal=KILL", "--full", jobs[0])
            time.sleep(5)
    assert printed[0] == printed[2] == "held", printed
    assert f"on n1 (job {jobs[0]})" in printed[1], printed
    return f"rejected: {printed[1].split('in use by ')[1]}; taken after its kill"


# A toy run of the real training: FSDP over two ranks, an engine on each node.
REAL = [
    *("toy", "data.train_max_samples=40", "data.val_max_samples=20"),
    *("data.train_batch_size=8", "actor_rollout_ref.rollout.n=4"),
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    *("trainer.save_freq=2", "trainer.test_freq=-1"),
]


NETWORK = {"NETWORK_INTERFACE": "eth0", "GPUS_PER_NODE": "1", "RAY_NUM_CPUS": "16"}
BOTH = ["--nodes=2", f"--cpus-per-task={os.cpu_count()}", "--time=60"]


def real(run: Path, steps: int, *settings: str) -> str:
    """Submit the toy training over both nodes; return the number of the job."""
    arguments = (*REAL, f"trainer.total_training_steps={steps}", *settings)
    return submit(run, *BOTH, arguments=arguments, **THIS_PYTHON, **NETWORK)


def cores(run: Path) -> str:
    """Where tasks are bound to cores, Ray has all of each node, also with an srun as runner."""
    ray = run.parent / "venv" / "bin" / "ray"
    ray.parent.mkdir(parents=True)
    ray.write_text('#!/bin/sh\necho "$(hostname) $(nproc) $1"\n')
    ray.chmod(0o755)
    script = ". scripts/job.sh; site_settings; . scripts/ray_nodes.sh; on_nodes n1 n2 -- ray; wait"
    script += "; srun --overlap --ntasks=2 bash -c 'echo bound $(nproc)'"
    given = {"RECIPE_VENV": str(ray.parents[1]), "SLURM_CPU_BIND": "cores"}
    for runner in ("", "srun --overlap --nodes=1 --ntasks=1"):
        out = run.parent / f"cores-{bool(runner)}.out"
        command = ["sbatch", "--wait", *BOTH, "--ntasks-per-node=1", f"--output={out}"]
        slurm(*command, f"--wrap=bash -c {shlex.quote(script)}", **given, RECIPE_RUNNER=runner)
        every = os.cpu_count()
        wanted = ["bound 1"] * 2 + [f"{node} {every} ray" for node in ("n1", "n2")]
        assert sorted(out.read_text().splitlines()) == wanted, out.read_text()
    return f"{every} cores on each node; without --cpus-per-task 1"


def doctor(run: Path) -> str:
    """The trial run over both nodes."""
    given = THIS_PYTHON | NETWORK | {"RUNS": str(run.parent / "runs")}
    cpu = "--gpus-per-node=0"  # evaluation looks for GPUs
    job = submit(run, *BOTH, cpu, job="doctor", arguments=("toy",), **given)
    wait("the end", lambda: field(job, "JobState") in ENDED, LONGEST)
    assert field(job, "JobState") == "COMPLETED" and "Ray has 2 nodes" in output(run), run.parent
    return ", ".join(re.findall(r"^ok   (.*)$", output(run), re.MULTILINE)[-3:])


def lines(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(x)["step"] for x in path.read_text().splitlines()] if path.exists() else []


def nothing_left(run: Path) -> None:
    """No process of the run on either node (they share the machine's process table)."""
    time.sleep(3)
    result = psutil.process_iter(["environ", "cmdline"])
    variables = [(p.info["environ"] or {}, p.info["cmdline"]) for p in result]
    left = [command for v, command in variables if v.get("RECIPE_RUN_DIR") == str(run)]
    assert not left, left


def trained(run: Path, ranks: int, *settings: str) -> None:
    """Train over both nodes to the end, with FSDP over `ranks`."""
    job = real(run, 4, *settings)
    wait("the end", lambda: field(job, "JobState") in ENDED, LONGEST)
    assert field(job, "JobState") == "COMPLETED", run.parent
    assert lines(run) == [1, 2, 3, 4]
    shards = sorted(p.name for p in (run / "checkpoints/global_step_4/actor").glob("model_*"))
    assert shards == [f"model_world_size_{ranks}_rank_{i}.pt" for i in range(ranks)]
    nothing_left(run)
    assert "Ray has 2 nodes" in output(run)


def two_nodes(run: Path) -> str:
    trained(run, 2)
    return "Ray had 2 nodes, 4 steps, FSDP shards of 2 ranks, no process left"


def separate(run: Path) -> str:
    """A node for the actor, the other for the engine, which `train.sbatch` divides."""
    mode = "trainer.v1.trainer_mode=recipe_separate_async"
    trained(run, 1, mode, "actor_rollout_ref.rollout.nnodes=1")
    return "Ray had 2 nodes, 4 steps, one FSDP rank, engine on the other node, no process left"


def lost_raylet(run: Path) -> str:
    """SIGKILL of the second node's raylet in the middle; for SLURM both nodes are healthy."""
    job = real(run, steps=5)
    wait("step 3", lambda: 3 in lines(run), LONGEST)
    inside = ["ip", "netns", "pids", "recipe-n2"]
    pids = [int(x) for x in subprocess.check_output(inside, text=True).split()]
    raylet = [p for p in pids if psutil.Process(p).name() == "raylet"]
    os.kill(raylet[0], signal.SIGKILL)
    began = time.monotonic()
    wait("requeue", lambda: field(job, "Restarts") == "1", 300)
    seen = time.monotonic() - began
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait("the end", lambda: field(job, "JobState") in ENDED, LONGEST)
    assert field(job, "JobState") == "COMPLETED" and lines(run) == [1, 2, 3, 4, 5], run.parent
    nothing_left(run)
    return f"requeued after {seen:.0f} s, resumed from step 2, 5 steps, each line once"


TRAININGS = (two_nodes, separate, lost_raylet, doctor)
DRILLS = (scancel, limit, preemption, node_loss, twice, cores, *TRAININGS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(d.__name__ for d in DRILLS))
    wanted = parser.parse_args().names
    # If a time limit ends this script, its jobs end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for drill in DRILLS:
        if wanted and drill.__name__ not in wanted:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"drill-{drill.__name__}-"))
        began = time.monotonic()
        try:
            happened = drill(folder / "run")
        except (AssertionError, RuntimeError) as error:
            failed += 1
            happened = f"FAILED, see {folder}: {error}"
        finally:
            for job in submitted:
                slurm("scancel", "--quiet", job)
            submitted.clear()
        print(f"{drill.__name__:12} {time.monotonic() - began:4.0f} s  {happened}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
