"""A world small enough for a laptop: arithmetic questions, a byte-level tokenizer, a tiny Qwen2.

Everything is built by code from a seed and cached; no weights are shipped.
"""
