"""What kernels take for a moment: scratch that libraries choose by size, and that of reductions.

Owns the knowledge that such requests follow no single function of the size. Both are told by their place in the
program, since nothing else names them::

    +a -a               scratch of one kernel: asked for, and given back before anything else is
    +r +b +s -s -b      torch's reduction over thread blocks (aten/src/ATen/native/cuda/Reduce.cuh): result, buffer for
                        the parts, one int a column of thread blocks

Convolutions choose an algorithm by size, each with scratch of its own. Where that is seen to happen between the trials
it will happen beyond them too, and what is reserved hangs on it: a request that just misses the hole left for it takes
a new segment. So it is replayed with several draws.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.batch_size.replay import MIB, Program, lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64

#: Standard deviation of log(bytes / law) of scratch whose algorithm changed, and how many draws. Measured for ResNet-50
#: from trials of 3 to 9 at sizes of 16 to 72: 30 to 44 % of 41 kernels changed, by 0.4. The mean of 16 draws moves by
#: 0.4 % from seed to seed.
SPREAD, DRAWS = 0.4, 16

#: Of a reduction: threads of a block whose threads handle one output each, its width, and values that a thread sums at
#: least and at most before the work is split.
_THREADS, _WIDTH, _LEAST, _MOST = 512, 32, 16, 256
_PART = 4  # bytes of a part: parts of half and of single numbers are single


def draws(program: Program, values: NDArray[np.float64], changed: I64) -> tuple[I64, NDArray[np.float64]]:
    """Scratch to vary, and by what.

    Parameters
    ----------
    values : ndarray
        Bytes of each block (columns) in each trial (rows).
    changed : ndarray
        Blocks that no law holds for in all trials. Where none of them is scratch of 1 MiB or more, nothing is varied.

    Returns
    -------
    blocks : ndarray of int64
    factors : ndarray, one row a draw
        The same for all sizes, so that the need remains a function of the size.
    """
    born, died = lifetimes(program)
    scratch = (born >= 0) & (died == born + 1) & (program.sizes >= MIB)
    if not scratch[changed].any():
        return np.zeros(0, np.int64), np.ones((0, 0))
    blocks: I64 = np.flatnonzero(scratch).astype(np.int64)
    # The same layer again asks for the same bytes, and then for the same again at any size.
    _, group = np.unique(values[:, blocks], axis=1, return_inverse=True)
    # A Latin hypercube: each kernel takes each of the quantiles once, in an order of its own.
    normal, chance = NormalDist(0.0, SPREAD), np.random.default_rng(0)
    quantiles = np.array([normal.inv_cdf((at + 0.5) / DRAWS) for at in range(DRAWS)])
    orders = np.stack([chance.permutation(DRAWS) for _ in range(int(group.max()) + 1)], axis=1)
    return blocks, np.exp(quantiles[orders])[:, group.ravel()]


def reductions(program: Program) -> tuple[I64, NDArray[np.float64]]:
    """Buffers of reductions, and where each stops growing: as many thread blocks as the device runs at once."""
    found: dict[int, float] = {}
    ops, sizes = program.ops.tolist(), program.sizes.tolist()
    for at in range(1, len(ops) - 3 if program.threads else 0):
        result, buffer, semaphores = ops[at - 1 : at + 2]
        if min(result, buffer, semaphores) > 0 and ops[at + 2 : at + 4] == [-semaphores, -buffer]:
            cap = _cap(sizes[result - 1], sizes[buffer - 1], sizes[semaphores - 1], program.threads)
            if cap:
                found[buffer - 1] = cap
    return np.array(list(found), np.int64), np.array(list(found.values()), float)


def _cap(result: int, buffer: int, semaphores: int, threads: int) -> int:
    """Bytes that a reduction's buffer grows to; 0 where the three requests are not those of a reduction."""
    for vector in (4, 2, 1):  # outputs that one thread handles
        width, at_once = _WIDTH * vector, threads * vector // _THREADS
        for element in (4, 2, 8):
            outputs = result // element
            columns = -(-outputs // width)
            parts, rest = divmod(buffer, max(1, _PART * outputs * width))
            most = -(-at_once // max(1, columns))
            if semaphores == 4 * columns and not rest and 1 < parts <= most:
                return _PART * outputs * width * most
    return 0


def capped(bytes_: NDArray[np.float64], caps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes of buffers that would grow on: flat once all threads are busy, until each has as much as it may sum."""
    found: NDArray[np.float64] = np.maximum(np.minimum(bytes_, caps), bytes_ * _LEAST / _MOST)
    return found
