"""Prompts and format rewards of the published layers are those of the papers' authors.

digests.json holds what the authors' own code gave, at the commits that examples/PUBLISHED.md names,
for one question and for a fixed corpus of responses: worked answers of two-digit sums and
differences in every template's format, with mistakes, then broken. Each is a function of its key.
None of the authors' text is here.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from smollm2 import FORMS, PLAIN  # scripts/smollm2.py
from tiny_model import save_tokenizer

from eval import sweep
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.prompts import Prompts
from prompt_aug.questions import make_question, write_parquet
from prompt_aug.templates import BankError, load_bank
from prompt_aug.templates.__main__ import main as templates
from recipe import train

AUTHORS = json.loads(Path(__file__).with_name("digests.json").read_text())
PROMPTS, REWARDS = AUTHORS["prompts"], AUTHORS["format_rewards"]
NAMES = load_bank().names
MADE = Path(__file__).resolve().parents[2] / "data" / "published"  # where the command writes
FORGOTTEN, COPY, PLAINLY = 0.60, 0.05, 0.30  # rates: forgotten carry, wrong copy, no format


def unit(*key: object) -> float:
    """Return a number in [0, 1) that is a pure function of `key` (BLAKE2b, 64 bits)."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def worked(a: int, op: str, b: int, forgets: bool) -> tuple[str, int]:
    """Return (work, answer) of ``a op b``; the tens may forget the carry or borrow of the ones."""
    sign = 1 if op == "+" else -1
    (tens, ones), (more_tens, more) = divmod(a, 10), divmod(b, 10)
    due = ones + more > 9 if op == "+" else ones < more
    ones += 10 if due and op == "-" else 0
    low, note = ones + sign * more, due and not forgets
    high = tens + sign * (more_tens + note)
    work = f"{ones}{op}{more}={low}, {tens}{op}{more_tens}{f'{op}1' if note else ''}={high}"
    return f"{a}{op}{b}: {work}", 10 * high + low % 10


def draw_demonstration(a: int, op: str, b: int, template: str, *key: object) -> str:
    """Return an answer whose mistakes are a function of `key`, template and problem."""
    place = (*key, template, a, op, b)
    work, answer = worked(a, op, b, unit("forget", *place) < FORGOTTEN)
    answer += unit("misread", *place) < COPY
    text = PLAIN if unit("format", *place) < PLAINLY else FORMS.get(template, PLAIN)
    box = f"\\boxed{{{answer}}}"
    return text.replace("{work}", work).replace("{box}", box).replace("{answer}", str(answer))


SIZE = 6500  # responses, an equal part of them in the format of each template
MARKERS = sorted({marker for t in load_bank().values() for marker in t.published})
PIECES = [*MARKERS, *(m.strip() for m in MARKERS), "\n", " ", "", "\\boxed{1}", "</s>", "<think"]


def broken(text: str, chance: random.Random) -> str:
    """`text` after up to four changes."""
    for _ in range(chance.randrange(5)):
        here = [m for m in MARKERS if m in text]
        place = text.find(chance.choice(here)) if here else chance.randrange(len(text) + 1)
        end = min(len(text), place + chance.randrange(1, 24))
        piece = chance.choice([text[place:end], *PIECES])
        kind = chance.randrange(3)
        cut = text[:place] + (text[place:] if kind == 0 else text[end:])
        spot = chance.randrange(len(cut) + 1) if kind == 2 else min(place, len(cut))
        text = cut[:spot] + piece + cut[spot:]
    return text


