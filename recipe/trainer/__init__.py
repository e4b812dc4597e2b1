"""The trainer on verl's driver: batches, advantages, checkpoints, metrics."""
