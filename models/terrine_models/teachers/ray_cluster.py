"""A Ray cluster to train and to vote on: an existing one, or one of this machine's processors.

Whoever may connect to a cluster may run code on it, so it lies within the trust boundary: Ray
itself pickles what its processes, which trust each other, send. Teachers' files are never pickled.

What is private goes straight from process to process. Ray keeps arguments of more than 100 kB in
an object store, in memory that all processes of a machine share; here that limit is raised above
what any task is sent.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from terrine_models.storage.manifests import versions

INLINE_BYTES = 256 * 2**20
"""Arguments of fewer bytes are sent with the task. Ray's own limit on a message is twice that."""
STORE_BYTES = 100 * 2**20
"""Of the object store of a cluster of one's own, near the least that Ray takes."""
NAMESPACE = "terrine"
CONNECT_SECONDS = 10.0

_connecting = threading.Lock()
_joined = 0
_directories: list[str] = []


class ClusterError(Exception):
    """A Ray cluster cannot be used; the message says why and what to do."""


def connect(address: str | None) -> int:
    """Join the cluster at `address`, one in a process; return how many processors it has.

    `address` is `HOST:PORT`, or `auto` for the one to which this machine belongs. None starts one
    of all processors here, which ends with this process. Raises ClusterError.
    """
    global _joined
    with _connecting:
        ray = _ray(address)
        if not ray.is_initialized():
            options = _own() if address is None else {"address": address}
            if address is not None and address != "auto":
                _check_listens(address)
            logging.getLogger("ray").setLevel(logging.ERROR)
            try:
                with _own_signals():
                    ray.init(
                        namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **options
                    )
            except SystemExit:  # Ray gives up
                raise ClusterError(
                    f"What listens at {address} is no Ray cluster, or busy."
                ) from None
            except Exception as error:  # of many classes
                where = "on this machine" if address is None else f"at {address}"
                raise ClusterError(f"There is no Ray cluster {where}: {_first(error)}") from None
        found = processors()
        _joined += 1
    return found


def processors() -> int:
    """Return how many processors the cluster has now. Raises ClusterError if it has none."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    found = int(resources.get("CPU", 0))
    if found < 1:
        raise ClusterError("The Ray cluster has no processors. Start `ray start` on a machine.")
    return found


def on_node(number: int) -> Any:
    """Return a strategy that starts the actor of this number on a node whose turn it is.

    Nodes take turns until each has had one for each of its processors. Ray's own `SPREAD` may put
    all actors on one node. An actor whose node is lost starts anew on any other.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    turns = sorted(
        (turn, node["NodeID"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
        for turn in range(int(node["Resources"].get("CPU", 0)))
    )
    if not turns:
        return "SPREAD"  # it waits for a node
    return NodeAffinitySchedulingStrategy(turns[number % len(turns)][1], soft=True)


def require_ray() -> None:
    """Raise ClusterError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ClusterError("Ray is not installed. In a checkout: pip install '.[ray]'")


def disconnect() -> None:
    """Leave the cluster, as often as it was joined. Then one that `connect` started ends."""
    global _joined
    import ray

    with _connecting:
        _joined -= 1
        if _joined == 0:
            ray.shutdown()
            while _directories:
                shutil.rmtree(_directories.pop(), ignore_errors=True)


def software() -> dict[str, str]:
    """Versions of what training and votes depend on."""
    return versions("terrine")


def differing(ours: dict[str, str]) -> str | None:
    """Say what this process has in other versions than `ours`; None if it is nothing."""
    theirs = software()
    other = [name for name in ours if theirs[name] != ours[name]]
    if not other:
        return None
    found = ", ".join(f"{name} {theirs[name]} instead of {ours[name]}" for name in other)
    return f"A machine of the Ray cluster has {found}. Install the same versions on all."


def _ray(address: str | None) -> Any:
    """Import Ray, which reads its settings then."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for limit in ("max_direct_call_object_size", "task_rpc_inlined_bytes_limit"):
        os.environ.setdefault(f"RAY_{limit}", str(INLINE_BYTES))
    chosen = any(name.startswith("RAY_AUTH_") for name in os.environ)
    if address is None and not chosen and "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"  # nobody else on this machine may use it
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    require_ray()
    import ray

    return ray


def _check_listens(address: str) -> None:
    """Raise ClusterError if nobody listens: Ray itself would try for two minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"There is no Ray cluster at {address}: {error}. Start one with `ray start --head`."
        ) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray's write a stack trace first. Only the main thread can."""
    ours = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in ours.items():
            signal.signal(number, handler)


def _own() -> dict[str, Any]:
    """Options of a cluster of this process alone, with a directory that others cannot read."""
    directory = tempfile.mkdtemp(prefix="terrine-ray-")
    _directories.append(directory)
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_temp_dir": directory,
    }


def _first(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
