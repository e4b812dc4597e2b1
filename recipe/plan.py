"""Estimate memory and hours of a run: ``python -m recipe.plan``."""

import sys

from recipe.preflight.plan import main

if __name__ == "__main__":
    sys.exit(main())
