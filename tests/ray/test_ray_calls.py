"""``Engine(cluster=...)``: both passes on hosts of a Ray cluster, with the bits of ``local``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.leftovers import wait_until
from tests.ray.clusters import processes_with, two_nodes
from tests.ray.marks import needs_ray
from tests.ray.scripts import Begun, digests, run, script_of

OWN = """
def simulate(x, w, b):
    h = x
    for _ in range(3):
        h = mg.tanh(h @ w + b)
    return h * mg.rand(h.shape), {"mean": h.mean(), "x": x}

def work():
    mg.manual_seed(3)
    w = (mg.randn(60, 60) * 0.1).requires_grad_()  # more bytes than go inside a message
    b = mg.randn(60).requires_grad_()
    big = mg.randn(300, 300).T.requires_grad_()  # stored once for all hosts, in its own layout
    xs = [mg.randn(5, 60).requires_grad_() for _ in range(7)]
    found = []
    for step in range(3):
        outs = mg.parallel_map(simulate, xs, shared=(w, b))
        total = mg.parallel_map(lambda x, m: (m @ m[:, :5] @ x).sum(), xs, shared=(big,), out="sum")
        alone = mg.fork(lambda: (w * b).sum())
        loss = sum([(h * h).sum() + more["mean"] for h, more in outs]) + total + mg.wait(alone)
        if step == 1:
            between()
        loss.backward(retain_graph=step == 0)
        if step == 0:
            loss.backward()
        found += [loss.detach().numpy(), *[one.grad.numpy().copy() for one in (w, b, big, *xs)]]
        with mg.no_grad():
            w -= 0.01 * w.grad
        b.data[:] = b.detach().numpy() * 0.9  # no version counts that
    first, = mg.grad(mg.parallel_map(lambda x: (x ** 3).sum(), xs)[0], xs[:1], create_graph=True)
    second, = mg.grad(first.sum(), xs[:1])
    return [*found, first.detach().numpy(), second.numpy()]
"""

#: What else goes with a call: large results, Modules' buffers, generators, hooks, maps of results.
MORE = """
import numpy as np
from mpgrad import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.linear(x)))

def work():
    mg.manual_seed(0)
    w, found = mg.ones(500, 700).requires_grad_(), []
    xs = [mg.randn(500, 700).requires_grad_() for _ in range(5)]
    outs = mg.parallel_map(lambda x, w: x * w + mg.rand(x.shape), xs, shared=(w,))
    sum([(out * out).sum() for out in outs]).backward()
    found += [w.grad.numpy(), *[x.grad.numpy() for x in xs]]
    y, generators = mg.ones(3).requires_grad_(), np.random.default_rng(4).spawn(3)
    noisy = lambda rng, x: (x * float(rng.standard_normal())).sum()
    sum(mg.parallel_map(noisy, generators, [y] * 3)).backward()
    found += [y.grad.numpy(), np.array([one.random() for one in generators])]
    net = Net()
    mg.parallel_map(lambda x: net(x).sum(), [mg.randn(6, 5)])[0].backward()
    found += [net.norm.running_mean.numpy(), *[one.grad.numpy() for one in net.parameters()]]
    outs = mg.parallel_map(lambda x: x.exp(), [y, y * 2])
    outs[1].register_hook(lambda grad: grad * 3)
    ends = mg.parallel_map(lambda x: x.sin(), outs)
    grads = mg.grad((ends[0] * ends[1]).sum(), [y, outs[0]])
    return [*found, *[grad.numpy() for grad in grads]]
"""

TORCH = """
import torch
import mpgrad.torch as mt

def simulate(x, net):
    return (net(net(x)) * torch.rand(x.shape)).sum()

