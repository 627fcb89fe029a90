"""Owners behind one real socket who split their votes; and an aggregator behind another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from many_owners import Labels, listening
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from terrine_addons.federation import voters
from terrine_addons.federation.aggregator import OWNERS, Aggregator, make
from terrine_addons.federation.federations import read_token
from terrine_addons.federation.voters import TERMS, AggregatorTerms
from terrine_models.data.arrays import InputSpec


@dataclass
class SharingOwners:
    """`behaviour` by owner's number; nothing there means that it shares as it should.

    `seen`: what each round's owners sent to the service and to the aggregator.
    """

    url: str
    terms: AggregatorTerms
    aggregator_url: str
    tokens: Sequence[str]
    behaviour: dict[int, str] = field(default_factory=dict)
    split: Callable[..., tuple[voters.Share, voters.Share]] = voters.split_votes
    seen: list[tuple[voters.Share, voters.Share]] = field(default_factory=list)

    async def share(
        self, http: httpx.AsyncClient, number: int, name: str, labels: NDArray[np.int64]
    ) -> Response:
        """Vote, share, and answer as this owner behaves."""
        behaves = self.behaviour.get(number, "sound")
        ours, aggregators = self.split(labels, self.terms.classes)
        if behaves == "lies":
            ours = ours + np.arange(1, self.terms.classes + 1, dtype=np.uint32) * np.uint32(10_000)
        self.seen.append((ours, aggregators))
        if behaves == "status":
            return Response(status_code=500)
        if behaves != "without the aggregator":
            kept = await http.put(
                f"{self.aggregator_url}/v1/rounds/{name}/share",
                content=voters.encode_share(aggregators)[
                    : -1 if behaves == "aggregator's is short" else None
                ],
                headers={
                    "Authorization": f"Bearer {self.tokens[number]}",
                    TERMS: self.terms.digest(),
                    voters.SHAPE: voters.shape_of(aggregators),
                },
            )
            if kept.status_code != 204:
                return Response(kept.content, 502)
        return Response(voters.encode_share(ours)[: -4 if behaves == "short" else None])


def owner_tokens(directory: Path, terms: AggregatorTerms) -> list[str]:
    """Return the tokens of an aggregator's owners, in their order."""
    return [read_token(directory / OWNERS / f"{name}.token") for name in terms.owners]


def sharing_app(vote: Labels, spec: InputSpec, owners: SharingOwners) -> Starlette:
    """Return the routes of owners 0, 1, … as the models `owner-0`, `owner-1`, …"""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    http = httpx.AsyncClient(timeout=30, trust_env=False, limits=limits)
    known: dict[bytes, NDArray[np.int64]] = {}

    async def labels(request: Request) -> NDArray[np.int64]:
        number = int(request.path_params["number"])
        head = request.headers.get(voters.HEADER_LENGTH)
        body = await request.body()
        if body not in known:
            known[body] = vote(voters.decode_inputs(body, int(head) if head else None, spec))
        return known[body][:, number]

    async def share(request: Request) -> Response:
        number, name = int(request.path_params["number"]), request.headers[voters.ROUND]
        return await owners.share(http, number, name, await labels(request))

    async def infer(request: Request) -> Response:
        return Response(voters.encode_response("any", await labels(request)))

    model = "/v2/models/owner-{number}"
    return Starlette(
        routes=[
            Route(f"{model}/share", share, methods=["POST"]),
            Route(f"{model}/infer", infer, methods=["POST"]),
        ]
    )


@contextmanager
def sharing_owners(
    vote: Labels, spec: InputSpec, terms: AggregatorTerms, directory: Path
) -> Iterator[tuple[SharingOwners, Aggregator]]:
    """Make an aggregator in `directory`, and serve it and its owners."""
    make(terms, directory)
    aggregator = Aggregator(directory)
    with ExitStack() as stack:
        aggregator_url = stack.enter_context(listening(aggregator.app()))
        owners = SharingOwners("", terms, aggregator_url, owner_tokens(directory, terms))
        owners.url = stack.enter_context(listening(sharing_app(vote, spec, owners)))
        yield owners, aggregator
