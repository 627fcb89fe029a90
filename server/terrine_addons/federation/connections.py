"""Connections to owners' servers: one deadline for all of a reply, and a limit of its bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpcore
import httpx

from terrine_addons.federation.federations import Owner, owner_token
from terrine_models.storage.manifests import StoreError

# Bytes of a response, beyond those of the values that it may hold.
REPLY_BYTES = 64 * 1024
# Bytes that are read of one response before others have their turn: some 10 ms of work at most, if
# they are made of as many events of HTTP as fit.
READ_BYTES = 4096
# How long an idle connection is kept: a new one costs both sides a handshake.
KEEP_ALIVE_SECONDS = 30.0


@dataclass(frozen=True)
class VoteRequest:
    """What one owner is sent, and the most bytes of a response that are read."""

    sent: Mapping[str, Any]
    most: int


def connect(directory: Path, owner: Owner) -> httpx.AsyncClient:
    """Return a client of an owner's server, with the certificate and token in `directory`.

    Raises StoreError.
    """
    certificate = None if owner.certificate is None else directory / f"{owner.name}.pem"
    return make_client(owner.url, certificate, owner_token(directory, owner))


def make_client(url: str, certificate: Path | None, token: str | None) -> httpx.AsyncClient:
    """Return a client of the server at `url`, trusted by this certificate or by the system's.

    Raises StoreError.
    """
    try:
        context = (
            _system_context()
            if certificate is None
            else ssl.create_default_context(cafile=str(certificate))
        )
    except (ssl.SSLError, OSError) as error:
        raise StoreError(f"{certificate} holds no certificate: {error}") from None
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        transport=_Transport(context),
        timeout=None,  # noqa: S113 - one deadline for all of a reply, see `ask`
        trust_env=False,
    )


@cache
def _system_context() -> ssl.SSLContext:
    """Return what the system trusts: read once, since it takes a hundredth of a second."""
    return ssl.create_default_context()


class ReplyTooLarge(Exception):  # noqa: N818 - of a peer, not of ours
    """A response has more bytes than it may."""


# Bytes that the response to the request of this task may have.
_most: ContextVar[int] = ContextVar("most", default=REPLY_BYTES)


class _LimitedStream(httpcore.AsyncNetworkStream):
    """A connection on which whatever a peer sends is counted, and read in small pieces.

    Its body alone would not do: any number of interim responses may come before its head (RFC 9110,
    section 15.2), and each byte of it may be a chunk. To read these takes time, and responses of
    other owners are read by the same loop.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read = 0
        """Bytes since the request."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        self._read += len(data)
        if self._read > _most.get():
            raise ReplyTooLarge
        await asyncio.sleep(0)  # under TLS, reading alone may wait for nothing
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._read = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _LimitedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore.AnyIOBackend):
    """Connects as usual."""

    async def connect_tcp(self, *given: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        return _LimitedStream(await super().connect_tcp(*given, **more))


class _Transport(httpx.AsyncHTTPTransport):
    """httpx over connections that are counted."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            network_backend=_Network(),
        )


async def ask(http: httpx.AsyncClient, request: VoteRequest, seconds: float) -> bytes | str:
    """Ask one owner; return the body of the response, or why there is none in time.

    They are asked once more if the connection ends: many servers end idle ones after 5 s, and a
    request may be on its way just then.
    """
    try:
        async with asyncio.timeout(seconds):
            try:
                return await _post(http, request)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                return await _post(http, request)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except ReplyTooLarge:
        return f"more than {request.most} bytes"
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def _post(http: httpx.AsyncClient, request: VoteRequest) -> bytes | str:
    """Return the body of the response, or why there is none.

    Raises TooLong, httpx.HTTPError, OSError.
    """
    _most.set(request.most)
    async with http.stream("POST", **request.sent) as reply:
        if reply.status_code != 200:
            return f"status {reply.status_code}"
        return b"".join([part async for part in reply.aiter_raw()])


async def ask_all(
    clients: Sequence[httpx.AsyncClient], requests: Sequence[VoteRequest], seconds: float
) -> list[bytes | str]:
    """Ask every owner at once; return what `ask` returns, for each."""
    return await asyncio.gather(
        *(ask(http, one, seconds) for http, one in zip(clients, requests, strict=True))
    )
