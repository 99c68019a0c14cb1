"""Batch sizes of steps and sizes that are not as they should be: each gets a sensible answer, or one clear sentence."""

import numpy as np
import pytest
import torch

import memwidget as mw
from memwidget.answer.batch_size import as_sizes

KiB, MiB = 1 << 10, 1 << 20


def filled(rows):
    """Hold two blocks of `rows` KiB at a time."""
    return (torch.ones(rows, 256) * 2).sum()


def tuned(step, sizes=(8, 16, 32, 64), limit="64 MiB", **options):
    return mw.tune_batch_size(step, sizes, limit, backend="cpu", **options)


def test_a_step_that_ignores_its_size():
    ran = []

    def step(n):
        ran.append(n)
        filled(32)

    fit = tuned(step)
    assert fit.size == 64  # no size is too large, so none is proposed that was not tried
    assert ran[-1] == 64
    assert any("whatever their size" in note and "Does step() use" in note for note in fit.notes)
    assert fit.predict(1000)[0] == pytest.approx(64 * KiB, abs=64)
    assert fit.largest("64 KiB", 0) is None
    assert "No size fits" in tuned(step, limit="60 KiB").summary


def test_a_step_that_allocates_nothing():
    fit = tuned(lambda _n: None, verify=False)
    assert fit.predict(64) == (0, 0, 0)
    assert fit.size == 64


def test_a_step_whose_memory_grows_in_stairs():
    fit = tuned(lambda n: filled(-(-n // 32) * 32))
    (check,) = fit.checks
    assert check.allocated <= 64 * MiB
    # Up to the next multiple of 32 KiB, twice: a size in between takes as much as the one above.
    truth = 2 * KiB * (-(-fit.size // 32) * 32)
    assert check.allocated == pytest.approx(truth, abs=64)
    expected, low, high = fit.predict(fit.size)
    assert expected == pytest.approx(truth, rel=0.05)
    assert low <= truth <= high


def test_a_step_that_leaves_its_result_behind():
    kept = []
    fit = tuned(lambda n: kept.append(torch.ones(n, 256)), verify=False)
    assert any("leaves 8.00 KiB behind" in note and "grows from call to call" in note for note in fit.notes)
    # A result that is only returned is let go of.
    assert not tuned(lambda n: torch.ones(n, 256), verify=False).notes


def test_a_step_under_no_grad():
    net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))

    @torch.no_grad()
    def step(n):
        net(torch.ones(n, 256))

    fit = tuned(step)
    (check,) = fit.checks
    # The weights, and the two wide activations at once: nothing else stays for a backward.
    weights = sum(p.nbytes for p in net.parameters())
    assert fit.predict(fit.size)[0] == pytest.approx(check.allocated, rel=0.001)
    assert check.allocated == pytest.approx(weights + (1 + 4 + 4) * KiB * fit.size, rel=0.01)


def test_calls_that_run_nothing_are_refused():
    def generator(n):
        yield filled(n)

    async def coroutine(n):
        filled(n)

    for step in (generator, coroutine):
        with pytest.raises(TypeError, match="runs nothing of it"):
            tuned(step)
    with pytest.raises(TypeError, match="not generator"):
        tuned(filled, model=(each for each in [torch.nn.Linear(1, 1)]))


def test_sizes_in_any_order_and_of_any_integer():
    assert as_sizes((8, 2, 4, 2)) == [(2,), (4,), (8,)]
    assert as_sizes(np.array([[4, 8], [2, 8]])) == [(2, 8), (4, 8)]
    assert as_sizes(range(1, 4)) == [(1,), (2,), (3,)]
    for sizes in ((0, 1), (-1, 2), (1.5, 2), (2.0, 4.0), (True, 2), ("8", 16), [(1, 2.5), (2, 2)], [(), (1,)]):
        with pytest.raises(ValueError, match="whole numbers"):
            as_sizes(sizes)
    for sizes in ((), (4,), (4, 4), [(1, 2), 3]):
        with pytest.raises(ValueError, match="two different"):
            as_sizes(sizes)
    for sizes in (5, "8, 16"):
        with pytest.raises(TypeError, match="several sizes"):
            as_sizes(sizes)
    fit = tuned(filled, verify=False)
    for size in (0, 2.5, (4, 4), -3):
        with pytest.raises(ValueError, match="whole number"):
            fit.predict(size)
    assert fit.predict(4.0) == fit.predict(np.int64(4)) == fit.predict(4)
