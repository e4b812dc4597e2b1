"""Export checkpoints to Hugging Face format: ``python -m recipe.export RUN``."""
