"""The image build stops before it fetches a CUDA build of PyTorch that was not asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.processes import run_program

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "refuse_cuda.py"


def refuse(directory: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    plan = directory / "plan.json"
    plan.write_text(json.dumps({"install": [{"metadata": {"name": name}} for name in packages]}))
    return run_program(sys.executable, SCRIPT, plan)


def test_a_cuda_plan_is_refused_with_what_to_do(tmp_path: Path) -> None:
    refused = refuse(tmp_path, "torch", "sympy", "nvidia-cublas", "cuda-toolkit")
    assert refused.returncode == 1
    assert "nvidia-cublas" in refused.stderr
    assert "TORCH_INDEX" in refused.stderr


def test_a_cpu_plan_passes(tmp_path: Path) -> None:
    passed = refuse(tmp_path, "torch", "sympy", "numpy")
    assert (passed.returncode, passed.stderr) == (0, "")
