"""A program that says ``import torch`` runs on mpgrad, and what is missing says so by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
import mpgrad.compat.torch as stand_in

PROGRAM = """
import sys
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.autograd import Variable
from torch.nn.modules.loss import MSELoss
from torch.nn.modules.utils import _pair
from torch.nn.parameter import Parameter
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataset import TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = Variable(torch.ones(4, 2)).to(device)
loss = MSELoss()(nn.Linear(2, 1)(x), F.relu(torch.ones(4, 1)))
loss.backward()
print(torch.__name__, sys.modules["torch.nn"] is nn, torch.__version__.split(".")[0])
print(type(x).__module__, sys.argv[1:], _pair(3))
"""


def run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "mpgrad", "compat", "run", str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_program_for_torch_runs_unchanged(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM, "--epochs", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "mpgrad.compat.torch True 2\nmpgrad ['--epochs', '3'] (3, 3)\n"


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "compat", "run", str(tmp_path / "none.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot read" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("torch.sparse_coo_tensor", "module 'torch' has no attribute 'sparse_coo_tensor': PyTorch"),
        (
            "torch.nn.CrossMapLRN2d",
            "PyTorch's CrossMapLRN2d is not in mpgrad",
        ),
        (
            "from torch.nn import CrossMapLRN2d",
            "cannot import torch.nn.CrossMapLRN2d: PyTorch's Cross",
        ),
        ("from torch import fx", "cannot import torch.fx: PyTorch's fx is not in mpgrad"),
        ("import torch.fx.graph", "cannot import torch.fx: PyTorch's fx is not in mpgrad"),
        ("import torch.no_such_module", "cannot import torch.no_such_module: mpgrad has no such"),
    ],
)
def test_what_is_missing_says_so(tmp_path: Path, line: str, error: str) -> None:
    done = run(tmp_path, f"import torch\n{line}\n")
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]


def test_optional_imports_fall_back(tmp_path: Path) -> None:
    source = (
        "import torch\n"
        "try:\n    from torch.fx import GraphModule\nexcept ImportError:\n    print('without')\n"
        "print(hasattr(torch, 'sparse_coo_tensor'), hasattr(torch, 'relu'))\n"
    )
    assert run(tmp_path, source).stdout == "without\nFalse True\n"


def test_the_module_gives_mpgrads_own_objects() -> None:
    assert stand_in.nn.modules.linear.Linear is mg.nn.Linear
    assert stand_in.nn.functional.relu is mg.nn.functional.relu
    assert stand_in.__name__ == "mpgrad.compat.torch"
    assert "randn" in dir(stand_in)
    assert not hasattr(stand_in.nn, "fold_away")


def test_a_module_that_mpgrad_only_uses_is_none_of_pytorchs() -> None:
    assert not hasattr(stand_in.optim, "np")


def test_tensor_makes_tensors_of_data_and_of_lengths() -> None:
    made = stand_in.Tensor([[1, 2], [3, 4]])
    assert (type(made), made.dtype, made.tolist()) == (mg.Tensor, mg.float32, [[1, 2], [3, 4]])
    array = np.ones(2)
    made = stand_in.Tensor(array)
    array[0] = 5
    assert (made.dtype, made.tolist()) == (mg.float32, [1, 1])
    assert stand_in.Tensor(2, 3).shape == stand_in.Tensor(made.new(2, 3).size()).shape == (2, 3)
    assert stand_in.Tensor().shape == (0,)


def test_tensor_is_mpgrads_class_otherwise() -> None:
    x = mg.ones(2)
    assert isinstance(x, stand_in.Tensor)
    assert issubclass(mg.nn.Parameter, stand_in.Tensor)
    assert type(x) == stand_in.Tensor  # noqa: E721
    assert {stand_in.Tensor: 1}[type(x)] == 1
    assert not isinstance(3, stand_in.Tensor)
    assert stand_in.Tensor.sum(x).item() == 2

    class Named(stand_in.Tensor):
        pass

    named = Named([1.0, 2.0])
    assert isinstance(named, Named)
    assert not isinstance(x, Named)
    assert named.tolist() == [1, 2]


def test_what_is_added_to_tensor_all_tensors_have() -> None:
    stand_in.Tensor.twice = lambda self: self * 2
    try:
        assert mg.ones(1).twice().item() == 2
    finally:
        del mg.Tensor.twice


SETUP = """
import torch
from torch.cuda.amp import GradScaler, autocast

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
torch.manual_seed(1)
torch.cuda.manual_seed_all(1)
device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
if torch.accelerator.is_available():
    device = torch.accelerator.current_accelerator()

