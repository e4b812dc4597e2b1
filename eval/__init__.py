"""The measurement: a run folder or a model in; graded responses, scores and a report out."""
