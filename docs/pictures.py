"""Makes the site's pictures, and the text of a terminal in which Ctrl-C is pressed, from real runs.

python docs/pictures.py [report] [top] [ctrl_c]

The pictures need chromium on PATH, `top` also rich. Nothing else should run on the machine.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
#: Chromium must not ask the network for anything.
BROWSER = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip
#: Where in a line the seconds stand.
TIMES_AT = 116

SIMULATE = """
import mpgrad as mg

class Simulate(mg.Function):
    @staticmethod
    def forward(ctx, x, loops):
        ctx.loops = loops
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx, grad):
        decay = 1.0
        for _ in range(ctx.loops):
            decay = decay * 0.999999 + 1e-7
        return grad * 2.0 * decay, None
"""

STEPS = """
import mpgrad as mg
from simulate import Simulate

weight = mg.rand(200, 200, requires_grad=True)
bias = mg.zeros(200, requires_grad=True)
optimizer = mg.optim.SGD([weight, bias], lr=1e-6)

def step():
    with mg.profiler.record_function("step"):
        hidden = mg.tanh(mg.nn.functional.linear(mg.ones(200, 200), weight, bias))
        parts = [Simulate.apply(hidden * k, 900_000).sum() for k in range(1, 9)]
        optimizer.zero_grad()
        mg.stack(parts).sum().backward()
        optimizer.step()

with mg.Engine("process", cpu_workers=2):
    for _ in range(3):
        step()
    with mg.profiler.profile():
        for _ in range(4):
            step()
mg.profiler.report("backward.html")
"""

BUSY = """
import mpgrad as mg
from simulate import Simulate

x = mg.rand(1000, 500, requires_grad=True)
with mg.Engine("process", cpu_workers=2):
    mg.stack([Simulate.apply(x * k, 60_000_000).sum() for k in range(1, 17)]).sum().backward()
"""

CTRL_C = """
import mpgrad as mg
from simulate import Simulate

x = mg.ones(3, requires_grad=True)

def loss(loops):
    return Simulate.apply(x, loops).sum() + Simulate.apply(x, loops).sum()

with mg.Engine("process", cpu_workers=2):
    loss(10).backward()
    x.grad = None
    print("backward of two simulations of a minute each; Ctrl-C after two seconds", flush=True)
    try:
        loss(2_000_000_000).backward()
    except KeyboardInterrupt:
        print("KeyboardInterrupt; x.grad is", x.grad, flush=True)
    loss(10).backward()
    print("the next backward works: x.grad is", [round(v, 2) for v in x.grad.tolist()], flush=True)
"""


def main() -> None:
    """Make those that are named, or all."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("simulate", SIMULATE), ("steps", STEPS), ("simulations", BUSY)):
            Path(folder, f"{name}.py").write_text(text.lstrip())
        Path(folder, "ctrl_c.py").write_text(CTRL_C.lstrip())
        for name in sys.argv[1:] or ("report", "top", "ctrl_c"):
            {"report": report, "top": top, "ctrl_c": ctrl_c}[name](Path(folder))
            print(name, flush=True)


def photograph(page: Path, picture: str, width: int, height: int) -> None:
    """Write what Chromium shows of a page to docs."""
    shot = f"--screenshot={DOCS / picture}"
    command = [*BROWSER, shot, f"--window-size={width},{height}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def report(folder: Path) -> None:
    """The page about four backward passes of eight simulations."""
    subprocess.run([sys.executable, "steps.py"], cwd=folder, env=ENVIRONMENT, check=True)
    photograph(folder / "backward.html", "profiler-report.png", 1240, 1900)


def top(folder: Path) -> None:
    """``mpgrad top`` while sixteen simulations run."""
    from rich.console import Console

    busy = subprocess.Popen([sys.executable, "simulations.py"], cwd=folder, env=ENVIRONMENT)
    try:
        time.sleep(4)  # by then they run
        command = [sys.executable, "-m", "mpgrad", "top", "--once"]
        shown = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    finally:
        busy.kill()
        busy.wait()
    console = Console(record=True, width=100, file=io.StringIO())
    # Other programs may have engines, too.
    (mine,) = [part for part in shown.stdout.split("\n\n") if f"engine of {busy.pid}:" in part]
    console.print(mine.replace(sys.executable, "python").rstrip())
    drawing = folder / "top.svg"
    console.save_svg(str(drawing), title="mpgrad top")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing.read_text())
    assert size is not None
    page = folder / "top.html"
    page.write_text('<body style="margin:0"><img src="top.svg" width="900"></body>')
    photograph(page, "top.png", 900, round(900 * float(size[2]) / float(size[1])))


def ctrl_c(folder: Path) -> None:
    """What a terminal shows, with the seconds since Ctrl-C."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "ctrl_c.py"], ENVIRONMENT)
    lines, text, pressed = ["$ python ctrl_c.py"], "", 0.0
    while True:
        try:
            read = os.read(terminal, 4096)
        except OSError:  # the program has ended
            break
        now, text = time.monotonic(), text + read.decode()
        *complete, text = text.split("\n")
        for line in complete:
            when = f"{now - pressed:.2f} s" if pressed else ""
            lines.append(f"{line.rstrip():<{TIMES_AT}}{when}".rstrip())
        if complete and not pressed:
            select.select([terminal], [], [], 2.0)
            pressed = time.monotonic()
            os.write(terminal, b"\x03")
    os.waitpid(pid, 0)
    (DOCS / "outputs" / "ctrl_c.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
