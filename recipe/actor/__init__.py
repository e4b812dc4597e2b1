"""Alternatives to parts of verl's actor: an engine with prefix trees, the optimizer Muon."""
