"""Helpers that every package of the project shares: errors, files and locks, command lines,
progress lines, estimates from counts, disk checks and tokenizer loading."""