def responses() -> Iterator[str]:
    """SIZE responses."""
    names, chance = load_bank().names, random.Random(0)
    for i in range(SIZE):
        b, a = sorted(chance.randrange(10, 100) for _ in range(2))
        operation = chance.choice("+-")
        text = draw_demonstration(a, operation, b, names[i % len(names)], "published", i)
        yield text if i % 5 == 0 else broken(text, chance)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def bank(name: str, shared_data: Path) -> str:
    """A bank made of an authors' checkout: prompt augmentation's is in the shared data too."""
    own = name == "prompt_aug"
    path = shared_data / "published_templates.json" if own else MADE / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"needs {path}, which `python -m prompt_aug.templates published` makes")
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder with a ChatML tokenizer, and a parquet file of the one question."""
    folder = tmp_path_factory.mktemp("published")
    save_tokenizer(folder / "model")
    config = {"model_type": "qwen2", "max_position_embeddings": 40_000, "vocab_size": 320}
    config |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    config |= {"architectures": ["Qwen2ForCausalLM"]}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "model" / "model.safetensors").write_bytes(b"no weights")
    text, three = AUTHORS["question"], ("a?", "b?", "c?")
    question = make_question(text=text, answers=("2",), source="t", rephrasings=three)
    write_parquet([question] * 256, folder / "questions.parquet")
    return folder / "model", folder / "questions.parquet"


@pytest.mark.config
@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("ta_grpo", None, "ta_grpo/train/box2"),
        ("cw_grpo", None, "cw_grpo/train"),
        ("prompt_aug", "prompt_aug", "prompt_aug/train/abel"),
        ("paper_ta_grpo", None, "ta_grpo/evaluation/box2"),
        ("paper_cw_grpo", "cw_grpo", "cw_grpo/evaluation"),
        ("paper_prompt_aug", None, "prompt_aug/evaluation"),
    ],
)
def test_a_dry_run_of_a_layer_or_a_preset_prints_the_authors_prompt(
    files: tuple[Path, Path],
    shared_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    own: str | None,
    expected: str,
) -> None:
    model, questions = files
    made = bank(own, shared_data) if own else None
    if name.startswith("paper_"):
        given = ["--bank", made] if made else []
        given += ["--model", str(model), "--out", str(tmp_path), "--benchmark", f"one={questions}"]
        code = sweep.main([*given, "--preset", name, "--dry-run"])
        assert list(tmp_path.iterdir()) == []
    else:
        given = [f"recipe.augment.bank={made}"] if made else []
        given += [f"published={name}", f"recipe.model_path={model}", f"recipe.run_dir={tmp_path}"]
        given += [f"data.train_files=[{questions}]", f"data.val_files=[{questions}]"]
        given += ["data.max_prompt_length=1024", "actor_rollout_ref.rollout.max_model_len=4200"]
        code = train.main([name, *given, "--dry-run"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert f"sha256 {PROMPTS[expected]}" in shown.out


@pytest.mark.parametrize("name", NAMES)
def test_every_template_of_a_converted_checkout_is_the_authors_to_the_byte(
    files: tuple[Path, Path], shared_data: Path, name: str
) -> None:
    prompts = Prompts.from_section({"bank": bank("prompt_aug", shared_data), "style": "chat"})
    prompt = prompts.render(name, AUTHORS["question"], load_tokenizer(str(files[0])))
    assert sha256(prompt.rendered.text) == PROMPTS[f"prompt_aug/train/{name}"]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    texts = list(responses())
    assert len(texts) == REWARDS["responses"] >= 5000
    assert sha256("\0".join(texts)) == REWARDS["responses_sha256"]
    return texts


@pytest.mark.parametrize("name", [*NAMES, "cw-grpo"])
def test_format_rewards_are_the_authors(corpus: list[str], name: str) -> None:
    """In 1024ths: thirds are rounded to them, everything else is exact."""
    template = load_bank("papers" if name == "cw-grpo" else None, "published")[name]
    rewards = [round(1024 * template.format_reward(text)) for text in corpus]
    authors: dict[str, Any] = REWARDS["rewards"][name]
    assert Counter(map(str, rewards)) == authors["rewards"]
    assert sha256(json.dumps(rewards)) == authors["sha256"]


def checkout(folder: Path) -> Path:
    """A checkout like CW-GRPO's, in other words."""
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "gaussian_1.5b.yaml").write_text('system_prompt: "Box {{}} it."\n')
    code = folder / "src" / "open_r1" / "evaluate.py"
    code.parent.mkdir(parents=True)
    code.write_text('MATH_QUERY_TEMPLATE = """\nSay {{X}}.\n\n{Question}\n""".strip()\n')
    return folder


def test_a_checkout_becomes_a_bank(tmp_path: Path) -> None:
    out = tmp_path / "cw_grpo.json"
    with pytest.raises(BankError, match=r"is missing.*examples/PUBLISHED\.md"):
        load_bank(out)
    assert templates(["published", str(checkout(tmp_path / "there")), str(out)]) == 0
    made = load_bank(out, "published")
    assert made["cw-grpo"].system == "Box {{}} it."  # its recipe is not formatted: the braces stay
    assert made["cw-grpo"].published == ("\n</think>\n",)
    assert made["cw-grpo-query"].user == "Say {X}.\n\n{question}"
    assert made["cw-grpo-query"].system is None


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    assert templates(["published", str(tmp_path), str(tmp_path / "x.json")]) == 1
    code = tmp_path / "verl" / "utils" / "dataset" / "templates.py"
    code.parent.mkdir(parents=True)
    code.write_text("templates = input()\n")
    assert templates(["published", str(tmp_path), str(tmp_path / "x.json")]) == 1
    assert not (tmp_path / "x.json").exists()
