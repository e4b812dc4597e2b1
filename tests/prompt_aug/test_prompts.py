"""The record of a run's prompts: what it writes is what it reads, and what it does not know."""

from pathlib import Path

import pytest

from prompt_aug.base.tokenizers import TokenizerError, load_tokenizer
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Form, load_bank

PUBLISHED = "published_templates.json"


@pytest.mark.parametrize(("setting", "bank"), [("strict", None), ("published", PUBLISHED)])
def test_what_is_written_is_what_is_read(
    tmp_path: Path, shared_data: Path, setting: str, bank: str | None
) -> None:
    section = {"format": setting, "style": "raw", "validation_template": "deepseek-r1"}
    section |= {"instruction": "user", "system": "template"}
    source = bank and str(shared_data / bank)
    prompts = Prompts.from_section(section | {"bank": source})
    path = tmp_path / "prompts.yaml"
    prompts.write(path)
    again = Prompts.read(path)
    assert again == prompts
    assert again.form == Form(style="raw", instruction="user", system="template")
    assert (again.format, again.source) == (setting, source)
    assert again.validation_template == "deepseek-r1"
    assert again.to_yaml() == path.read_text(encoding="utf-8")
    # The file is a bank by itself, so a template is asked for in one way only.
    assert load_bank(path, setting) == prompts.bank  # type: ignore[arg-type]


def test_a_tokenizer_that_knows_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(TokenizerError, match="gives no token for '1': its files are lost"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match="no tokenizer can be loaded from"):
        load_tokenizer(str(tmp_path))
