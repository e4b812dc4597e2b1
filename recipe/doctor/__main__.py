"""Doctor: ``python -m recipe.doctor``: could a training run start here, and if not, why not.

Prints versions, platform, devices, plug-ins, room and ports, and a remedy for each problem. Exit
code 1 if a run could not start. It imports nothing that may be broken: verl, vLLM, Ray and the
launcher are imported in processes of their own, side by side, and a failure is shown with its own
traceback.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from prompt_aug.base.commands import make_parser
from recipe.doctor import checks, probes
from recipe.doctor.checks import Check


def examine(run_root: Path, environment: Mapping[str, str]) -> list[Check]:
    """Every check, the slow imports running while the quick ones are made."""
    gpus = checks.gpu_names()
    platform = environment.get("VERL_PLATFORM", "").strip().lower()
    cpu = checks.takes_cpu(platform, gpus)
    started = probes.start({**environment, **({"VERL_PLATFORM": "cpu"} if cpu else {})}, cpu)
    quick = [
        checks.python(sys.version_info[:3], cpu),
        checks.system(),
        checks.memory(),
        checks.devices(gpus, cpu),
        checks.chosen_platform(platform),
        *checks.requirements(cpu),
        checks.pins(checks.lock_file(cpu), cpu),
        checks.attention(cpu),
        checks.companions(),
        *checks.entry_points(),
        checks.writable("run folders", run_root, 1.0),
        checks.writable("temporary files", checks.temporary_folder(), 1.0),
        checks.shared_memory(),
        checks.port(),
    ]
    return [check for check in quick if check] + probes.finish(started)


def report(found: list[Check]) -> str:
    """One line per check; under a problem its remedy, indented."""
    lines = []
    for check in found:
        mark = "ok  " if check.ok else ("FAIL" if check.needed else "note")
        body = check.detail.replace("\n", "\n         ")
        lines.append(f"{mark} {check.name}: {body}")
        if not check.ok:
            lines.append(f"     -> {check.remedy}")
    stop = [check.name for check in found if not check.ok and check.needed]
    verdict = f"a training run could NOT start: {', '.join(stop)}" if stop else "a run could start"
    return "\n".join([*lines, f"recipe.doctor: {verdict}"])


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser("python -m recipe.doctor", __doc__, example="python -m recipe.doctor")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders will be")
    parsed = parser.parse_args(arguments)
    print("recipe.doctor: importing verl, vLLM and Ray, some seconds ...", file=sys.stderr)
    found = examine(parsed.runs, os.environ)
    print(report(found))
    return int(any(not check.ok and check.needed for check in found))


if __name__ == "__main__":
    sys.exit(main())
