"""Cases of Fourier transforms for the table of operators: name, function, shapes of the inputs."""

from __future__ import annotations

from tests.ops.matrix_cases import Entry

ENTRIES: list[Entry] = [
    ("fft", lambda m, x: m.fft.fft(x), ((2, 5),)),
    ("ifft longer", lambda m, x: m.fft.ifft(x, 6, 0, "ortho"), ((4, 2),)),
    ("fft2 shorter", lambda m, x: m.fft.fft2(x, (2, 3), norm="forward"), ((3, 4),)),
    ("ifftn", lambda m, x: m.fft.ifftn(x, dim=(0, 2)), ((2, 3, 4),)),
    ("rfft even", lambda m, x: m.fft.rfft(x, norm="ortho"), ((2, 6),)),
    ("rfftn odd", lambda m, x: m.fft.rfftn(x, (3, 5), (1, 0)), ((4, 3),)),
    ("irfft even", lambda m, x: m.fft.irfft(x), ((2, 4),)),
    ("irfft odd", lambda m, x: m.fft.irfft(x, 5, 0, "forward"), ((3, 2),)),
    ("irfft2", lambda m, x: m.fft.irfft2(x, norm="ortho"), ((3, 4),)),
    ("hfft2", lambda m, x: m.fft.hfft2(x), ((3, 3),)),
    ("ihfft2", lambda m, x: m.fft.ihfft2(x), ((3, 4),)),
    ("fftshift", lambda m, x: m.fft.fftshift(x, 1) * x, ((2, 5),)),
    ("ifftshift", lambda m, x: m.fft.ifftshift(x), ((3, 2),)),
]

#: Those that are tried with complex numbers, too.
ALSO_COMPLEX = "fft|ifft longer|fft2 shorter|ifftn|irfft even|irfft odd|irfft2|hfft2"
