"""A run: its folder and files, its processes, its progress. `eval` may import this package."""