@torch.compile
@torch.jit.script
def double(x):
    return x + x

model = torch.compile(torch.nn.Linear(2, 1)).to(device)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler()
with autocast(enabled=False):
    loss = model(double(torch.ones(1, 2))).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
torch.set_default_tensor_type(torch.DoubleTensor)
print(torch.ones(1).dtype, torch.get_num_threads(), torch.typename(loss))
print(torch.distributed.is_available(), torch.is_autocast_enabled(), torch.is_storage(loss))
"""


def test_what_programs_set_up_is_accepted(tmp_path: Path) -> None:
    done = run(tmp_path, SETUP)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "True False False"
    assert done.stdout.splitlines()[0].endswith("float64 1 torch.FloatTensor")


def test_mixed_precision_is_refused_or_said_to_be_off() -> None:
    with pytest.raises(RuntimeError, match="autocast on the CPU needs bfloat16"):
        stand_in.autocast("cpu")
    with pytest.warns(UserWarning, match="autocast is disabled"), stand_in.cuda.amp.autocast():
        pass


FUNCTION = """
import torch
from torch.nn import functional as F
import mpgrad

add = torch.add

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        %s
        return F.relu(torch.add(grad, add(grad, 0 * grad)))

with mpgrad.Engine(mode="process", cpu_workers=1) as engine:
    x = torch.ones(3, requires_grad=True)
    Double.apply(x).sum().backward()
    print(x.grad.tolist())
"""


@pytest.mark.process
def test_a_function_that_names_torch_runs_in_a_worker(tmp_path: Path) -> None:
    done = run(tmp_path, FUNCTION % "pass")
    # What stays in the client says so on stderr.
    assert (done.stdout, done.stderr, done.returncode) == ("[2.0, 2.0, 2.0]\n", "", 0)


@pytest.mark.process
def test_a_function_that_imports_torch_stays_in_the_client(tmp_path: Path) -> None:
    done = run(tmp_path, FUNCTION % "import torch")
    assert (done.stdout, done.returncode) == ("[2.0, 2.0, 2.0]\n", 0)
    assert "imports torch" in done.stderr


def test_a_dtype_that_numpy_lacks_can_be_named_and_not_used() -> None:
    by_name = {"float32": stand_in.float32, "bfloat16": stand_in.bfloat16}
    assert repr(by_name["bfloat16"]) == "torch.bfloat16"
    assert mg.ones(1).dtype != stand_in.bfloat16
    for use in (mg.ones(1).to, lambda dtype: mg.zeros(2, dtype=dtype)):
        with pytest.raises(TypeError, match=r"NumPy has no bfloat16: use torch\.float32"):
            use(stand_in.bfloat16)


def test_other_names_of_what_is_here() -> None:
    modules, norm = stand_in.nn.modules, mg.nn.BatchNorm2d(3)
    assert isinstance(norm, modules.batchnorm._BatchNorm)
    assert not isinstance(mg.nn.InstanceNorm2d(3), modules.batchnorm._BatchNorm)
    assert isinstance(mg.nn.Conv2d(1, 1, 1), modules.conv._ConvNd)
    assert stand_in.nn.init._calculate_fan_in_and_fan_out(mg.ones(2, 3)) == (3, 2)
    assert stand_in.spmm(mg.ones(1, 2), mg.ones(2, 1)).item() == 2
    assert stand_in.backends.cuda.matmul.allow_tf32 is False
    with stand_in.nn.attention.sdpa_kernel(stand_in.nn.attention.SDPBackend.MATH):
        pass
    with pytest.raises(NotImplementedError, match=r"^model.pth: mpgrad reads no files"):
        stand_in.hub.load_state_dict_from_url("model.pth")


def test_new_tensors_take_options_about_memory() -> None:
    zeros = stand_in.zeros(2, layout=stand_in.strided, pin_memory=False)
    assert (zeros.tolist(), zeros.layout) == ([0, 0], stand_in.strided)
    like = stand_in.empty_like(zeros, memory_format=stand_in.preserve_format, layout=zeros.layout)
    assert like.shape == (2,)
    assert stand_in.randint(3, 4, (2,), pin_memory=True).tolist() == [3, 3]
    assert stand_in.tensor([1.0], pin_memory=True, requires_grad=True).requires_grad


def test_the_prefix_of_a_parallel_model_is_taken_from_the_keys() -> None:
    state = {"module.weight": 1, "bias": 2, "module.inner.bias": 3}
    stand_in.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert state == {"weight": 1, "bias": 2, "inner.bias": 3}


def test_a_scaler_of_gradients_has_its_name_in_torch_itself() -> None:
    assert isinstance(stand_in.GradScaler("cpu"), stand_in.amp.GradScaler)


@pytest.mark.slow
def test_summaries_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    writer = stand_in.utils.tensorboard.SummaryWriter(str(tmp_path))
    weight = mg.ones(2, 3, requires_grad=True)
    writer.add_scalar("loss", weight.sum(), 1)
    writer.add_scalars("losses", {"train": mg.tensor(2.0), "test": 3.0}, 1)
    writer.add_histogram("weight", weight, global_step=1)
    writer.close()
    assert b"weight" in b"".join(file.read_bytes() for file in tmp_path.glob("events*"))


def test_tensors_that_are_not_close_are_told_apart() -> None:
    close = stand_in.testing.assert_close
    close({"a": [mg.ones(2), 1.0]}, {"a": [mg.ones(2) + 1e-6, 1.0]})
    for other in (mg.ones(2) + 1e-3, mg.ones(3), mg.ones(2, dtype=mg.float64), mg.tensor([1, 1])):
        with pytest.raises(AssertionError):
            close(mg.ones(2), other)


SPAWNS = """
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

