"""An engine for verl's actor that computes shared prefixes once, by prefix trees."""
