"""How many bytes a limit is: numbers, words such as "24 GiB", names of cards.

Owns the table of cards. It must not know the device at hand; that one is asked.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

_UNIT = {
    **dict.fromkeys(("", "b"), 1),
    **dict.fromkeys(("k", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gib"), 1 << 30),
    **dict.fromkeys(("t", "tib"), 1 << 40),
    **dict.fromkeys(("p", "pib"), 1 << 50),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
}
#: What a card reports as its total memory in GiB, the lowest seen where driver and error correction make a difference;
#: it is less than the number in the card's name.
CARDS = {
    "GTX 1080 Ti": 10.9,
    "RTX 2080 Ti": 10.7,
    "RTX 3060": 11.7,
    "RTX 3080": 9.7,
    "RTX 3090": 23.6,
    "RTX 4060": 7.6,
    "RTX 4070": 11.6,
    "RTX 4080": 15.6,
    "RTX 4090": 23.5,
    "RTX 5080": 15.5,
    "RTX 5090": 31.3,
    "RTX A5000": 23.6,
    "RTX A6000": 47.4,
    "RTX 6000 Ada": 47.3,
    "P100": 15.8,
    "T4": 14.5,
    "V100 16GB": 15.7,
    "V100 32GB": 31.7,
    "A10": 22.0,
    "A10G": 22.0,
    "A40": 44.3,
    "A100 40GB": 39.3,
    "A100 80GB": 79.1,
    "L4": 22.0,
    "L40S": 44.3,
    "H100": 79.1,
    "H200": 139.7,
    "B200": 178.3,
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
#: Bytes of a card that are not torch's: CUDA context, libraries' kernels and handles; 0.4 to 0.6 GiB are usual.
CONTEXT = 700 << 20


def bytes_of(limit: float | str, what: str = "limit") -> int:
    """Bytes of ``"24 GiB"``, ``"24GB"``, a number of bytes, or a card's name: then what it leaves to torch.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    if isinstance(limit, bool) or not isinstance(limit, (int, float, str)):
        raise TypeError(f"{what}={limit!r} must be bytes, words such as '24 GiB', or a card's name.")
    if not isinstance(limit, str):
        if not limit > 0 or limit == float("inf"):
            raise ValueError(f"{what}={limit!r} must be more than 0 bytes.")
        return int(limit)
    found = _AMOUNT.fullmatch(limit)
    alike = [card for card in CARDS if limit.strip().isdigit() and limit.strip() in card.split()]
    if alike:  # "4090" is a card before it is four thousand bytes
        raise ValueError(f"{what}={limit!r}: did you mean {' or '.join(map(repr, alike))}, or '{limit.strip()} B'?")
    if found and found[2].lower() in _UNIT and float(found[1]) > 0:
        return int(float(found[1]) * _UNIT[found[2].lower()])
    names = {_plain(name): name for name in CARDS}
    plain = _plain(limit)
    if plain in names:
        return int(CARDS[names[plain]] * (1 << 30)) - CONTEXT
    sizes = [name for key, name in names.items() if plain and key.startswith(plain)]
    near = sizes or [names[key] for key in get_close_matches(plain, names, 3, 0.5)]
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"known cards: {', '.join(CARDS)}."
    raise ValueError(f"{what}={limit!r} is neither bytes such as '24 GiB' nor a card that is known here; {hint}")


def _plain(name: str) -> str:
    """A card's name without maker, family and punctuation."""
    lowered = re.sub(r"nvidia|geforce|tesla|quadro|generation|laptop gpu|[^a-z0-9]", "", name.lower())
    return re.sub(r"(pcie|sxm\d?|hbm\d?e?|nvl)", "", lowered)


def margin_of(margin: float | str, limit: int) -> int:
    """Bytes to stay below a limit by: a share of it ("5 %", or a number below 1), or bytes, as numbers or words.

    Raises
    ------
    ValueError
        If it is neither.
    """
    asked = margin
    if isinstance(margin, str):
        percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", margin)
        amount = _AMOUNT.fullmatch(margin)
        if percent:
            margin = float(percent[1]) / 100
        elif amount and amount[2].lower() in _UNIT and amount[2]:
            return int(float(amount[1]) * _UNIT[amount[2].lower()])
    if isinstance(margin, (int, float)) and not isinstance(margin, bool):
        if 0 <= margin < 1:
            return int(margin * limit)
        if 1 << 10 <= margin < float("inf"):  # 5 is meant as percent more often than as bytes
            return int(margin)
    raise ValueError(f"margin={asked!r} must be a share such as 0.05 or '5 %', or bytes such as '500 MiB'.")
