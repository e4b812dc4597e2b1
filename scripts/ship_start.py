"""Write the start model of the quick start to recipe/toy/start, in float16 (1.7 MB).

    python scripts/ship_start.py [KEY=VALUE ...]

Needed after a change of the world `staircase`, a template or the tokenizer. First remove the old
file: a new tokenizer does not change its name, so it would be loaded. The model is taught here
unless the cache has it. Then measure the table of README.md again.
"""

import sys
from pathlib import Path

from safetensors.torch import save_model
from transformers import AutoModelForCausalLM

from prompt_aug.base.commands import make_parser
from prompt_aug.templates import load_bank
from recipe.config.compose import compose_config
from recipe.toy import build


def main() -> None:
    parser = make_parser(
        "python scripts/ship_start.py", __doc__, example="python scripts/ship_start.py"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of examples/toy")
    config = compose_config("toy", parser.parse_args().overrides)
    bank = load_bank(config.recipe.augment.bank)
    file = build.shipped_start(build.settings_of(config, bank), bank)
    folder = build.make(build.settings_of(config, bank), bank, Path(config.recipe.toy.cache))
    file.parent.mkdir(exist_ok=True)
    save_model(AutoModelForCausalLM.from_pretrained(folder / "model").half(), str(file))
    print(f"{file}: {file.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
