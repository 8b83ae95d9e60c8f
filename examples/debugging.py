"""What one does when a backward is wrong, slow, or not where it should be.

python examples/debugging.py [size]
"""

import sys
import warnings

import mpgrad as mg

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 1000


class Root(mg.Function):
    """The square root; its derivative is infinite at zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        print("backward of Root: smallest argument", x.min().item())  # also from a worker
        return grad / (2.0 * x.sqrt())


print("--- 1. is the derivative right?")
point = mg.tensor([0.5, 2.0], dtype=mg.float64, requires_grad=True)
print("gradcheck:", mg.autograd.gradcheck(Root.apply, point, fast_mode=True))

print("--- 2. where does each Node run, and why?")
x = mg.linspace(0.0, 1.0, SIZE, requires_grad=True)
with mg.Engine(mode="process", cpu_workers=1) as engine:
    print(engine.explain(Root.apply(x).sum()))

    print("--- 3. which Node makes the first NaN?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly mode says that it is slow, NumPy divides by zero
        with mg.autograd.detect_anomaly():
            try:
                (Root.apply(x) * 0.0).sum().backward()
            except RuntimeError as error:
                print(f"RuntimeError: {str(error).splitlines()[0]}")
    print("x.grad:", x.grad)  # a backward that fails changes no .grad

    print("--- 4. where does the time go?")
    with mg.profiler.profile() as prof:
        (Root.apply(x + 1.0) * 2.0).sum().backward()
    names = [row.key for row in prof.key_averages() if "Backward" in row.key]
    print("Nodes of the profile:", ", ".join(sorted(names)))
    x.grad = None

print("--- 5. here, one Node after the other, where a debugger stops")
with mg.Engine(mode="local"):
    Root.apply(x + 1.0).sum().backward()
    print("gradient of the first element:", round(x.grad[0].item(), 3))
