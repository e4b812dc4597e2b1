#!/usr/bin/env bash
# Make the CPU environment: .venv in the repository root, or the folder that RECIPE_VENV names.
#
#   bash scripts/setup.sh [--help]     a second call costs under a second
#
# RECIPE_VENV      where the environment lives           (default: .venv)
# PYTHON           the interpreter to make it with       (default: python3.11 or 3.12 on PATH)
# TORCH_CPU_INDEX  index of PyTorch's CPU wheels, used only if pip's configured index does not
#                  have torch+cpu                        (default: download.pytorch.org/whl/cpu)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PIP_USER PIP_CONSTRAINT PYTHONPATH # an image's, for packages of its own

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/setup.sh
    exit 0
fi
venv=${RECIPE_VENV:-.venv}
[[ $venv == /* ]] || venv=$PWD/$venv
if [[ -L $venv ]]; then # to another disk: the link stays
    mkdir -p "$(readlink -m "$venv")"
    venv=$(readlink -f "$venv")
fi
index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
lock=requirements/cpu.txt
torch=$(grep -oE '^torch==[0-9.]+' "$lock")+cpu
made="$venv/.made-by-setup" # the folder is ours: an interrupted build may be removed
modules="venv, ensurepip, ssl, ctypes, lzma, bz2" # a Python built without their headers lacks some
stamp="$venv/.setup-stamp"  # written last: the environment is whole
wanted="$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1) $PWD"

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
whole() { [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$venv/bin/python" -c ''; }

# A name on PATH may be a shim of a version manager that has no such version: run it.
suits() {
    "$1" -c "import sys, $modules; sys.exit(not (3, 11) <= sys.version_info < (3, 13))" 2>/dev/null
}

requires() {
    local libc
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2) || true
    libc=${libc:-2.31} # not known
    [[ $(uname -m) == x86_64 && $(printf '2.31\n%s\n' "$libc" | sort -V | head -1) == 2.31 ]] ||
        die "$(uname -m), glibc $libc: the packages of $lock are for x86_64 and glibc 2.31"
    # vLLM's kernels need it and would be left out without an error.
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        die "libnuma.so.1 is missing, which vLLM needs: apt install libnuma1 (Fedora: numactl-libs)"
}

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        suits "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or 3.12 with the modules $modules"
        echo "$PYTHON"
        return
    fi
    local name
    for name in python3.11 python3.12 python3 python; do
        if suits "$name"; then
            echo "$name"
            return
        fi
    done
    die "no Python 3.11 or 3.12 with the modules $modules on PATH; install one (Debian: apt install" \
        "python3.11 python3.11-venv; elsewhere: pyenv, conda, uv) or name it: PYTHON=/path/to/python"
}

# An environment that is not ours and holds another torch: a GPU's, which the CPU build would break.
refuse_foreign() {
    local found
    [[ ! -e $made && ! -e $stamp ]] || return 0
    if [[ -d $venv/conda-meta ]]; then
        found="is a conda environment"
    elif compgen -G "$venv/lib/python3*/site-packages/torch-*.dist-info" | grep -qv '+cpu'; then
        found="holds a torch that is not the CPU build"
    else
        return 0
    fi
    die "$venv $found, and nothing was changed in it: the CPU environment of tests and demo is a" \
        "folder of its own. Name another one: RECIPE_VENV=.venv-cpu"
}

# Installing here would point the environment of another clone, perhaps behind a link, to this one.
refuse_shared() {
    local other
    [[ -f $stamp ]] || return 0
    other=$(cut -d' ' -f2- "$stamp")
    [[ ! -d $other || $other -ef $PWD ]] ||
        die "$venv is the environment of $other, and nothing was changed in it. Remove the link, or" \
            "name another one: RECIPE_VENV=.venv-own"
}

make_venv() {
    if [[ -e $made && ! -e $stamp ]]; then
        say "a build of $venv was cut: starting it again"
        rm -rf "$venv"
    elif [[ -d $venv && ! -f $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
        die "$venv is a folder but no Python environment: move it away, or set RECIPE_VENV"
    fi
    if ! suits "$venv/bin/python"; then
        # Perhaps whole on another node: of another processor, or with a Python that is a module there.
        [[ ! -e $venv/bin/python ]] ||
            die "$venv/bin/python is no Python 3.11 or 3.12 that starts here with the modules" \
                "$modules, and nothing was changed in it: remove $venv, or name another folder:" \
                "RECIPE_VENV=.venv-own"
        local python
        python=$(find_python)
        say "making $venv with $python ($("$python" --version))"
        rm -rf "$venv" # its interpreter is gone
        mkdir -p "$venv"
        touch "$made"
        "$python" -m venv "$venv"
    fi
    pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip
}

# The CPU build first and by its full version: a plain torch==X is the CUDA build on PyPI, and the
# lock's torch==X is then already satisfied.
install_torch() {
    if pip install --no-deps "$torch"; then
        return
    fi
    say "pip does not offer $torch here: asking $index (TORCH_CPU_INDEX)"
    pip install --no-deps --index-url "$index" "$torch" ||
        die "no $torch, see above: set TORCH_CPU_INDEX to a mirror, or PIP_FIND_LINKS to a folder" \
            "of wheels"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

whole 2>/dev/null && exit 0
exec 9>>"$lock" # two calls at once would install over each other; nothing is written
flock -n 9 || {
    (($? == 1)) || die "the file system of $PWD has no locks, see above: use a checkout elsewhere"
    say "another setup is at work: waiting for it"
    flock 9
}
whole 2>/dev/null && exit 0
refuse_foreign
refuse_shared
make_venv
requires
rm -f "$stamp"
say "installing $torch"
install_torch >&2
say "installing $lock ($(grep -c == "$lock") packages; about 1.5 GB to download the first time)"
pip install --no-deps -r "$lock" >&2
say "installing the project"
pip install --quiet --no-deps --no-build-isolation -e .
"$venv/bin/python" - <<'PY' || die "torch is not the CPU build: remove $venv and start again"
import importlib.metadata as metadata
import sys
sys.exit(not metadata.version("torch").endswith("+cpu"))
PY
printf '%s' "$wanted" >"$stamp"
say "done: $venv"
