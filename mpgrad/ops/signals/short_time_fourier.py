"""Fourier transforms of short pieces of a signal: ``stft`` and its inverse ``istft``."""

from __future__ import annotations

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.by_index.scattering import index_add
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import div, mul
from mpgrad.ops.elementwise.complex_numbers import conj, is_complex, view_as_real
from mpgrad.ops.new_tensors.creation import ones, zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import amin
from mpgrad.ops.shapes.shape import broadcast_to, reshape, squeeze, transpose, unsqueeze
from mpgrad.ops.shapes.windows_and_slices import unfold
from mpgrad.ops.signals.fourier import fft, ifft, irfft, rfft
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["istft", "stft"]


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The Fourier transform of each frame of a signal.

    Args:
        input: (length,) or (batch, length), real or complex.
        n_fft: elements of a frame.
        hop_length: from frame to frame, by default a quarter of ``n_fft``.
        win_length: elements of the window, in the middle of the frame; by default ``n_fft``.
        window: (win_length,), factors of the elements of a frame; by default 1.
        center: the signal is padded by half a frame at both ends.
        pad_mode: how; see ``mg.nn.functional.pad``.
        normalized: divide by the root of ``n_fft``.
        onesided: only the first half of the frequencies; by default of real signals.
        return_complex: False: real and imaginary part as a last dimension of length 2.
        align_to_window: not supported.

    Returns:
        (batch, frequencies, frames), without the batch for a vector.

    Raises:
        RuntimeError: the shapes or lengths do not fit, or ``return_complex`` is not given for a
            real signal.
        NotImplementedError: ``align_to_window`` is set.
    """
    if align_to_window:
        raise NotImplementedError("stft() has no align_to_window=True; pad the signal first")
    hop, length = n_fft // 4 if hop_length is None else hop_length, win_length or n_fft
    whole = is_complex(input) or (window is not None and is_complex(window))
    if return_complex is None:
        if not whole:
            raise RuntimeError(
                "stft requires the return_complex parameter be given for real inputs, and will "
                "further require that return_complex=True in a future PyTorch release."
            )
        return_complex = True
    if input.ndim not in (1, 2):
        raise RuntimeError(f"stft(): expected a 1D or 2D tensor, but got {input.ndim}D")
    signal = input if input.ndim == 2 else unsqueeze(input, 0)
    if center:
        half = n_fft // 2
        signal = squeeze(pad(unsqueeze(signal, 1), (half, half), pad_mode), 1)
    if not 0 < n_fft <= signal.shape[1]:
        raise RuntimeError(
            f"stft(): expected 0 < n_fft <= {signal.shape[1]}, but got n_fft={n_fft}"
        )
    if hop <= 0:
        raise RuntimeError(f"stft(): expected hop_length > 0, but got hop_length={hop}")
    frames = unfold(signal, 1, n_fft, hop)
    if window is not None or length < n_fft:
        frames = mul(frames, _whole_window("stft", input, window, length, n_fft))
    norm = "ortho" if normalized else "backward"
    if whole and onesided:
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    half_only = (not whole) if onesided is None else onesided
    found = transpose((rfft if half_only else fft)(frames, norm=norm), 1, 2)
    found = found if input.ndim == 2 else squeeze(found, 0)
    return found if return_complex else view_as_real(found)


def _whole_window(
    name: str, input: Tensor, window: Tensor | None, length: int, n_fft: int
) -> Tensor:
    """The window with zeros before and after it.

    Raises:
        RuntimeError: it does not fit.
    """
    if not 0 < length <= n_fft:
        raise RuntimeError(f"{name}(): expected 0 < win_length <= n_fft, but got {length}")
    if window is None:
        kind = on_host(input._array[:0]).real.dtype
        window = ones(length, dtype=kind, device=input.device)
    if window.ndim != 1 or window.shape[0] != length:
        raise RuntimeError(
            f"{name}(): expected a 1D window tensor of size equal to win_length={length}, but got "
            f"window with size {list(window.shape)}"
        )
    before = (n_fft - length) // 2
    return pad(window, (before, n_fft - length - before)) if length < n_fft else window


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose ``stft`` comes closest to ``input`` (Griffin and Lim, "Signal estimation
    from modified short-time Fourier transform", 1984).

    Args:
        input: complex, (frequencies, frames) or (batch, frequencies, frames).
        n_fft: as given to ``stft``, as are ``hop_length``, ``win_length``, ``window``,
            ``center``, ``normalized`` and ``onesided``.
        length: of the signal, which is cut off or filled with zeros.
        return_complex: the signal was complex.

    Returns:
        (batch, length), without the batch if ``input`` has none.

    Raises:
        RuntimeError: the shapes or lengths do not fit, or a part of the signal is in no window.
    """
    hop, width = n_fft // 4 if hop_length is None else hop_length, win_length or n_fft
    if not is_complex(input) or input.ndim not in (2, 3) or input.numel() == 0:
        raise RuntimeError(
            "istft requires a complex-valued input tensor of 2 or 3 dimensions, not "
            f"{input.dtype} of {list(input.shape)}"
        )
    spectra = input if input.ndim == 3 else unsqueeze(input, 0)
    frequencies, count = spectra.shape[1:]
    half_only = frequencies != n_fft if onesided is None else onesided
    if frequencies != (n_fft // 2 + 1 if half_only else n_fft):
        raise RuntimeError(
            f"istft(): the frequency dimension is {frequencies}, which does not match "
            f"n_fft={n_fft} with onesided={half_only}"
        )
    if not 0 < hop <= width:
        raise RuntimeError(f"istft(): expected 0 < hop_length <= win_length, but got {hop}")
    if return_complex and half_only:
        raise RuntimeError("istft(): cannot have onesided output if window or input is complex")
    whole = _whole_window("istft", input, window, width, n_fft)
    norm = "ortho" if normalized else "backward"
    spectra = transpose(spectra, 1, 2)
    if return_complex:
        frames = ifft(spectra, norm=norm)
    else:
        frames = irfft(narrow(spectra, -1, 0, n_fft // 2 + 1), n_fft, norm=norm)
    squares = broadcast_to(mul(whole, conj(whole)), (1, count, n_fft))
    total = n_fft + hop * (count - 1)
    start = n_fft // 2 if center else 0
    stop = total - start if length is None else start + length
    inside = min(stop, total) - start
    signal, envelope = (
        narrow(_overlapped(x, hop, total), 1, start, inside)
        for x in (mul(frames, conj(whole)), squares)
    )
    if inside and float(amin(absolute(envelope)).item()) <= 1e-11:
        raise RuntimeError("istft(): window overlap add min: a part of the signal is in no window")
    signal = div(signal, envelope)
    if stop > total:
        signal = pad(signal, (0, stop - total))
    return signal if input.ndim == 3 else reshape(signal, (signal.shape[1],))


def _overlapped(frames: Tensor, hop: int, total: int) -> Tensor:
    """(batch, frames, width) added into (batch, total), each a hop further."""
    batch, count, width = frames.shape
    places = (np.arange(count)[:, None] * hop + np.arange(width)).reshape(-1)
    silence = zeros((batch, total), dtype=frames.dtype, device=frames.device)
    return index_add(silence, 1, beside(frames, places), reshape(frames, (batch, -1)))
