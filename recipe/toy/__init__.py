"""A world small enough for a laptop: arithmetic questions, a byte-level tokenizer, a tiny Qwen2.

Everything is built from a seed and cached; only the start model of the quick start is shipped.
"""
