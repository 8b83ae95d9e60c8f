"""The modules of mpgrad for PyTorch's module paths, if the paths differ."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

#: Paths below ``torch`` -> the modules with their names, in the order of the search.
_PLACES = (
    ("_tensor tensor", "mpgrad.compat.top mpgrad"),
    ("functional serialization", "mpgrad"),
    ("random", "mpgrad mpgrad.ops.generators"),
    ("types", "mpgrad.compat.types"),
    ("amp amp.autocast_mode amp.grad_scaler cuda.amp", "mpgrad.compat.amp"),
    ("accelerator", "mpgrad.compat.accelerator"),
    ("backends", "mpgrad.compat.backends"),
    ("backends.{cudnn cuda mkl mkldnn mps openmp}", "mpgrad.compat.backends"),
    ("futures", "mpgrad.distributed.futures"),
    ("jit compiler", "mpgrad.compat.jit"),
    ("version torch_version", "mpgrad.compat.version"),
    ("hub utils.model_zoo", "mpgrad.compat.hub"),
    ("utils.tensorboard utils.tensorboard.writer", "mpgrad.compat.tensorboard"),
    ("testing", "mpgrad.compat.testing"),
    ("_C", "mpgrad._C mpgrad.compat.other_names"),
    ("autograd.function", "mpgrad.autograd.function mpgrad.compat.other_names"),
    ("nn", "mpgrad.compat.module_itself mpgrad.nn"),
    ("nn.{parallel parallel.data_parallel}", "mpgrad.compat.module_itself mpgrad.nn.parallel"),
    ("nn.attention", "mpgrad.compat.attention"),
    ("nn.init", "mpgrad.nn.init mpgrad.compat.other_names"),
    ("cuda", "mpgrad.compat.cuda mpgrad.cuda"),
    (
        "multiprocessing multiprocessing.spawn",
        "mpgrad.multiprocessing mpgrad.compat.sharing multiprocessing",
    ),
    ("autograd.{variable gradcheck grad_mode anomaly_mode}", "mpgrad.autograd"),
    ("cuda.random", "mpgrad.cuda"),
    ("nn.modules.utils", "mpgrad.compat.tuples"),
    ("nn.modules nn.parameter", "mpgrad.nn"),
    ("nn.utils", "mpgrad.nn.utils mpgrad.compat.other_names"),
    (
        "nn.modules.{activation adaptive batchnorm channelshuffle container conv distance dropout "
        "flatten fold instancenorm lazy linear loss module normalization padding pixelshuffle "
        "pooling rnn sparse transformer upsampling}",
        "mpgrad.nn mpgrad.nn.module mpgrad.nn.module_hooks mpgrad.compat.other_names",
    ),
    (
        "nn.utils.{clip_grad convert_parameters fusion init prune spectral_norm stateless "
        "weight_norm}",
        "mpgrad.nn.utils",
    ),
    (
        "optim.{_adafactor _muon adadelta adagrad adam adamax adamw asgd lbfgs nadam optimizer "
        "radam rmsprop rprop sgd}",
        "mpgrad.optim mpgrad.optim.optimizer mpgrad.optim.optimizer_hooks",
    ),
    ("optim.swa_utils", "mpgrad.compat.swa_utils"),
    (
        "utils.data.{_utils _utils.collate dataloader dataset distributed sampler}",
        "mpgrad.data mpgrad.utils.data",
    ),
    ("distributions.utils", "mpgrad.distributions.parameters"),
    (
        "distributions.{bernoulli beta binomial categorical cauchy chi2 "
        "continuous_bernoulli dirichlet distribution exp_family exponential fishersnedecor gamma "
        "generalized_pareto geometric gumbel half_cauchy half_normal independent inverse_gamma kl "
        "kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal "
        "mixture_same_family multinomial multivariate_normal negative_binomial normal "
        "one_hot_categorical pareto poisson relaxed_bernoulli relaxed_categorical studentT "
        "transformed_distribution uniform von_mises weibull wishart}",
        "mpgrad.distributions",
    ),
)


def modules(path: str) -> tuple[ModuleType, ...]:
    """The modules with the names of ``torch.<path>``; none if mpgrad has no such module.

    Args:
        path: below ``torch``: "nn.modules.linear"; empty for ``torch`` itself.
    """
    if not path:
        return (importlib.import_module("mpgrad.compat.top"), importlib.import_module("mpgrad"))
    if path not in _table() and (own := _public(path)) is not None:
        return (own,)
    found = (_loaded(name) for name in _table().get(path, "").split())
    return tuple(module for module in found if module is not None)


@cache
def _table() -> dict[str, str]:
    """``_PLACES`` by single paths: ``a.{b c}`` is ``a.b`` and ``a.c``."""
    table = {}
    for paths, names in _PLACES:
        before, brace, inside = paths.partition("{")
        for path in inside.removesuffix("}").split() if brace else before.split():
            table[before + path if brace else path] = names
    return table


def _public(path: str) -> ModuleType | None:
    """``mpgrad.<path>`` if every step is a public name and a module."""
    module = importlib.import_module("mpgrad")
    for name in path.split("."):
        value = getattr(module, name, None)
        if not isinstance(value, ModuleType) or name not in dir(module):
            return None
        module = value
    return module


def _loaded(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
