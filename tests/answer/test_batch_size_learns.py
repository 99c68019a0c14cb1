"""What a fit may not say: sizes that no trial speaks of, answers that a run disproved, memory that nobody named."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as f

import memwidget as mw
from memwidget.answer.batch_size.limits import bytes_of, margin_of

KiB, MiB = 1 << 10, 1 << 20


def floats(rows):
    """Take `rows` KiB for a moment."""
    return torch.ones(rows, 256)


def tuned(step, sizes=(4, 8, 12, 16), limit="2 MiB", **options):
    return mw.tune_batch_size(step, sizes, limit, backend="cpu", **options)


def test_a_number_that_was_never_varied_is_not_extrapolated():
    fit = tuned(lambda b, s: floats(b * s), [(2, 16), (4, 16), (8, 16)], verify=False)
    assert fit.size[1] == 16
    assert 110 <= fit.size[0] <= 121  # 121 x 16 KiB are under 95 % of 2 MiB
    for ask in (
        lambda: fit.predict((4, 64)),
        lambda: fit.largest(fixed=(None, 64)),
        lambda: fit.largest(fixed=(2, None)),
    ):
        with pytest.raises(ValueError, match=r"Number 2 of a size was 16 in every trial.*vary it in sizes"):
            ask()
    # Where it is the first that does not vary, the second is looked for.
    assert tuned(lambda b, s: floats(b * s), [(2, 16), (2, 32), (2, 64)], verify=False).size[0] == 2
    together = tuned(lambda b, s: floats(b * s), [(2, 16), (4, 32), (8, 64)], verify=False)
    assert together.size == (8, 64)
    assert any("vary each by itself" in note and "stands in" in note for note in together.notes)
    with pytest.raises(ValueError, match="together"):
        together.predict((8, 128))


def test_stairs_are_followed_on_top_and_small_slopes_are_believed():
    # The batch is padded to 64: 64, 64, 128, 128 KiB in the trials.
    fit = tuned(lambda n: floats(-(-n // 64) * 64).sum(), (32, 64, 96, 128), "8 MiB")
    (check,) = fit.checks
    low, high = fit.foretold[check.size][1:]
    assert 1024 < fit.size <= 8192
    assert low <= check.allocated <= high
    assert any("rises in steps" in note for note in fit.notes)
    assert not any("whatever their size" in note for note in fit.notes)

    def micro(n):
        """A loop of four samples each; only the inputs, 4 B of each sample, are held all the while."""
        held = torch.ones(n)
        for part in held.split(4):
            (floats(100) + part[0]).sum()

    fit = tuned(micro, limit="300 KiB", verify=False)
    # 2 x 100 KiB and 4 B a sample.
    assert fit.method == "totals"
    assert fit.predict(2000)[0] == pytest.approx(200 * KiB + 8000, abs=64)


def test_trials_that_follow_nothing_are_not_extrapolated():
    asked = {4: 900, 8: 200, 12: 800, 16: 300}

    def step(n):
        for _ in range(n):  # as many requests as samples, so no block is another's twin
            torch.ones(1)
        floats(asked[n])

    fit = tuned(step)
    assert fit.size == 16
    assert any("follow no function of the size" in note and "stands in" in note for note in fit.notes)


def test_sizes_that_depend_on_the_data_reach_the_interval():
    torch.manual_seed(3)
    head = nn.Linear(64, 512)
    inside = 0
    for _ in range(4):

        def step(n):
            rows = torch.rand(n, 64) < 0.15
            f.cross_entropy(
                head(torch.ones(n, 64, 64)[rows]), torch.zeros(int(rows.sum()), dtype=torch.long)
            ).backward()
            head.zero_grad()

        fit = tuned(step, (4, 8, 12, 16), "8 MiB")
        assert any("depends on its data" in note for note in fit.notes)
        (check,) = fit.checks[:1]
        expected, low, high = fit.foretold[check.size]
        inside += low <= check.allocated <= high
        assert expected == pytest.approx(check.allocated, rel=0.08)
        assert high - low > 0.02 * expected
    assert inside >= 3


def test_what_lies_there_from_before_is_counted_whoever_holds_it():
    raw = [torch.randn(256, 256) for _ in range(4)]  # 1 MiB that no module and no optimizer knows
    beside = np.ones(1 << 20, np.float32)  # memory that torch did not take

    def step(n):
        x = torch.from_numpy(beside)[: 256 * n].view(n, 256)
        for weights in raw:
            x = x @ weights

    fit = tuned(step, verify=False)
    assert fit.fixed()["preexisting"] == MiB
    # Two products at once, 1 KiB a sample each.
    assert fit.predict(100)[0] == MiB + 2 * 100 * KiB


def test_a_run_is_believed_over_the_prediction():
    fit = tuned(lambda n: floats(n + (1000 if n > 700 else 0)))  # a cliff between 700 and 701
    room = 0.95 * 2 * MiB
    assert fit.checks[0].size[0] > 1800
    assert 650 <= fit.size <= 946
    assert fit.largest() == fit.size
    for check in fit.checks:
        expected, low, high = fit.predict(check.size)
        assert low <= check.allocated == expected <= high
        assert fit.keeps(check) == (check.allocated <= room)
    assert "did not fit with the margin" in fit.summary
    glyphs = {getattr(each.glyph, "marker", None) for each in fit.plot().renderers}
    assert {"circle", "x"} <= glyphs

    data = torch.ones(20, 256)
    ends = tuned(lambda n: data[:n].clone())
    assert any("takes no more than size 20 would" in note for note in ends.notes)
    assert ends.largest() == ends.size == ends.checks[0].size[0]
    assert ends.predict(1000)[0] == pytest.approx(ends.checks[0].allocated, rel=0.1)


def test_growth_of_less_than_an_allocator_rounds_to():
    def step(n):
        held = [torch.ones(n) for _ in range(26)]  # 4 B a sample each
        del held

    fit = tuned(step, (1, 2, 4, 8), verify=False)
    assert fit.predict(10_000)[0] == 26 * 40_000


def test_an_error_at_the_proposed_size_keeps_the_fit():
    def step(n):
        if n > 16:
            raise KeyError("no more data")
        floats(n)

    fit = tuned(step)
    assert fit.size > 1800
    assert any("KeyError" in note and "no more data" in note and "unverified" in note for note in fit.notes)

    def fails(n):
        if n == 8:
            raise KeyError("eight")

    with pytest.raises(KeyError) as caught:
        tuned(fails)
    assert [entry.name for entry in caught.traceback][-3:] == ["tuned", "tune_batch_size", "fails"]


def test_a_layer_that_cannot_be_trained_on_one_sample():
    norm = nn.BatchNorm1d(8)
    state = torch.random.get_rng_state()
    fit = mw.tune_batch_size(lambda n: norm(torch.randn(n, 8)).sum().backward(), limit="1 MiB", backend="cpu")
    assert fit.trials[0].size == (2,)
    assert any("Size 1 was left out" in note for note in fit.notes)
    assert torch.equal(state, torch.random.get_rng_state())


def test_questions_that_have_no_answer_get_a_sentence():
    fit = tuned(floats, verify=False)
    for size in (None, float("nan"), True, "4", 10**18):
        with pytest.raises(ValueError, match="size"):
            fit.predict(size)
    assert fit.largest("1 PiB") > 10**9
    with pytest.raises(ValueError, match="did you mean 'RTX 4090', or '4090 B'"):
        bytes_of("4090")
    assert margin_of("5 %", 1000) == margin_of("5%", 1000) == 50
    with pytest.raises(ValueError, match=r"margin='x' must be a share such as 0.05 or '5 %'") as caught:
        margin_of("x", 1000)
    assert "RTX" not in str(caught.value)


def test_grows_is_what_the_next_sample_takes():
    def step(n):
        return torch.ones(n, n).exp()

    fit = tuned(step, (16, 32, 48, 64), verify=False)
    (row,) = fit.grows(100)
    assert row.bytes_per_sample == fit.predict(101)[0] - fit.predict(100)[0] == 2 * 4 * (101**2 - 100**2)


def test_sliders_suit_the_limit():
    fit = tuned(lambda n: floats(n + 100), verify=False)
    limit, margin, answer = fit.sliders().children
    assert limit.description == "limit, MiB"
    assert limit.value == 2.0
    assert limit.min <= 0.1
    assert limit.step == pytest.approx(0.01)
    assert margin.value == 5.0
    limit.value = 1.0
    assert f"<b>{fit.largest('1 MiB')}</b> fits" in answer.value
