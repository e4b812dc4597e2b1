"""The actor's computation of log-probabilities, if it is not verl's own."""
