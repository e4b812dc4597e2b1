"""Start a run: check it, prepare its data, or describe what it would do."""