mp.set_sharing_strategy("file_system")

def work(number, factor):
    print(torch.__name__, number * factor, flush=True)

if __name__ == "__main__":
    mp.spawn(work, args=(10,), nprocs=2)
    numbers = torch.arange(4.0)
    print(list(DataLoader(numbers, 2, num_workers=1, multiprocessing_context="spawn")))
"""


@pytest.mark.slow
@pytest.mark.process
def test_processes_that_a_program_for_torch_starts_are_its_own_kind(tmp_path: Path) -> None:
    done = run(tmp_path, SPAWNS)
    assert done.returncode == 0, done.stderr
    *spawned, loaded = done.stdout.splitlines()
    assert sorted(spawned) == ["mpgrad.compat.torch 0", "mpgrad.compat.torch 10"]
    assert loaded == "[tensor([0., 1.]), tensor([2., 3.])]"


def test_a_sharing_strategy_is_one_of_torchs() -> None:
    sharing = stand_in.multiprocessing
    assert sharing.get_sharing_strategy() in sharing.get_all_sharing_strategies()
    with pytest.raises(ValueError, match="'fast' is none of"):
        sharing.set_sharing_strategy("fast")


def test_a_module_does_not_hide_the_function_of_its_name(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import torch
from torch.autograd.gradcheck import gradgradcheck
from torch.utils.checkpoint import checkpoint
import torch.utils.checkpoint
x = torch.ones(2, dtype=torch.float64, requires_grad=True)
print(torch.autograd.gradcheck(lambda x: x * x, (x,)), gradgradcheck(lambda x: x * x, (x,)))
print(torch.utils.checkpoint.checkpoint is checkpoint)
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\nTrue\n", "")


def test_types_by_pytorchs_names() -> None:
    x = stand_in.arange(3)
    assert x.type(stand_in.Tensor).dtype == mg.float32
    assert x.type(mg.Tensor).dtype == mg.float32
    assert x.type(stand_in.DoubleTensor).dtype == mg.float64
    assert (x.type(), x.float().type()) == ("torch.LongTensor", "torch.FloatTensor")
    assert isinstance(stand_in.bfloat16, stand_in.dtype)
    assert stand_in.bfloat16.is_floating_point
    with pytest.raises(TypeError, match="NumPy has no bfloat16"):
        x.to(stand_in.bfloat16)


def test_what_no_tensor_is() -> None:
    names = "is_xpu is_mps is_mtia is_xla is_meta is_quantized is_nested is_mkldnn is_sparse_csr"
    assert not any(getattr(mg.ones(1), name) for name in names.split())


def test_names_of_programs_that_use_the_engine() -> None:
    stand_in._C._set_grad_enabled(False)
    assert not mg.is_grad_enabled()
    stand_in._C._set_grad_enabled(True)
    assert mg.is_grad_enabled()
    stand_in.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    devices, states = stand_in.utils.checkpoint.get_device_states(mg.ones(1))
    assert (devices, states) == ([], [])
    stand_in.utils.checkpoint.set_device_states(devices, states)
