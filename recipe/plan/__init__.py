"""What a run will need before it is started: ``python -m recipe.plan``."""
