"""Experiments in the toy worlds: several methods and seeds, with predictions written first.

`python scripts/experiment.py NAME` runs examples/laboratory/NAME/experiment.yaml with
`recipe.train` or, for simulated experiments, with `recipe.lab.simulate`.
"""

import warnings

warnings.filterwarnings("ignore", message=".* engine is not available")  # verl's, on import
