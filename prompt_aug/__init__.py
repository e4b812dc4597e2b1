"""Prompt augmentation for RL with verifiable rewards: text in, text out, no torch."""
