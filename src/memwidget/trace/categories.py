"""Labels + phases -> what each block was for, how that was decided, and its name.

Owns the rules, one after the other; the first that decides stands:

A. identity: a live tensor was seen at the block's address while the block lived. A parameter beats a buffer, beats
   optimizer state, beats a gradient, beats an input. (A block made within a model's call is no input of the next.)
B. phase, of the moment at which the block was made::

       forward     freed before it ends: temporary; else activation if it trains, output if not
       backward    freed before it ends: temporary; else gradient (guess) if a parameter has its size,
                   else autograd_detail
       optimizer   freed before it ends: temporary; else optimizer_state

   Between a forward that trains and its backward counts as forward: a loss may be no module.
C. guess, for what lies outside of phases: freed by the next backward: activation; made since the last step and held
   during the next forward and backward: input.

Where two threads did different things at once, only A decides. It must not know about pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memwidget.recording import CATEGORIES, I32, I64, SAMPLED, TRAINS, U8, Recording
from memwidget.trace.allocator import BlockColumns
from memwidget.trace.phases import BACKWARD, FORWARD, LOSS, STEP, Phases

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How a category was decided; index of the blocks' `reason`.
REASONS = ("", "identity", "phase", "guess", "rule")
IDENTITY, PHASE, GUESS, RULE = range(1, 5)

#: How far the allocator's clock may be from the process's, in us (1 to 8 were measured on an H200).
SLACK_US = 100

_C = {name: code for code, name in enumerate(CATEGORIES)}
_UNKNOWN = _C["unknown"]
#: The first of these that was seen at a block decides; a name alone comes last.
_RANK = np.full(len(CATEGORIES), 9, np.int64)
for _rank, _name in enumerate(("parameter", "buffer", "optimizer_state", "gradient", "input")):
    _RANK[_C[_name]] = _rank


class Answer(NamedTuple):
    """One entry a block: category, reason, name (index into strings, -1), forward stack (-1); and what to say."""

    category: U8
    reason: U8
    name: I32
    forward_stack: I32
    notes: list[str]


class _Deciding(NamedTuple):
    """The blocks, and what is decided about them so far."""

    blocks: BlockColumns
    category: U8
    reason: U8
    name: I32

    def say(self, ids: NDArray[Any], category: Any, reason: Any) -> None:
        """Decide about blocks."""
        self.category[ids], self.reason[ids] = category, reason


def categorize(recording: Recording, device: int, blocks: BlockColumns, found: Phases | None) -> Answer:
    """Decide about every block of a device.

    Parameters
    ----------
    blocks : columns of BLOCK_DTYPE
    found : Phases or None
        None where events carry no time; then only what lives at the start or the end can be told.
    """
    n = len(blocks)
    made = _Deciding(blocks, blocks["category"].copy(), np.zeros(n, np.uint8), np.full(n, -1, np.int32))
    forward = np.full(n, -1, np.int32)
    notes: list[str] = []
    labels = recording.labels
    rows = np.flatnonzero(labels.device == device)
    if not len(rows) and not len(recording.spans):  # a plain snapshot: nothing to decide by
        return Answer(made.category, made.reason, made.name, forward, notes)
    held = match(blocks, labels.address[rows], labels.time_us[rows], labels.nbytes[rows], timed=found is not None)
    _identity(made, recording, rows, held, found)
    lost = len(np.unique(labels.address[rows[held < 0]]))
    if lost and recording.device_type != "cpu":  # the CPU's history knows nothing of what was there before
        notes.append(
            f"{lost:,} labelled tensors lie in memory that this allocator's history does not hold; they label nothing."
        )
    if found is not None and n:
        sizes = np.unique(labels.nbytes[rows[labels.category[rows] == _C["parameter"]]])
        _by_phase(made, found, sizes, _saved(recording, device, blocks))
        _guess(made, found)
        ran = np.where(found.torn, -1, found.module)[blocks["alloc_event"]]
        made.name[:] = np.where(made.name < 0, ran, made.name)
        forward = _forward_stacks(recording, device, blocks, found)
        if found.torn.any():
            notes.append(
                "Two threads were in different phases at the same time: there, categories come from what was sampled "
                "alone."
            )
    # A variable's name, where nothing better is known.
    only = (held >= 0) & (labels.category[rows] == _UNKNOWN)
    named, last = np.unique(held[only][::-1], return_index=True)
    made.name[named] = np.where(made.name[named] < 0, labels.name[rows[only]][::-1][last], made.name[named])
    return Answer(made.category, made.reason, made.name, forward, notes)


# -- A ---------------------------------------------------------------------------------------------------------------


def match(blocks: BlockColumns, address: NDArray[np.uint64], time: I64, nbytes: I64, *, timed: bool = True) -> I64:
    """The block that lived at each address and time, -1 for none.

    One search in the blocks sorted by address and time; of two uses in one microsecond the later one counts, as a
    sample is taken after the allocation has returned. Where no block holds the time, the one nearest to it counts if
    it is within the two clocks' difference and asked for exactly these bytes.
    """
    result = np.full(len(address), -1, np.int64)
    if not len(blocks) or not len(address):
        return result
    if timed:
        born, died = blocks["alloc_time_us"], blocks["free_time_us"]
        died = np.where(died < 0, np.iinfo(np.int64).max, died)
    else:  # only "at the start" and "at the end" can be told
        born = np.where(blocks["alloc_event"] < 0, 0, 1)
        gone = (blocks["free_event"] >= 0) | (blocks["free_requested_event"] != -1)
        died = np.where(gone, 1, 3)
        middle = (time > time.min()) & (time < time.max())
        time = np.where(middle, -1, np.where(time > time.min(), 2, 0))
    known, code = np.unique(blocks["address"], return_inverse=True)
    which = np.searchsorted(known, address)
    ours = which < len(known)
    ours[ours] = known[which[ours]] == address[ours]
    if timed:  # what was there before is as old as the oldest: -1 would make the keys below too large for 64 bits
        born = np.maximum(born, min(np.min(born, where=born >= 0, initial=time.min()), time.min()) - 1)
    start = int(min(born.min(), time.min()))
    width = int(max(born.max(), time.max())) - start + 2
    if width * (len(known) + 1) >= 2**62:  # years apart: by rank, then
        ranks = np.unique(np.concatenate([born, time]), return_inverse=True)[1]
        birth, moment = ranks[: len(born)], ranks[len(born) :]
        start, width = 0, int(ranks.max()) + 2
    else:
        birth, moment = born, time
    key = code * width + (birth - start) + 1
    order = np.lexsort((blocks["alloc_event"], key))
    asked = which * width + (moment - start) + 1
    place = np.searchsorted(key[order], asked, side="right") - 1
    before = np.where(place >= 0, order[place], -1)
    after = order[np.minimum(place + 1, len(order) - 1)]
    roomy = blocks["size"]

    same = ours & (before >= 0) & (code[before] == which)
    fits = same & (nbytes <= roomy[before])
    inside = fits & (time <= died[before])
    result[inside] = before[inside]
    if timed:
        exact = blocks["requested"]
        late = ~inside & ours & (code[after] == which) & (exact[after] == nbytes)
        late &= (born[after] >= time) & (born[after] - time <= SLACK_US)
        result[late] = after[late]
        early = ~inside & ~late & same & (exact[before] == nbytes) & (time - died[before] <= SLACK_US)
        result[early] = before[early]
    return result


def _identity(made: _Deciding, recording: Recording, rows: NDArray[np.intp], held: I64, found: Phases | None) -> None:
    labels = recording.labels
    what = labels.category[rows]
    use = (held >= 0) & (what != _UNKNOWN)
    if found is not None and len(made.blocks):
        within = found.at[made.blocks["alloc_event"][held]]
        inside = (within >= 0) & (np.append(found.kind, -1)[within] == FORWARD)
        use &= ~((what == _C["input"]) & inside)
    rows, held, what = rows[use], held[use], what[use]
    order = np.lexsort((np.arange(len(rows)), _RANK[what], held))
    decided, first = np.unique(held[order], return_index=True)
    best = order[first]
    # torch.profiler follows tensors from operator to operator: a good guess, and not ours.
    judged = labels.how[rows[best]] == SAMPLED.index("profiler")
    made.say(decided, what[best], np.where(judged, GUESS, IDENTITY))
    made.name[decided] = labels.name[rows[best]]


# -- B ---------------------------------------------------------------------------------------------------------------


def _by_phase(made: _Deciding, found: Phases, sizes: I64, kept: NDArray[np.bool_] | None) -> None:
    blocks = made.blocks
    born = blocks["alloc_event"]
    phase = found.at[born]
    open_ = (made.reason == 0) & (born >= 0) & (phase >= 0) & ~found.torn[born]
    ids = np.flatnonzero(open_)
    phase = phase[ids]
    kind, trains = found.kind[phase], (found.flags[phase] & TRAINS) > 0
    freed = blocks["free_requested_event"][ids]
    gone = (freed >= 0) & (freed < found.hi[phase])
    forward, backward, step = (kind == FORWARD) | (kind == LOSS), kind == BACKWARD, kind == STEP

    result = np.full(len(ids), _C["temporary"], np.uint8)
    why = np.full(len(ids), PHASE, np.uint8)
    result[forward & ~gone & ~trains] = _C["output"]
    result[forward & ~gone & trains] = _C["activation"]
    if kept is not None:  # deep mode knows which ones autograd saved
        saved = kept[ids]
        result[forward & ~gone & trains & ~saved] = _C["output"]
        why[forward & ~gone & trains & saved] = IDENTITY
    sized = np.isin(blocks["requested"][ids], sizes)
    result[backward & ~gone] = _C["autograd_detail"]
    result[backward & ~gone & sized] = _C["gradient"]
    why[backward & ~gone & sized] = GUESS
    result[step & ~gone] = _C["optimizer_state"]
    made.say(ids, result, why)


def _guess(made: _Deciding, found: Phases) -> None:
    passes = np.flatnonzero(found.kind == BACKWARD)
    if not len(passes):
        return
    passes = passes[np.argsort(found.lo[passes], kind="stable")]
    lo, hi = found.lo[passes], found.hi[passes]
    born, freed = made.blocks["alloc_event"], made.blocks["free_requested_event"].astype(np.int64)
    ids = np.flatnonzero((made.reason == 0) & (born >= 0) & (found.at[born] < 0) & ~found.torn[born])
    next_ = np.searchsorted(lo, born[ids], side="right")
    ids, next_ = ids[next_ < len(lo)], next_[next_ < len(lo)]
    gone = np.where(freed[ids] < 0, np.iinfo(np.int64).max, freed[ids])
    held = gone >= lo[next_]
    in_backward = held & (gone < hi[next_])
    made.say(ids[in_backward], _C["activation"], GUESS)
    # Held for one backward only: what is kept for longer is nobody's input.
    following = np.append(lo, np.iinfo(np.int64).max)[next_ + 1]
    forwards = np.sort(found.lo[(found.kind == FORWARD) & ((found.flags & TRAINS) > 0)])
    meets = np.searchsorted(forwards, born[ids], side="right")
    forward = np.append(forwards, np.iinfo(np.int64).max)[meets] < lo[next_]
    once = held & ~in_backward & forward & ((gone < following) | (next_ + 1 == len(lo)))
    made.say(ids[once], _C["input"], GUESS)


# -- deep mode -------------------------------------------------------------------------------------------------------


def _saved(recording: Recording, device: int, blocks: BlockColumns) -> NDArray[np.bool_] | None:
    """Which blocks autograd saved a tensor in; None without deep mode."""
    saved = recording.saved
    if not len(saved):
        return None
    rows = np.flatnonzero(saved.device == device)
    held = match(blocks, saved.address[rows], saved.time_us[rows], np.zeros(len(rows), np.int64))
    kept = np.zeros(len(blocks), bool)
    kept[held[held >= 0]] = True
    return kept


def _forward_stacks(recording: Recording, device: int, blocks: BlockColumns, found: Phases) -> I32:
    """The forward stack of each block made in backward: of the operator that backward was at when it was made.

    That is the one whose saved tensor it took back last, or one that saved nothing and began since: then the stack
    that made the memory of the tensor which that operator gave to the next.
    """
    stacks = np.full(len(blocks), -1, np.int32)
    uses = recording.uses
    if not len(uses):
        return stacks
    order = np.argsort(uses.time_us, kind="stable")
    times, saved = uses.time_us[order], uses.saved[order]
    born = blocks["alloc_event"]
    phase = found.at[born]
    backward = (born >= 0) & (phase >= 0)
    backward[backward] = found.kind[phase[backward]] == BACKWARD
    ids = np.flatnonzero(backward)
    last = np.searchsorted(times, blocks["alloc_time_us"][ids], side="right") - 1
    # What backward allocates before it has taken anything back belongs to the first that it takes.
    start = found.start_us[phase[ids]]
    first = np.searchsorted(times, start, side="left")
    last = np.maximum(last, first)
    ok = last < len(times)
    stacks[ids[ok]] = _use_stacks(recording, device, blocks, saved, backward)[last[ok]]
    return stacks


def _use_stacks(
    recording: Recording, device: int, blocks: BlockColumns, used: NDArray[Any], backward: NDArray[np.bool_]
) -> NDArray[Any]:
    """The forward stack of each use."""
    made = used < 0
    rows = np.where(made, ~used, used)
    stacks = recording.saved.stack[rows]
    ask = np.flatnonzero(made & (recording.saved.device[rows] == device))
    asked = rows[ask]
    held = match(blocks, recording.saved.address[asked], recording.saved.time_us[asked], np.zeros(len(asked), np.int64))
    # Not where backward made the memory itself (a recomputed region), or its stack is not known.
    good = (held >= 0) & ~backward[held] & (blocks["stack"][held] >= 0)
    stacks[ask[good]] = blocks["stack"][held[good]]
    return stacks
