"""What is refused before Ray starts: what would be something else, or fail late.

`validate` looks at the configuration alone and takes no time; `recipe.checks.machine` looks at the
machine, `recipe.checks.data` at the questions. Ranges of single keys are in `recipe.config.schema`.
"""

from omegaconf import DictConfig

from prompt_aug.prompts import Prompts
from recipe.checks.algorithm import check_algorithm
from recipe.checks.checkpoints import check_keeping
from recipe.checks.data import check_templates
from recipe.checks.functions import check_functions
from recipe.checks.verl import check_batches, check_engines, check_lengths, check_verl
from recipe.config.schema import check_types


def validate(config: DictConfig) -> Prompts:
    """Refuse a composed configuration that could not run, or would not do what it says.

    Reads nothing but the bank of templates; returns how the run asks. `config` is not changed.
    Raises ConfigError, or BankError for a bank that cannot be read. Whoever changes a configuration
    that `compose_config` made calls this again.
    """
    check_types(config)
    prompts = check_templates(config)
    check_verl(config)
    check_algorithm(config)
    check_functions(config)
    check_engines(config)
    check_batches(config)
    check_lengths(config)
    check_keeping(config)
    return prompts
