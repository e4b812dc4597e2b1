"""Hydra configuration: defaults on top of verl's own `ppo_trainer`."""
