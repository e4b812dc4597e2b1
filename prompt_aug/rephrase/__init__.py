"""Rephrasings of questions, and whether they are the same problem."""

from prompt_aug.rephrase.verify import Check, Reason, check

__all__ = ["Check", "Reason", "check"]
