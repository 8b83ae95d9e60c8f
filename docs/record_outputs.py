"""Runs every example as a user would, and writes what it prints to docs/outputs.

python docs/record_outputs.py [name ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUTS = ROOT / "docs" / "outputs"

#: Example -> its command line behind `python`; what stands in the gallery.
COMMANDS = {
    "quickstart": "examples/quickstart.py",
    "simulators": "examples/simulators.py",
    "or_a_pool": "examples/or_a_pool.py",
    "kalman_bank": "examples/both_passes/kalman_bank.py",
    "custom_function": "examples/custom_function.py",
    "hooks": "examples/hooks.py",
    "lazy_reader": "examples/lazy_reader.py",
    "mixture_of_experts": "examples/mixture_of_experts.py",
    "render_tiles": "examples/render_tiles.py",
    "debugging": "examples/debugging.py",
    "many_devices": "-m mpgrad run --pin cores examples/many_devices.py",
    "train_digits": "examples/train_digits.py",
    "train_gan": "examples/train_gan.py",
    "data_parallel": "-m mpgrad run --nproc-per-node 2 examples/data_parallel.py",
    "elastic_digits": (
        "-m mpgrad run --nproc-per-node 2 --max-restarts 1 examples/elastic_digits.py 3 1"
    ),
    "parameter_server": "-m mpgrad run --nproc-per-node 4 examples/parameter_server.py",
    "pipeline": "-m mpgrad run --nproc-per-node 3 examples/pipeline.py",
    "split_model": "-m mpgrad run --nproc-per-node 2 examples/split_model.py",
    "train_resnet18": "examples/train_resnet18.py --steps 4 --width 16",
}


def main() -> None:
    """Run those that are named, or all."""
    OUTPUTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or COMMANDS:
        done = subprocess.run(
            [sys.executable, *COMMANDS[name].split()],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}")
        shown = COMMANDS[name].replace("-m mpgrad", "mpgrad")
        command = shown if shown.startswith("mpgrad") else f"python {shown}"
        # The output does not show where this checkout lies.
        printed = re.sub(rf"{re.escape(str(ROOT))}/", "", done.stdout)
        (OUTPUTS / f"{name}.txt").write_text(f"$ {command}\n{printed}")
        print(f"{name}: {len(printed.splitlines())} lines")


if __name__ == "__main__":
    main()
