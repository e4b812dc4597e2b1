"""All checks of a run: ``python -m recipe.start --rules`` prints them.

`check` runs them before Ray starts: types (`recipe.config.verl`), then the rules about settings,
then files, resume and machine. `recipe.train`, its ``--dry-run`` and the doctor run these lists.
"""

import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.base.files import write_json, write_text
from prompt_aug.prompts import Prompts
from recipe.config.verl import check_types
from recipe.run.folder import RunFolder
from recipe.start.algorithm import ALGORITHM
from recipe.start.attention import settle
from recipe.start.data import FILES, PROMPTS, load_tokenizer
from recipe.start.engine import ENGINE, LORA
from recipe.start.functions import FUNCTIONS, own_functions
from recipe.start.machine import MACHINE
from recipe.start.names import NAMES
from recipe.start.questions import prepare_data
from recipe.start.resume import RESUME, STEPS, repair_checkpoints
from recipe.start.rules import Check, Setup, refuse

# Checks of the configuration alone, by theme.
SETTINGS: dict[str, list[Check]] = {
    "Names": NAMES,  # first: registers what others look up
    "Prompts": PROMPTS,
    "Algorithm": ALGORITHM,
    "verl and its engines": ENGINE,
    "LoRA": LORA,
    "Own functions": FUNCTIONS,
}
# Checks of the run folder, the data and the machine.
PLACE: dict[str, list[Check]] = {"Files": FILES, "Resume": RESUME, "Machine": MACHINE}


def validate(config: DictConfig) -> Prompts:
    """Reject a configuration that cannot run or would silently run something else.

    Reads only the bank of templates and the user's modules, and changes nothing. Returns the
    templates and settings for rendering. Raises ConfigError with every problem, one a line. Call it
    again after each change of a configuration that `compose_config` returned.
    """
    check_types(config)
    setup = Setup(config)
    refuse([check for checks in SETTINGS.values() for check in checks], setup)
    return setup.prompts


def check(config: DictConfig, *, here: bool = True, gpu: str | None = None) -> Prompts:
    """Run every check that writes no file; `here` is False for a run on another machine with `gpu`.

    Makes the paths of the run absolute: actors may run on another node or in another folder.
    """
    prompts = validate(config)
    with open_dict(config):
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).resolve())
        config.recipe.run_dir = str(Path(config.recipe.run_dir).resolve())
    setup = Setup(config, here=here, gpu=gpu)
    refuse([check for checks in PLACE.values() for check in checks], setup)
    return prompts


def prepare(config: DictConfig, prompts: Prompts) -> None:
    """Choose the attention, and write the checked questions and config.yaml."""
    folder = RunFolder(Path(config.recipe.run_dir))
    for message in [*repair_checkpoints(config), *settle(config)]:
        print(f"recipe.train: {message}", file=sys.stderr)
    shown = config.copy()  # keeps the user's data files, which `prepare_data` replaces
    report = prepare_data(config, prompts, load_tokenizer(config))
    write_json(folder.data_manifest, report | {"own_functions": own_functions(Setup(config))})
    prompts.write(folder.prompts)
    config.trainer.resume_mode = "auto"  # a copied checkpoint is the run's own by now
    OmegaConf.update(shown, STEPS, config.trainer.total_training_steps)
    write_text(folder.config, OmegaConf.to_yaml(shown, resolve=True))
