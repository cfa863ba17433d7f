"""One answer of an edge client."""

from __future__ import annotations

import asyncio
from typing import Any

from foresay.arrays import IntsLike
from foresay.edge.client import Answer, EdgeClient
from foresay.sampling.params import SamplingParams


async def answered(
    url: str | int,
    vocabulary: int,
    prompt: IntsLike,
    params: SamplingParams,
    *,
    seed: int | None = None,
    seconds: float = 60.0,
    **options: Any,
) -> Answer:
    """The answer of a client with these options, which is closed afterwards.

    url: or a port of this machine
    """
    url = f"http://127.0.0.1:{url}" if isinstance(url, int) else url
    client = EdgeClient(url, vocabulary=vocabulary, **options)
    try:
        return await asyncio.wait_for(client.answer(prompt, params, seed=seed), seconds)
    finally:
        client.close()
