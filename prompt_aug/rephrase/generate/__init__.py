"""Candidates from an OpenAI-compatible endpoint, kept by request hash."""
