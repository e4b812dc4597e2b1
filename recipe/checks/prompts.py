"""The record of a run's prompts must stay the same for all of its steps and its evaluation."""

from omegaconf import DictConfig

from prompt_aug.prompts import Prompts
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder


def check_same_prompts(config: DictConfig, folder: RunFolder) -> Prompts:
    """The prompts of `config`; ConfigError where the run's earlier steps had other ones.

    config.yaml only names the bank's file: its content may have changed since.
    """
    prompts = Prompts.from_config(config)
    if folder.metrics.exists() and folder.prompts.exists():
        before = Prompts.read(folder.prompts)
        names = sorted({*before.bank, *prompts.bank})
        changed = [n for n in names if dict(before.bank).get(n) != dict(prompts.bank).get(n)]
        if changed:
            raise ConfigError(
                f"the templates {', '.join(changed[:5])} of {prompts.source or 'our own bank'} are "
                f"not those that the earlier steps of {folder.root} were trained with "
                "(prompts.yaml): take the bank of then, or choose another folder with "
                "recipe.run_dir=..."
            )
    return prompts
