"""A run goes on with the prompts it began with, whatever has become of its bank's file."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from prompt_aug.prompts import Prompts
from recipe.checks.prompts import check_same_prompts
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder


def test_a_bank_that_changed_since_the_first_step_is_refused(tmp_path: Path) -> None:
    bank, folder = tmp_path / "bank.yaml", RunFolder(tmp_path)
    entry = {"category": "mine", "user": "Solve: {question}"}
    bank.write_text(yaml.safe_dump({"templates": {"mine": entry}}))
    augment = {"bank": str(bank), "format": "strict", "style": "auto"}
    section = {"augment": {**augment, "validation_template": "mine"}}
    config = OmegaConf.create({"recipe": section, "data": {}})
    check_same_prompts(config, folder).write(folder.prompts)
    entry["user"] = "Solve it: {question}"
    bank.write_text(yaml.safe_dump({"templates": {"mine": entry}}))
    changed = check_same_prompts(config, folder)  # no step was done: nothing is mixed
    assert changed.bank["mine"].user == "Solve it: {question}"
    folder.metrics.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"templates mine of .*bank\.yaml are not those"):
        check_same_prompts(config, folder)
    Prompts.from_section(config.recipe.augment).write(folder.prompts)
    check_same_prompts(config, folder)
