"""Fixtures that every test may use."""

import gc
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import wrapt


# Several processes of a test run at once: more threads than cores make each wait for the others.
# A hook, since xdist's first process loads this file as well, and the others wait for it.
@wrapt.when_imported("torch")
def _one_thread(torch: Any) -> None:
    torch.set_num_threads(1)


@wrapt.when_imported("recipe.config.compose")
def _merges_once(module: Any) -> None:
    from composed import merging_once

    module.compose = merging_once(module.compose, module.EXAMPLES)


# What the imports of collection leave is never freed: to walk through it again and again would take
# a seventh of the time of the unit tests.
gc.disable()


LONGEST = """
    test_cpu.py test_merger.py test_saving.py test_doctor.py test_scripts.py test_sockets.py
    test_pipeline_e2e.py test_methods_e2e.py test_together_e2e.py test_sweep_e2e.py
    test_notebook_e2e.py test_referee_e2e.py test_verifier_e2e.py test_server_e2e.py
""".split()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the later stages of scripts/test.sh, skip files without a test of it, to save imports.

    The unit stage, which `--fast` runs alone, imports every file: nothing else would see a name
    that is gone. Files that the command line names are never ignored.
    """
    stage = config.getoption("markexpr")
    if stage not in ("config", "e2e") or not fnmatch(collection_path.name, "test_*.py"):
        return None
    return f"pytest.mark.{stage}" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that two workers end at about the same time."""

    def place(item: pytest.Item) -> int:
        return LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)

    items.sort(key=place)  # stable: all others keep their order


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def _environment_is_restored() -> Iterator[None]:
    """Undo changes of os.environ: a command called in process sets variables for its run."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def toy_config() -> Any:
    """The configuration of examples/toy, for all tests: copy it before a change.

    16 questions x 8 responses, mini-batches of 8, micro-batches of 32 responses, one rank.
    """
    from composed import composed  # hydra, which not every process needs

    return composed("toy")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; skips without it, fails without it under CI."""
    if SHARED_DATA.is_dir():
        return SHARED_DATA
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but the real-data folder {SHARED_DATA} is missing")
    pytest.skip("needs the real-data folder ../shared/data, which is not here")
