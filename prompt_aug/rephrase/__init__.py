"""Rephrase questions, and check that each rephrasing is the same problem."""

from prompt_aug.rephrase.checks import Check, Reason, check_text

__all__ = ["Check", "Reason", "check_text"]
