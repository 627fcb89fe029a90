"""What both clients share: URL, token and options, checked before anything is sent."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Generic, Self, TypeVar

import httpx
import numpy.typing as npt
import stamina
from stamina.instrumentation import (
    RetryDetails,
    RetryHook,
    get_on_retry_hooks,
    set_on_retry_hooks,
)

from terrine_client._batches import BatchPlan, Report, label_batches
from terrine_client._calls import Call
from terrine_client._receipts import Receipts
from terrine_client.errors import ClientError, ConfigurationError

_log = logging.getLogger("terrine_client")

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that name certificates to trust, the first first."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Environment variables about proxies; in lower case, too."""

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


@cache
def _tls() -> ssl.SSLContext:
    """Shared by all clients: reading the certificates takes most of the time to open one."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = next((each for each in CERTIFICATES if os.environ.get(each)), None)
        if named is None:
            raise
        raise ConfigurationError(
            f"The environment variable {named} names {os.environ[named]}, which holds no "
            f"certificates ({error.strerror or error}). Correct it, or unset it."
        ) from None


class BaseClient(ABC, Generic[Http]):
    """Base of the two clients, which document its arguments."""

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
        self._url = _checked_url(url, insecure)
        self._retries = retries
        self._batch_size = batch_size
        self.receipts = Receipts()
        """Of all answers that were received; see `verify_receipts`."""
        self._http = self._opened(
            base_url=self._url,
            headers={
                "Authorization": f"Bearer {_checked_token(token)}",
                "Accept": "application/json",
            },
            timeout=timeout,
            verify=_tls(),
            # A proxy would be another machine, to which the token went in clear.
            trust_env=not _is_loopback(self._url.host),
        )

    def _opened(self, **options: Any) -> Http:
        try:
            return self._open(**options)
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            named = [
                each for each in PROXIES for each in (each.lower(), each) if each in os.environ
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

    def _label_batches(
        self,
        x: npt.ArrayLike,
        probabilities: npt.ArrayLike | None,
        report: Report,
        index: Any,
    ) -> BatchPlan:
        keep = self.receipts.keep
        return label_batches(x, probabilities, self._batch_size, keep, report, index)

    def _attempts(self, call: Call[Any]) -> Any:
        """Stamina's attempts, with exponential backoff and jitter, or the wait of Retry-After."""

        def again(error: Exception) -> bool | float:
            _log_retries_in_words()
            return call.retry(error)

        return stamina.retry_context(on=again, attempts=self._retries + 1, timeout=None)


@cache
def _log_retries_in_words() -> None:
    """Have stamina log a sentence for the client's retries, and all others as before."""

    def unless_ours(hook: RetryHook) -> RetryHook:
        def call(details: RetryDetails) -> AbstractContextManager[None] | None:
            return None if isinstance(details.caused_by, ClientError) else hook(details)

        return call

    def say(details: RetryDetails) -> None:
        if isinstance(details.caused_by, ClientError):
            level = logging.WARNING if details.retry_num == 1 else logging.INFO
            _log.log(level, "%s Trying again in %.1f s.", details.caused_by, details.wait_for)

    set_on_retry_hooks([say, *map(unless_ours, get_on_retry_hooks())])


def _checked_url(text: str, insecure: bool) -> httpx.URL:
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


def _checked_token(token: str | None) -> str:
    """Check the token here: an HTTP library's error about a bad header would print it."""
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
