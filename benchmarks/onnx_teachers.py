"""How fast a thousand imported ONNX models vote, beside onnxruntime's own thread pools.

Networks of two layers (20 inputs, 128 hidden, 10 classes) with random weights are written as ONNX
files, imported, loaded and asked 100 inputs, as `terrine ensemble import` and the service do. One
peer shares one thread pool of one thread among sessions of the same files. The other has
onnxruntime's default options: every session starts a thread for every processor, and these wait
for work by spinning. A thousand would stop the machine, so it holds a tenth of the files, and its
times are multiplied by ten. Each time to vote is the median of several rounds.

    python benchmarks/onnx_teachers.py [--teachers 1000] [--inputs 100] [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from terrine_models.data.arrays import InputSpec
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.importing import Declared, import_ensemble

SHARE = 10
"""One in so many files is held by the peer with default options."""
INPUTS, HIDDEN, CLASSES = 20, 128, 10


def mlp(seed: int) -> bytes:
    draws = np.random.default_rng(seed)
    shapes = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "w2", "b2"], ["scores"]),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", INPUTS])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            numpy_helper.from_array(draws.normal(size=shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def peer(directory: Path, how: str, rounds: int, inputs: int) -> None:
    """Print the times of a peer to load and to vote, and its votes, as JSON."""
    options = onnxruntime.SessionOptions()
    if how == "shared":
        onnxruntime.set_global_thread_pool_sizes(1, 1)
        options.use_per_session_threads = False
    started = time.perf_counter()
    paths = sorted(directory.glob("*.onnx"))
    sessions = [
        onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        for path in (paths if how == "shared" else paths[::SHARE])
    ]
    loaded = time.perf_counter() - started
    x = drawn(inputs)

    def votes() -> np.ndarray:
        counts = np.zeros((len(x), CLASSES), np.int64)
        for session in sessions:
            choices = session.run(["scores"], {"x": x})[0].argmax(1)
            counts[np.arange(len(x)), choices] += 1
        return counts

    counts = votes()
    print(json.dumps([loaded, seconds(votes, rounds), counts.tolist()]))


def drawn(inputs: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(0, 1, (inputs, INPUTS)).astype(np.float32)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median over rounds."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teachers", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer", choices=["default", "shared"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(given.files, given.peer, given.rounds, given.inputs)
        return
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch) / "models"
        files.mkdir()
        for i in range(given.teachers):
            (files / f"{i:05d}.onnx").write_bytes(mlp(i))
        print(f"{given.teachers:,} networks, {given.inputs} inputs, {os.cpu_count()} processors")
        measure(files, Path(scratch) / "ensemble", given)


def measure(files: Path, out: Path, given: argparse.Namespace) -> None:
    declared = Declared(
        spec=InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1),
        classes=tuple(str(i) for i in range(CLASSES)),
        units=given.teachers,
        disjoint_by="random weights",
    )
    started = time.perf_counter()
    import_ensemble(sorted(files.glob("*.onnx")), out, "networks", declared)
    print(f"  imported, every file checked:   {time.perf_counter() - started:8.2f} s")
    started = time.perf_counter()
    ensemble = Ensemble.load(out)
    print(f"  loaded:                         {time.perf_counter() - started:8.2f} s")
    x = drawn(given.inputs)
    counts = ensemble.votes(x)
    ours = seconds(lambda: ensemble.votes(x), given.rounds)
    started = time.process_time()
    ensemble.votes(x)
    busy = time.process_time() - started
    print(f"  votes: {ours * 1000:33.0f} ms, of which {busy * 1000:.0f} ms of processor time")
    for how, name in (("shared", "one pool of one thread"), ("default", "default thread pools")):
        command = [sys.executable, __file__, "--peer", how, "--files", str(out)]
        command += ["--rounds", str(given.rounds), "--inputs", str(given.inputs)]
        plain = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
        said = subprocess.check_output(command, env=plain, text=True)
        loaded, taken, theirs = json.loads(said)
        if how == "default":
            loaded, taken = loaded * SHARE, taken * SHARE
        elif theirs != counts.tolist():
            raise SystemExit("the peer's votes differ")
        print(
            f"  {name + ':':<31} {taken * 1000:8.0f} ms, {taken / ours:.1f} times as long; loaded "
            f"in {loaded:.1f} s"
        )


if __name__ == "__main__":
    main()
