"""The trainer, which runs in verl's driver: batches, advantages, checkpoints, metrics."""
