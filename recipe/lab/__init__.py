"""Experiments in the toy worlds: several methods, several seeds, predictions written down before.

`python scripts/experiment.py NAME` runs what examples/laboratory/NAME/experiment.yaml says, with
`recipe.train` or, for simulated experiments, with `recipe.lab.simulate`.
"""

import warnings

warnings.filterwarnings("ignore", message=".* engine is not available")  # verl's, on import
