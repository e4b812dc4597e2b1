"""The record of a run's prompts: what it writes is what it reads, and what it does not know."""

from pathlib import Path

import pytest

from prompt_aug.base.tokenizers import TokenizerError, load_tokenizer
from prompt_aug.prompts import Prompts
from prompt_aug.templates import BankError, Form, UnknownTemplateError, load_bank

PUBLISHED = "published_templates.json"


@pytest.mark.parametrize("setting", ["strict", "published"])
def test_what_is_written_is_what_is_read(tmp_path: Path, setting: str) -> None:
    section = {"format": setting, "style": "raw", "validation_template": "deepseek-r1"}
    section |= {"instruction": "user", "system": "template"}
    prompts = Prompts.from_section(section)
    path = tmp_path / "prompts.yaml"
    prompts.write(path)
    again = Prompts.read(path)
    assert list(again.bank.items()) == list(prompts.bank.items())
    assert (again.form, again.format, again.source) == (prompts.form, setting, None)
    assert again.form == Form(style="raw", instruction="user", system="template")
    assert again.validation_template == "deepseek-r1"
    assert again.to_yaml() == path.read_text(encoding="utf-8")
    # The file is a bank by itself, so a template is asked for in one way only.
    assert list(load_bank(path, setting).items()) == list(prompts.bank.items())  # type: ignore[arg-type]


def test_a_published_bank_travels_whole(tmp_path: Path, shared_data: Path) -> None:
    source = str(shared_data / PUBLISHED)
    prompts = Prompts.from_section({"bank": source})
    prompts.write(tmp_path / "prompts.yaml")
    again = Prompts.read(tmp_path / "prompts.yaml")
    assert again.source == source
    for name, template in prompts.bank.items():
        assert again.bank[name] == template


def test_rendering_is_that_of_the_style(tmp_path: Path) -> None:
    class Chat:
        chat_template = "a template that opens a tag"
        all_special_tokens = ()

        def apply_chat_template(self, chat: list[dict[str, str]], **_: object) -> str:
            return "".join(f"[{m['role']}]{m['content']}" for m in chat) + "<think>\n"

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [ord(c) for c in text]

    def prompt(style: str) -> str:
        made = Prompts.from_section({"style": style}).render("deepseek-r1", "1 + 1?", Chat())
        assert made.ids == tuple(ord(c) for c in made.rendered.text)
        return made.rendered.text

    assert prompt("auto") == prompt("chat") != prompt("raw")
    assert prompt("auto").endswith("<think>\n") and "<think>\n" not in prompt("raw")[-20:]


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"style": "plain"}, BankError),
        ({"bank": "nowhere.yaml"}, BankError),
        ({"validation_template": "qwen"}, UnknownTemplateError),
    ],
)
def test_what_is_not_known_is_refused(section: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        Prompts.from_section(section)


@pytest.mark.parametrize("text", ["", "templates: {}", "[1]", "a: [", "style: auto"])
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(BankError, match=r"prompts\.yaml"):
        Prompts.read(path)
    with pytest.raises(BankError, match=r"none\.yaml"):
        Prompts.read(tmp_path / "none.yaml")


def test_a_tokenizer_that_knows_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(TokenizerError, match="gives no token for '1': its files are lost"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match="no tokenizer can be loaded from"):
        load_tokenizer(str(tmp_path))
