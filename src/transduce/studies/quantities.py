"""The types of figures in results.json, with the values from which a report can be written."""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1 << 62)]
Cost = Annotated[float, Meta(gt=0, le=1e30)]  # seconds, bytes or FLOPs of something that was measured
Duration = Annotated[float, Meta(ge=0, le=1e30)]
Exponent = Annotated[float, Meta(ge=-100, le=100)]
Loss = Annotated[float, Meta(gt=0, le=1e3)]  # in nats for each token
Percent = Annotated[float, Meta(ge=0, le=100)]
Perplexity = Annotated[float, Meta(ge=1, le=1e100)]
