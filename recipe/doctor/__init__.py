"""Whether a run could start here: ``python -m recipe.doctor``."""
