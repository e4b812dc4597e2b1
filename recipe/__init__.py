"""Training: extends an unmodified verl 0.9.1 by subclasses and a short list of patches."""
