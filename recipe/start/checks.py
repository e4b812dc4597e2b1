"""All checks of a run: ``python -m recipe.train --rules`` prints them.

`check_run` runs them before Ray starts: types (`recipe.config.verl`), rules about settings, then
files, resume and machine. `recipe.train`, its ``--dry-run`` and the doctor run these lists.
"""

import sys
from pathlib import Path

from omegaconf import OmegaConf, open_dict

from prompt_aug.base.files import write_json, write_text
from recipe.config.verl import check_types
from recipe.start.algorithm import ALGORITHM
from recipe.start.attention import settle
from recipe.start.data import FILES, PROMPTS, load_tokenizer
from recipe.start.engine import ENGINE, LORA
from recipe.start.functions import names_exist, own_functions, runs_on_a_batch
from recipe.start.machine import MACHINE
from recipe.start.questions import prepare_data
from recipe.start.resume import RESUME, STEPS, repair_checkpoints
from recipe.start.rules import Check, Setup, refuse

# Checks of the configuration alone, by theme.
SETTINGS: dict[str, list[Check]] = {
    "Names": [names_exist],  # first: registers what others look up
    "Prompts": PROMPTS,
    "Algorithm": ALGORITHM,
    "verl and its engines": ENGINE,
    "LoRA": LORA,
    "Own functions": [runs_on_a_batch],
}
# Checks of the run folder, the data and the machine.
PLACE: dict[str, list[Check]] = {"Files": FILES, "Resume": RESUME, "Machine": MACHINE}
EVERY = SETTINGS | PLACE


def validate(s: Setup) -> None:
    """Reject a configuration that cannot run or would silently run something else.

    Reads only the bank of templates and the user's modules, and changes nothing. Raises ConfigError
    with every problem, one a line. Call it with a new Setup after each change of a configuration
    that `compose_config` returned.
    """
    check_types(s.config)
    refuse([check for checks in SETTINGS.values() for check in checks], s)


def check_run(s: Setup) -> None:
    """Run every check that writes no file.

    Makes the paths of the run absolute: actors may run on another node or in another folder.
    """
    validate(s)
    with open_dict(s.config):
        s.trainer.default_local_dir = str(Path(s.trainer.default_local_dir).resolve())
        s.recipe.run_dir = str(Path(s.recipe.run_dir).resolve())
    refuse([check for checks in PLACE.values() for check in checks], s)


def prepare(s: Setup) -> None:
    """Choose the attention, and write the checked questions and config.yaml."""
    folder = s.folder
    for message in [*repair_checkpoints(s), *settle(s)]:
        print(f"recipe.train: {message}", file=sys.stderr)
    shown = s.config.copy()  # keeps the user's data files, which `prepare_data` replaces
    report = prepare_data(s, load_tokenizer(s))
    write_json(folder.data_manifest, report | {"own_functions": own_functions(s)})
    s.prompts.write(folder.prompts)
    s.trainer.resume_mode = "auto"  # a copied checkpoint is the run's own by now
    OmegaConf.update(shown, STEPS, s.trainer.total_training_steps)
    write_text(folder.config, OmegaConf.to_yaml(shown, resolve=True))
