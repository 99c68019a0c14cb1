"""The facts of an allocation that failed for good: what was asked, what was there, why it could not serve.

They are told in words elsewhere (answer/oom.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwidget.trace.fragmentation import Fragmentation
    from memwidget.trace.trace import Ranking


@dataclass(frozen=True)
class OutOfMemory:
    """One out-of-memory event, in bytes.

    Attributes
    ----------
    moment : int
        The state the failing request met.
    requested : int
        As the allocator rounded it.
    device_free : int
        What the driver said was free on the device.
    allocated, reserved : int
        At that moment.
    free : Fragmentation
        Reserved but free memory, and why it could not serve.
    by_site, by_category : Ranking
        What filled the memory, by the user's lines and by what it was for.
    outside : int or None
        Used on the device by others than torch's allocator; None where the capacity is unknown.
    expandable : bool
        Expandable segments were on.
    """

    moment: int
    requested: int
    device_free: int
    allocated: int
    reserved: int
    free: Fragmentation
    by_site: Ranking
    by_category: Ranking
    outside: int | None
    expandable: bool

    @property
    def limited(self) -> bool:
        """The device had room for the request: a limit that no recording can name was hit."""
        return self.device_free >= self.requested
