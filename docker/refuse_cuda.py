"""Stop an image build that is about to fetch PyTorch for CUDA, before gigabytes have come.

Reads pip's own plan: `pip install --dry-run --report PLAN ... && python refuse_cuda.py PLAN`.
"""

import json
import re
import sys
from pathlib import Path

plan = json.loads(Path(sys.argv[1]).read_text())
packages = [package["metadata"] for package in plan["install"]]
cuda = sorted(p["name"] for p in packages if re.match(r"nvidia|cuda", p["name"]))
if cuda:
    sys.exit(
        "This would install PyTorch for CUDA (" + ", ".join(cuda[:3]) + ", ...), several gigabytes"
        " that the image has no use for without a GPU.\n"
        "Set TORCH_INDEX to the CPU index named on the install page of pytorch.org:\n"
        "  echo TORCH_INDEX=https://... >> .env               (docker compose)\n"
        "  docker build --build-arg TORCH_INDEX=https://... .  (plain docker)\n"
        "To keep the CUDA build, set ALLOW_CUDA=yes the same way."
    )
