"""Of verl's actor: an engine that computes shared prefixes once, and torch's packed attention."""
