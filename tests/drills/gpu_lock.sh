#!/usr/bin/env bash
# Install requirements/gpu.txt on a machine without a GPU, and look at what can be looked at there:
# the imports, the doctor, the composition of every example. Outside CI: 4.2 GiB to fetch.
#
#   tests/drills/gpu_lock.sh FOLDER        FOLDER (10 GiB) is made, or used as it is
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
folder=${1:?name a folder}
failed=0

step() { # NAME COMMAND...
    local name=$1 began=$SECONDS
    shift
    if "$@" >"$folder/$name.log" 2>&1; then
        echo "$name: ok, $((SECONDS - began)) s"
    else
        echo "$name: FAILED, see $folder/$name.log"
        tail -n 5 "$folder/$name.log"
        failed=1
    fi
}

mkdir -p "$folder"
python=$folder/bin/python
if [[ ! -x $python ]]; then "${PYTHON:-python3.11}" -m venv "$folder" || exit 1; fi
if [[ ! -f $folder/.installed ]]; then
    step install "$python" -m pip install --no-deps --no-compile -r requirements/gpu.txt
    step project "$python" -m pip install --no-deps --no-build-isolation -e .
    ((failed)) || touch "$folder/.installed"
fi
unset VERL_PLATFORM # the CPU's adapters stay off: this is what a GPU node imports
step check "$python" -m pip check
step imports "$python" -c "
import torch, vllm, verl, ray, transformers, tensordict, transfer_queue
import recipe.plugin, recipe.trainer.trainer, recipe.rollout.workers, recipe.rollout.reward
import eval.engine, eval.sweep, recipe.export.merge
from vllm import LLM, SamplingParams
print(torch.__version__, torch.version.cuda, vllm.__version__, verl.__version__)
assert torch.version.cuda and not torch.cuda.is_available()"
step compose "$python" -c "
from pathlib import Path
from recipe.preflight.checks import validate
from recipe.config.compose import compose_config
names = sorted(p.parent.name for p in Path('examples').glob('*/config.yaml'))
for name in names:
    more = ['method=grpo'] if name == 'toy_methods' else []
    print(name, validate(compose_config(name, more)) is not None)
assert len(names) > 10"
echo '--- python -m recipe.doctor (its GPU lines must say that there is none)'
"$python" -m recipe.doctor --runs "$folder/runs"
exit "$failed"
