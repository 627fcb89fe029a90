"""Connections: options, checked before anything is sent; retries; and methods of either client."""

from __future__ import annotations

import functools
import inspect
import ipaddress
import logging
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, closing
from functools import cache
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx
import stamina
from stamina.instrumentation import RetryDetails, RetryHook, get_on_retry_hooks, set_on_retry_hooks

from terrine_client._calls import Call, Page, Plan, transport_errors
from terrine_client._receipts import Receipts
from terrine_client.errors import ClientError, ConfigurationError

_log = logging.getLogger("terrine_client")

# Environment variables that name certificates to trust, in order of precedence.
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
# Environment variables that name proxies; also read in lower case.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
P = ParamSpec("P")
T = TypeVar("T")


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the context of all clients: reading certificates is most of what opening one costs."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = next((each for each in CERTIFICATE_VARIABLES if os.environ.get(each)), None)
        if named is None:
            raise
        raise ConfigurationError(
            f"The environment variable {named} names {os.environ[named]}, which holds no "
            f"certificates ({error.strerror or error}). Correct it, or unset it."
        ) from None


class Connection(ABC, Generic[Http]):
    """Base of both clients. `Client` documents its arguments."""

    _http: Http

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        batch_size: int = 256,
        insecure: bool = False,
    ):
        if timeout <= 0 or retries < 0 or batch_size < 1:
            raise ConfigurationError(
                f"Expected timeout > 0, retries >= 0 and batch_size >= 1; "
                f"got {timeout}, {retries} and {batch_size}."
            )
        self._url = _check_url(url, insecure)
        self._retries = retries
        self._batch_size = batch_size
        self.receipts = Receipts()
        """Receipts of all answers that were received; see `verify_receipts`."""
        self._http = self._open_http(
            base_url=self._url,
            headers={
                "Authorization": f"Bearer {_check_token(token)}",
                "Accept": "application/json",
            },
            timeout=timeout,
            verify=_ssl_context(),
            # A proxy would be another machine, and the token would reach it unencrypted.
            trust_env=not _is_loopback(self._url.host),
        )

    def _open_http(self, **options: Any) -> Http:
        try:
            return self._open(**options)
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            named = [
                each
                for each in PROXY_VARIABLES
                for each in (each.lower(), each)
                if each in os.environ
            ]
            if not named:
                raise
            reason = "SOCKS is not supported" if isinstance(error, ImportError) else error
            raise ConfigurationError(
                f"The proxy that the environment names ({', '.join(named)}) cannot be used: "
                f"{reason}. Expected addresses such as http://proxy.example.org:3128, and in "
                "NO_PROXY names and addresses without brackets or masks."
            ) from None

    @staticmethod
    @abstractmethod
    def _open(**options: Any) -> Http: ...

    def __deepcopy__(self, _: object) -> Self:
        """A copy is the connection itself: estimators that hold it are cloned."""
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    def _attempts(self, call: Call[Any]) -> Any:
        """Stamina's attempts, with exponential backoff and jitter, or the wait of Retry-After."""

        def again(error: Exception) -> bool | float:
            _log_retries_as_sentences()
            return call.retry(error)

        return stamina.retry_context(on=again, attempts=self._retries + 1, timeout=None)


class BlockingConnection(Connection[httpx.Client]):
    """Waits for each reply. Close it, or use `with`."""

    @staticmethod
    def _open(**options: Any) -> httpx.Client:
        return httpx.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        for attempt in self._attempts(call):
            with attempt, transport_errors():
                return call.read(self._http.send(call.request(self._http)))
        raise AssertionError("stamina raises after the last attempt")

    def _run(self, plan: Call[T] | Plan[T]) -> T:
        if isinstance(plan, Call):
            return self._send(plan)
        with closing(plan):
            try:
                call = next(plan)
                while True:
                    try:
                        reply = self._send(call)
                    except ClientError as error:
                        call = plan.throw(error)
                    else:
                        call = plan.send(reply)
            except StopIteration as done:
                found: T = done.value
                return found

    def _pages(self, call: Call[Page[T]]) -> Iterator[T]:
        page = self._send(call)
        yield from page.items
        while page.next is not None:
            page = self._send(call.at(page.next))
            yield from page.items


