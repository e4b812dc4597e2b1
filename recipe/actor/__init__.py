"""How the actor computes log-probabilities, where that is not verl's own way."""