def work():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(60, 60), torch.nn.Tanh())
    xs = [torch.randn(5, 60).requires_grad_() for _ in range(7)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        loss = sum(mt.parallel_map(simulate, xs, shared=(net,))) ** 2
        between()
        loss.backward()
        optimizer.step()
        found += [loss.detach().numpy(), *[one.grad.numpy().copy() for one in xs]]
    return [*found, *[one.detach().numpy() for one in net.parameters()]]
"""

#: In the way of ``between``: one of two hosts is lost.
LOSES = """
        def between(done=[]):
            if not done:
                done.append(1)
                print("between", flush=True)
                sys.stdin.readline()
"""


class TestOnHosts:
    pytestmark = needs_ray

    @pytest.mark.parametrize("work", [OWN, MORE, TORCH], ids=["mpgrad", "more", "torch"])
    def test_two_hosts_give_the_bits_of_local(
        self, cluster: str, tmp_path: Path, work: str
    ) -> None:
        if work is TORCH:
            pytest.importorskip("torch")
        after = "print('on', len({*map(id, hosts_of(engine)._hosts.values())}), flush=True)"
        lines = run(cluster, script_of(tmp_path, work, after=after))
        found = digests(lines)
        assert found["local"] == found["hosts"]
        assert "on 2" in lines

    def test_both_passes_run_where_the_branch_is(self, cluster: str, tmp_path: Path) -> None:
        work = """
import os

class Where(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 0.0 + os.getppid()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.0 + os.getppid()

def work():
    xs = [mg.ones(1).requires_grad_() for _ in range(12)]
    outs = mg.parallel_map(Where.apply, xs)
    sum(outs).sum().backward()
    print("parents", *[f"{out.item():g},{x.grad.item():g}" for out, x in zip(outs, xs)])
    return []
"""
        lines = run(cluster, script_of(tmp_path, work))
        local, hosts = [line.split()[1:] for line in lines if line.startswith("parents")]
        assert len({*local}) == 1
        # An idle worker may take another one's branch, but none of another host, whose coordinator
        # is its parent.
        pairs = {tuple(pair.split(",")) for pair in hosts}
        assert all(forward == backward for forward, backward in pairs)
        assert len(pairs) == 2

    @pytest.mark.parametrize("work", [OWN, TORCH], ids=["mpgrad", "torch"])
    def test_a_node_that_dies_between_the_passes(self, tmp_path: Path, work: str) -> None:
        if work is TORCH:
            pytest.importorskip("torch")
        with two_nodes() as nodes:
            begun = Begun(nodes.address, script_of(tmp_path, work, LOSES))
            lines = begun.until("between")
            nodes.order("remove")
            code, more, errors = begun.end("\n")
            assert code == 0, errors
        found = digests([*lines, *more])
        assert found["local"] == found["hosts"]
        assert "is lost, its calls run elsewhere" in errors

    def test_a_node_that_joins_gets_items(self, tmp_path: Path) -> None:
        between = """
        print("between", flush=True)
        sys.stdin.readline()
        while hosts_of(engine).workers < 6:
            work()
"""
        with two_nodes() as nodes:
            begun = Begun(nodes.address, script_of(tmp_path, OWN, between))
            lines = begun.until("between")
            nodes.order("add")
            code, more, errors = begun.end("\n")
            assert code == 0, errors
        found = digests([*lines, *more])
        assert found["local"] == found["hosts"]

    @pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
    def test_an_actor_that_dies_or_hangs_during_a_call(
        self, cluster: str, tmp_path: Path, number: str
    ) -> None:
        work = """
import os, signal
from mpgrad.engine.cluster import host_calls

host_calls.SILENCE_S = 5.0  # fewer than a busy machine may need, and many for a test

def first_goes(x, path, pid):
    if os.getpid() != pid and not os.path.exists(path):
        open(path, "w").close()
        parent = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(") ", 1)[1].split()[1])
        os.kill(parent, signal.NUMBER)
    return (x * mg.rand(3)).sum()

def work():
    mg.manual_seed(1)
    xs = [mg.ones(3).requires_grad_() for _ in range(8)]
    sum(mg.parallel_map(first_goes, xs, shared=(sys.argv[0] + ".once", os.getpid()))).backward()
    return [x.grad.numpy() for x in xs]
"""
        found = digests(run(cluster, script_of(tmp_path, work.replace("NUMBER", number))))
        assert (tmp_path / "script.py.once").exists()
        assert found["local"] == found["hosts"]

    def test_an_item_that_ends_each_host(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, signal, sys, time\nimport mpgrad as mg\n"
            "def ends(x):\n"
            "    stat = open(f'/proc/{os.getppid()}/stat').read()\n"
            "    os.kill(int(stat.rsplit(') ', 1)[1].split()[1]), signal.SIGKILL)\n"
            "    signal.pause()\n"
            "with mg.Engine('process', cluster=sys.argv[1]):\n"
            "    try:\n        mg.parallel_map(ends, [0])\n"
            "    except mg.errors.WorkerLost as error:\n        print(error)\n"
            "    print(mg.parallel_map(abs, [-1]))\n"
        )
        lines = run(cluster, script)
        assert {"ends of item 0: 3 hosts were lost while they ran it", "[1]"} <= {*lines}

    def test_an_initializer_runs_in_each_worker(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys\nimport mpgrad as mg\n"
            "def begin(number):\n    global kept\n    kept = number, os.getpid()\n"
            "def look(x):\n    assert kept == (7, os.getpid())\n    return os.getpid()\n"
            "with mg.Engine('process', cluster=sys.argv[1], cpu_workers=1, initializer=begin,\n"
            "               initargs=(7,)):\n"
            "    print(len({*mg.parallel_map(look, range(12))}))\n"
        )
        assert "2" in run(cluster, script)

    def test_all_ends_with_the_client(self, cluster: str, tmp_path: Path) -> None:
        begun = Begun(cluster, script_of(tmp_path, OWN, LOSES))
        begun.until("between")
        assert len(processes_with(begun.mark)) > 2 * (1 + 2)
        begun.process.kill()
        assert begun.end()[0] == -signal.SIGKILL

    @pytest.mark.parametrize("where", ["forward", "backward"])
    def test_ctrl_c(self, cluster: str, tmp_path: Path, where: str) -> None:
        """It ends what runs; the engine serves the next map."""
        work = """
import os, time

class Waits(mg.Function):
    @staticmethod
    def forward(ctx, x, path):
        ctx.path = path
        os.mkfifo(path + ".forward")
        while not all(os.path.exists(f"{path[:-1]}{k}.forward") for k in range(4)):
            time.sleep(0.01)  # so each worker has one
        return x.numpy() * 1.0

    @staticmethod
    def backward(ctx, grad):
        waits(ctx.path)

def waits(path):
    os.mkfifo(path)
    open(path).read()

def forward():
    mg.parallel_map(waits, [f"{sys.argv[0]}{k}" for k in range(4)])

def backward():
    xs = [mg.ones(1, requires_grad=True) for _ in range(4)]
    paths = [f"{sys.argv[0]}{k}" for k in range(4)]
    sum(mg.parallel_map(Waits.apply, xs, paths)).sum().backward()

def work():
    # As many as there is room for: one that nobody has stopped would keep one of them waiting.
    return [one.numpy() for one in mg.parallel_map(lambda x: x * 2, [mg.ones(3)] * 8)]
"""
        between = f"""
        print("between", flush=True)
        try:
            {where}()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""
        begun = Begun(cluster, script_of(tmp_path, work, between))
        lines = begun.until("between")
        waiting = [tmp_path / f"script.py{k}" for k in range(4)]
        wait_until(lambda: all(path.exists() for path in waiting), 60.0)
        assert all(path.exists() for path in waiting), "all hosts work side by side"
        begun.process.send_signal(signal.SIGINT)
        lines += begun.until("interrupted")
        code, more, errors = begun.end()
        assert code == 0, errors
        found = digests([*lines, *more])
        assert found["local"] == found["hosts"]

    def test_errors(self, cluster: str, tmp_path: Path) -> None:
        work = """
class Unfit(Exception):
    pass

def fails(x):
    if x > 1:
        raise Unfit(x)
    return mg.ones(1) * x

class Raises(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 1.0

    @staticmethod
    def backward(ctx, grad):
        raise Unfit("back")

def told(run):
    try:
        run()
    except Unfit as error:
        return f"{error.args} {error.__notes__}"

def work():
    x = mg.ones(1, requires_grad=True)
    shown = told(lambda: mg.parallel_map(fails, range(6))), told(
        lambda: mg.parallel_map(lambda y: Raises.apply(y), [x])[0].backward()
    )
    print("told", *shown, flush=True)
    return []
"""
        lines = [line for line in run(cluster, script_of(tmp_path, work)) if "told" in line]
        assert len(lines) == 2
        for line in lines:
            for text in ("(2,)", "in fails of item 2", "('back',)", "in the backward of"):
                assert text in line
