"""Experiments in the toy worlds: several methods, several seeds, predictions written down before.

`python scripts/experiment.py NAME` runs what examples/laboratory/NAME/experiment.yaml says.
"""
