"""List the checks of a run: ``python -m recipe.start --rules``.

``python -m recipe.train EXAMPLE --dry-run`` runs them.
"""

import sys

from prompt_aug.base.commands import make_parser
from recipe.start.checks import PLACE, SETTINGS
from recipe.start.rules import page


def main(arguments: list[str] | None = None) -> int:
    name = "python -m recipe.start"
    parser = make_parser(name, __doc__, example=f"{name} --rules")
    parser.add_argument("--rules", action="store_true", required=True, help="a line for each")
    parser.parse_args(arguments)
    print(page(SETTINGS | PLACE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
