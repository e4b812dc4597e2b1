"""The acceptance run of a node: ``python -m recipe.accept``."""
