"""Reports, comparisons, selections and exports of scores."""

import argparse


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--settings``, which names one evaluation of a run."""
    text = "a folder in RUN/eval (default: the one with most steps)"
    parser.add_argument("--settings", help=text)
