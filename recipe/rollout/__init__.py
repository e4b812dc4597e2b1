"""From a question to a scored response, in verl's agent-loop and reward workers."""
