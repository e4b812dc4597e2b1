"""Accept a node: ``python -m recipe.accept``."""

import sys

from recipe.preflight.accept import main

if __name__ == "__main__":
    sys.exit(main())
