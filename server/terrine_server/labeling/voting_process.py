"""What a voting process does: answer the server that started it, and end with it.

It knows the data directory and the device, and is told which registered ensemble to vote with. It
verifies and loads ensembles as the server's own threads would (`LocalVoters`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import torch

from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.channel import Ask, Channel, Reply
from terrine_server.labeling.elsewhere import Defect, memory_of_a_thread
from terrine_server.labeling.local_voters import LocalVoters

SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to all processes of a terminal or a service. The server first answers what waits."""
EXPENDABLE = "500"
"""Added to what makes the kernel end a process when memory runs out: this one, not the server."""


def main() -> None:
    """Answer what arrives on the descriptor given as the first argument."""
    server = socket.socket(fileno=int(sys.argv[1]))
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(EXPENDABLE)
    Thread(target=_end_with, args=(server,), daemon=True).start()
    memory = memory_of_a_thread()
    torch.set_num_threads(1)
    voters = LocalVoters(Path(sys.argv[2]), sys.argv[3] or None, memory)
    channel = Channel(server, Ask)
    with suppress(OSError, EOFError):
        while True:
            channel.send(*_reply(voters, *channel.receive()))


def _end_with(server: socket.socket) -> None:
    """End once the server is gone, however it ended: also in the middle of a vote."""
    poll = select.poll()
    poll.register(server, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


def _reply(voters: LocalVoters, ask: Ask, body: bytearray) -> tuple[Reply, bytes]:
    try:
        if ask.shape:
            inputs = np.frombuffer(body, ask.dtype).reshape(ask.shape)
            counts = voters.votes(ask.ensemble, inputs)
            return Reply(shape=counts.shape), counts.astype("<i8").tobytes()
        found = voters.loaded(ask.ensemble)
        return Reply(files=tuple(found.files), stamp=found.stamp, block=found.ensemble.block), b""
    except EnsembleUnavailable as error:
        return Reply(refused=error.detail), b""
    except Exception as error:
        return Reply(defect=Defect.of(error)), b""


if __name__ == "__main__":
    main()