class AsyncConnection(Connection[httpx.AsyncClient]):
    """Awaits each reply. Close it, or use `async with`."""

    @staticmethod
    def _open(**options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        async for attempt in self._attempts(call):
            with attempt, transport_errors():
                return call.read(await self._http.send(call.request(self._http)))
        raise AssertionError("stamina raises after the last attempt")

    async def _run(self, plan: Call[T] | Plan[T]) -> T:
        if isinstance(plan, Call):
            return await self._send(plan)
        with closing(plan):
            try:
                call = next(plan)
                while True:
                    try:
                        reply = await self._send(call)
                    except ClientError as error:
                        call = plan.throw(error)
                    else:
                        call = plan.send(reply)
            except StopIteration as done:
                found: T = done.value
                return found

    async def _pages(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        page = await self._send(call)
        while True:
            for item in page.items:
                yield item
            if page.next is None:
                return
            page = await self._send(call.at(page.next))


class operation(Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method of both clients out of one that returns a call, or a plan of several.

    Type checkers see the method of either client by the overloads of `__get__`; at run time it is
    a plain function or coroutine function, with its own signature.
    """

    def __init__(self, plan: Callable[Concatenate[Any, P], Call[T] | Plan[T]]) -> None:
        @functools.wraps(plan)
        def run(client: BlockingConnection, *args: P.args, **kwargs: P.kwargs) -> T:
            return client._run(plan(client, *args, **kwargs))

        @functools.wraps(plan)
        async def run_async(client: AsyncConnection, *args: P.args, **kwargs: P.kwargs) -> T:
            return await client._run(plan(client, *args, **kwargs))

        self.__doc__ = plan.__doc__
        reply = plan.__annotations__["return"].partition("[")[2].removesuffix("]")
        self._run, self._run_async = _returning(run, reply), _returning(run_async, reply)

    @overload
    def __get__(self, client: BlockingConnection, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: AsyncConnection, owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        function = self._run_async if issubclass(owner, AsyncConnection) else self._run
        return function.__get__(client, owner)


class listing(Generic[P, T]):  # noqa: N801 - a decorator
    """Make an iterator of both clients out of a method that returns the call for the first page."""

    def __init__(self, first: Callable[Concatenate[Any, P], Call[Page[T]]]) -> None:
        @functools.wraps(first)
        def run(client: BlockingConnection, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return client._pages(first(client, *args, **kwargs))

        @functools.wraps(first)
        def run_async(
            client: AsyncConnection, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncIterator[T]:
            return client._pages(first(client, *args, **kwargs))

        self.__doc__ = first.__doc__
        item = first.__annotations__["return"].removeprefix("Call[Page[").removesuffix("]]")
        self._run = _returning(run, f"Iterator[{item}]")
        self._run_async = _returning(run_async, f"AsyncIterator[{item}]")

    @overload
    def __get__(self, client: BlockingConnection, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncConnection, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        function = self._run_async if issubclass(owner, AsyncConnection) else self._run
        return function.__get__(client, owner)


def _returning(function: Any, kind: str) -> Any:
    """The function, with a signature that says what it returns."""
    function.__annotations__ = {**function.__annotations__, "return": kind}
    function.__signature__ = inspect.signature(function).replace(return_annotation=kind)
    return function


@cache
def _log_retries_as_sentences() -> None:
    """Have stamina log the client's retries as sentences, and all others as before."""

    def skip_ours(hook: RetryHook) -> RetryHook:
        def call(details: RetryDetails) -> AbstractContextManager[None] | None:
            return None if isinstance(details.caused_by, ClientError) else hook(details)

        return call

    def log(details: RetryDetails) -> None:
        if isinstance(details.caused_by, ClientError):
            level = logging.WARNING if details.retry_num == 1 else logging.INFO
            _log.log(level, "%s Trying again in %.1f s.", details.caused_by, details.wait_for)

    set_on_retry_hooks([log, *map(skip_ours, get_on_retry_hooks())])


def _check_url(text: str, insecure: bool) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigurationError(f"Not a URL: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("Expected a URL such as https://labels.example.org.")
    if url.userinfo or url.query or url.fragment:
        raise ConfigurationError("The URL must not contain a password, a query or a fragment.")
    if url.scheme == "http" and not insecure and not _is_loopback(url.host):
        raise ConfigurationError(
            f"Plain http to {url.host} would show the token to anyone on the network path: use "
            "https, or pass insecure=True (--insecure) on a network that you trust."
        )
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_token(token: str | None) -> str:
    """Check the token here: an HTTP library's error about a bad header would show it."""
    if token is None:
        token = os.environ.get("TERRINE_TOKEN")
        if token is None:
            raise ConfigurationError("There is no token: pass one or set TERRINE_TOKEN.")
    token = token.strip()
    if not token or any(not "!" <= character <= "~" for character in token):
        raise ConfigurationError(
            "The token is empty or contains spaces or characters that no token has. "
            "Copy the whole token again."
        )
    return token
