"""Options of the server's sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from terrine_server.serving.connection import Connection, options
from terrine_server.settings import Settings


def test_a_response_does_not_wait_for_its_first_segment_to_be_acknowledged(tmp_path: Path) -> None:
    """asyncio leaves Nagle's algorithm on for sockets that it did not make."""

    async def accepted() -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
        server.setblocking(False)
        config = uvicorn.Config(Response(), **options(Settings(data_dir=tmp_path).limits))
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(config=config, server_state=ServerState(), app_state={}), server
        )
        delays = transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY
        )
        client.close()
        transport.abort()
        return int(delays)

    assert asyncio.run(accepted())
