"""The machine and what fits in its memory. `eval` may import this package."""
