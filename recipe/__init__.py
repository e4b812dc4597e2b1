"""The training: attaches to an unmodified verl 0.9.1 at its seams, and nowhere else."""
