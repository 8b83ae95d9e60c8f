"""Which hosts of a cluster take part, and what is seen of them."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

import mpgrad as mg
from tests.ray.marks import needs_ray
from tests.ray.scripts import Begun, run


class TestHosts:
    pytestmark = needs_ray

    def test_other_versions_are_one_error(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, mpgrad as mg\n"
            "mg.__version__ = '0.0.0'\n"
            "try:\n    mg.Engine(cluster=sys.argv[1]).__enter__()\n"
            "except mg.errors.MpgradError as error:\n    print(error)\n"
        )
        text = "\n".join(run(cluster, script))
        assert text.count(f"mpgrad {mg.__version__} (here 0.0.0)") == 2
        assert "Install the same versions there" in text

    def test_a_host_that_is_taken_is_not_waited_for(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import sys\nimport ray\nimport mpgrad as mg\n"
            "from mpgrad.engine.cluster import host_calls\n"
            "host_calls.OTHERS_S = 5.0\n"
            "ray.init(sys.argv[1], log_to_driver=False)\n"
            "class Taken:\n    def is_here(self):\n        return True\n"
            "taken = ray.remote(num_cpus=2)(Taken).remote()\n"
            "ray.get(taken.is_here.remote())\n"
            "with mg.Engine('process', cluster=sys.argv[1]) as engine:\n"
            "    print(mg.parallel_map(abs, [-1]), engine._made.hosts.workers)\n"
            "    ray.kill(taken)\n"
            "    while engine._made.hosts.workers < 4:\n"
            "        assert mg.parallel_map(abs, [-1]) == [1]\n"
            "print('both')\n"
        )
        assert {"[1] 2", "both"} <= {*run(cluster, script)}

    def test_the_autoscaler_is_asked_within_limits(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import json, sys, ray\nimport mpgrad as mg\n"
            "from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL as KEY\n"
            "from ray.experimental.internal_kv import _internal_kv_get as get\n"
            "ray.init(sys.argv[1], log_to_driver=False)\n"
            "def asked():\n    return json.loads(get(KEY) or 'null')\n"
            "print('before', asked())\n"
            "with mg.Engine('process', cluster=sys.argv[1], min_hosts=1, max_hosts=1) as engine:\n"
            "    print(mg.parallel_map(abs, range(-9, 0)), engine._made.hosts.workers, asked())\n"
            "print('after', asked())\n"
        )
        taken = "[9, 8, 7, 6, 5, 4, 3, 2, 1] 2 [{'CPU': 2}]"
        lines = run(cluster, script)
        assert [line for line in lines if line in ("before None", taken, "after []")] == [
            "before None",
            taken,
            "after []",
        ]

    def test_a_host_that_dies_while_it_starts_starts_again(
        self, cluster: str, tmp_path: Path
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, ray\nimport mpgrad as mg\n"
            "from mpgrad.engine.cluster.ray_hosts import RayHost\n"
            "greets, killed = RayHost.greet, []\n"
            "def greet(self, end):\n"
            "    if not killed:\n        killed.append(ray.kill(self._actor))\n"
            "    greets(self, end)\n"
            "RayHost.greet = greet\n"
            "with mg.Engine('process', cluster=sys.argv[1]) as engine:\n"
            "    while engine._made.hosts.workers < 4:\n"
            "        assert mg.parallel_map(abs, [-1]) == [1]\n"
            "print('both')\n"
        )
        assert "both" in run(cluster, script)

    def test_hosts_with_another_arithmetic(self, cluster: str, tmp_path: Path) -> None:
        """Another kernel of OpenBLAS stands for another processor."""
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys, warnings\nimport mpgrad as mg\n"
            "options = {'mode': 'process', 'cluster': sys.argv[1],\n"
            "    'runtime_env': {'env_vars': {'OPENBLAS_CORETYPE': 'Nehalem'}}}\n"
            "def core(x):\n    return os.environ['OPENBLAS_CORETYPE']\n"
            "with warnings.catch_warnings(record=True) as found:\n"
            "    warnings.simplefilter('always')\n"
            "    with mg.Engine(**options):\n"
            "        print(*mg.parallel_map(core, [1]))\n"
            "print(*[str(one.message) for one in found])\n"
            "try:\n    mg.Engine(same_arithmetic=True, **options).__enter__()\n"
            "except mg.errors.MpgradError as error:\n    print('refused', error)\n"
        )
        core, warning, *refused = [line for line in run(cluster, script) if "(pid=" not in line]
        assert core == "Nehalem"
        assert "Engine(same_arithmetic=True) leaves them out" in warning
        assert warning.count("BLAS openblas") == "\n".join(refused).count("BLAS openblas") == 2

    def test_what_hosts_have_done_is_seen(self, cluster: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys\nos.environ['RAY_DEDUP_LOGS'] = '0'\n"
            "import mpgrad as mg\nfrom mpgrad.launch import top_command\n"
            "def tells(x, w):\n    print('an item speaks', x.shape[0])\n    return (x @ w).sum()\n"
            "with mg.Engine('process', cluster=sys.argv[1]) as engine:\n"
            "    while engine._made.hosts.workers < 4:\n"
            "        mg.parallel_map(abs, [-1])\n"
            "    w = mg.randn(60, 60).requires_grad_()\n"
            "    xs = [mg.randn(k + 1, 60).requires_grad_() for k in range(8)]\n"
            "    with mg.profiler.profile() as found:\n"
            "        sum(mg.parallel_map(tells, xs, shared=(w,))).backward()\n"
            "    found.export_chrome_trace(sys.argv[0] + '.json')\n"
            "    hosts = engine.statistics().hosts\n"
            "    assert sum(host.calls for host in hosts) >= 16\n"
            "    assert min(host.sent_bytes for host in hosts) > w.detach().numpy().nbytes\n"
            "    assert min(host.received_bytes for host in hosts) > 60 * 60 * 4\n"
            "    assert [host.workers for host in hosts] == [2, 2]\n"
            "    engine._made.hosts._board.show(hosts)  # it does so every other second\n"
            "    print(engine.statistics())\n"
            "    top_command.main(once=True, as_json=False)\n"
            "    print('seen', flush=True)\n"
            "    sys.stdin.readline()\n"
        )
        begun = Begun(cluster, script)
        lines: list[str] = []
        # Ray brings what is printed there when it likes.
        while sum("an item speaks" in line for line in lines) < 8 or "seen" not in lines:
            lines += begun.until("")
        assert begun.end("\n")[0] == 0
        said = [line for line in lines if "an item speaks" in line]
        assert all(f"(host {platform.node()} pid=" in line for line in said)
        [at] = [at for at, line in enumerate(lines) if f"hosts of {begun.process.pid}: " in line]
        assert all(": 2 workers, " in line for line in lines[at + 1 : at + 3])
        trace = json.loads((tmp_path / "script.py.json").read_text())
        entries = trace["traceEvents"] if isinstance(trace, dict) else trace
        rows = {
            one["pid"] for one in entries if f" of {platform.node()} (" in str(one.get("args", {}))
        }
        assert len(rows) >= 2  # a worker of each host
        assert sum(one["pid"] in rows and one["ph"] == "X" for one in entries) == 16
        figures = [line for line in lines if line.startswith("host ")]
        assert len(figures) == 2
        assert all(" calls, " in line for line in figures)

    def test_an_engine_that_another_one_replaces_ends(self, cluster: str, tmp_path: Path) -> None:
        """After the calls that run on its hosts."""
        script = tmp_path / "script.py"
        script.write_text(
            "import gc, os, sys, time\nimport ray\nimport mpgrad as mg\n"
            "def reads(path):\n    with open(path) as file:\n        return file.read()\n"
            "path = sys.argv[0] + '.fifo'\nos.mkfifo(path)\n"
            "def hosts():\n"
            "    return ray.cluster_resources()['CPU'] - ray.available_resources().get('CPU', 0)\n"
            "mg.set_engine(mg.Engine('process', cluster=sys.argv[1]))\n"
            "print(mg.parallel_map(abs, [-1]))\n"
            "future = mg.fork(reads, path)\n"
            "mg.set_engine(mg.Engine('local'))\n"
            "gc.collect()\n"
            "with open(path, 'w') as file:\n    file.write('go')\n"
            "print(future.result(60))\n"
            "del future\n"
            "while hosts():\n    gc.collect()\n"
            "print('ended')\n"
        )
        assert run(cluster, script)[-3:] == ["[1]", "go", "ended"]

    def test_an_address_where_nothing_is(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import mpgrad as mg\n"
            "try:\n    mg.Engine(cluster='127.0.0.1:1').__enter__()\n"
            "except mg.errors.MpgradError as error:\n    print(error)\n"
        )
        [line, *_] = run("", script)
        assert "Engine(cluster='127.0.0.1:1'): no Ray cluster answers there" in line


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = mg.Engine(cluster="auto")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mpgrad\[ray\]'"), engine:
        pass
    with mg.Engine("local", cluster="auto"):
        assert mg.parallel_map(lambda x: x + 1, [1]) == [2]


def test_the_address_is_a_text() -> None:
    with pytest.raises(TypeError, match="an address, or 'auto'"):
        mg.Engine(cluster=True)  # type: ignore[arg-type]
