"""A data set to checked, deduplicated parquet: ``python -m prompt_aug.prepare SOURCE OUT``."""
