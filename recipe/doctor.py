"""Check whether this machine can run a training: ``python -m recipe.doctor``."""

import sys

from recipe.preflight.doctor import main

if __name__ == "__main__":
    sys.exit(main())
