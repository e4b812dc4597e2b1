"""What is refused before Ray starts: what would be something else, or fail late.

`validate` looks at the configuration alone and takes no time; `recipe.checks.machine` looks at the
machine, `recipe.checks.data` at the questions. Ranges of single keys are in `recipe.config.schema`.
"""

from omegaconf import DictConfig

from prompt_aug.templates import Bank
from recipe.checks.algorithm import check_algorithm
from recipe.checks.checkpoints import check_keeping
from recipe.checks.data import check_templates
from recipe.checks.functions import check_functions
from recipe.checks.verl import check_batches, check_engines, check_lengths, check_verl
from recipe.config.schema import check_types


def validate(config: DictConfig) -> Bank:
    """Refuse a composed configuration that could not run, or would not do what it says.

    Reads nothing but the bank of templates, which it returns; `config` stays as it is. Raises
    ConfigError, or BankError for a bank that cannot be read. Whoever changes a configuration that
    `compose_config` made calls this again.
    """
    check_types(config)
    bank = check_templates(config)
    check_verl(config)
    check_algorithm(config)
    check_functions(config)
    check_engines(config)
    check_batches(config)
    check_lengths(config)
    check_keeping(config)
    return bank
