"""Which colour stands for what, in both themes.

Owns every colour that carries data. They are decided here, in Python, so that the widget, the exported page and the
static picture agree; the front end only looks them up. Chrome (text, hairlines, backgrounds) belongs to widget.css.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The canvas behind the data, against which the contrasts below were computed.
BACKGROUND = {"light": "#ffffff", "dark": "#14161a"}

# Call sites: OKLCH, chroma 0.11, eight hues in each of three lightnesses (light: 0.66, 0.56, 0.46; dark: 0.58, 0.69,
# 0.80), the hues of a row shifted by a third of a step against the row before, and 262 to 292 degrees left free for
# the accent. Contrast with the background is at least 3.0 (light) and 3.9 (dark); the closest two are 0.062 apart in
# OKLab. No 24 colours can be told apart by colour-blind eyes, which is why blocks have hairlines and labels too.
#
# Categories: the Okabe-Ito hues moved as little as a random search needed to bring the closest pair of the eleven
# from 0.016 (parameter and autograd detail, protanopia) to 0.060 in OKLab, over normal, protanopic, deuteranopic and
# tritanopic eyes (Machado 2009, severity 1).
#
# Ramps run from small or young to large or old, always towards more contrast with the background.
PALETTE: dict[str, dict[str, list[str] | str]] = {
    "light": {
        "site": [
            *("#9981cb", "#bd75a7", "#cb7474", "#c18045", "#9d933b", "#65a265", "#1ca69a", "#339ec4"),
            *("#8a60a3", "#a5577a", "#ab5a47", "#996a16", "#707c26", "#2d885b", "#01858a", "#2b7cae"),
            *("#774079", "#893a4d", "#884216", "#6c5505", "#416418", "#006852", "#026373", "#285994"),
        ],
        "category": [
            *("#086f99", "#6f95c1", "#cd6500", "#329961", "#56b4e9", "#daa452"),
            *("#d3769a", "#8f67be", "#ba9505", "#6d6f74", "#a9adb5"),
        ],
        "ramp": ["#d0bf5e", "#93b762", "#4eaa75", "#0d9588", "#027c8d", "#05628f", "#2c4389", "#3e256e"],
        "stream": ["#2274a5", "#c2571a", "#14866d", "#a8447f", "#7d7413", "#7a4a2a", "#9c79c9", "#5f6670"],
        "pool": ["#5f6670", "#14866d", "#c2571a", "#2274a5", "#a8447f", "#7d7413", "#9c79c9", "#7a4a2a"],
        "none": "#b4b8bf",
        "accent": "#5b50d6",
    },
    "dark": {
        "site": [
            *("#826bb3", "#a45f90", "#b25e5e", "#a86a2c", "#877d20", "#4e8b4f", "#068d83", "#0986ac"),
            *("#b287cd", "#d07ea1", "#d6816d", "#c29146", "#97a451", "#59b081", "#26b0b6", "#56a4d9"),
            *("#e3a5e4", "#fb9fb1", "#f8a87e", "#d9bb66", "#a5cd81", "#69d5b6", "#5bd0e8", "#91c1fe"),
        ],
        "category": [
            *("#5986b9", "#86b0d5", "#db7b64", "#4bb08d", "#4dcdfa", "#ecb63a"),
            *("#e88db4", "#a68adb", "#bf9f09", "#868a92", "#5f656e"),
        ],
        "ramp": ["#533c87", "#415ba4", "#157cb2", "#0599ad", "#17b4a4", "#6dc991", "#b1d780", "#f0e07f"],
        "stream": ["#5aa5d6", "#e58a4e", "#45b899", "#d67fb3", "#b5aa45", "#b98a63", "#c3a6ea", "#979ea8"],
        "pool": ["#979ea8", "#45b899", "#e58a4e", "#5aa5d6", "#d67fb3", "#b5aa45", "#c3a6ea", "#b98a63"],
        "none": "#5a606a",
        "accent": "#a49dff",
    },
}

N_SITE_COLORS = 24
N_CATEGORIES = 11


#: Phases that the recorder finds by itself, in the order of a step, and the category whose colour each has: gradients
#: come in backward and state in the optimizer; forward takes the blue of parameters, which no phase makes.
PHASES = {"forward": 0, "backward": 2, "optimizer": 3}
#: The colours that the user's own phases take in turn: categories' too, so that colour-blind eyes tell them apart.
_OWN_PHASES = (6, 7, 8, 4, 5, 1)


def palette_with(categories: tuple[str, ...], phases: Sequence[str] = ()) -> dict[str, dict[str, list[str] | str]]:
    """The palette, with a colour for each phase and for each category of the user's own.

    A category's is a call site's, by a stable hash of its name; there are few phases, so theirs go by their order.
    """
    own = [crc32(name.encode("utf-8", "replace")) % N_SITE_COLORS for name in categories[N_CATEGORIES:]]
    named = [name for name in phases if name not in PHASES]
    turns = {name: _OWN_PHASES[i % len(_OWN_PHASES)] for i, name in enumerate(named)}
    return {
        theme: {
            **colors,
            "category": [*colors["category"], *(colors["site"][i] for i in own)],
            "phase": [colors["category"][{**turns, **PHASES}[name]] for name in phases],
        }
        for theme, colors in PALETTE.items()
    }


#: The colour index of a stack without a user's line: drawn in the palette's "none".
NO_COLOR = 255


def site_color(filename: str, line: int, name: str, source: str | None) -> int:
    """Colour index of a line of code: the same one in every run, folder and Python.

    The line's own text is preferred to its number, so that editing the code above keeps the colour. A notebook's cell
    counts as one file whatever its number, so that running it again keeps the colour too.
    """
    base = filename.replace("\\", "/").rsplit("/", 1)[-1]
    if filename.startswith("<ipython-input-") or "/ipykernel_" in filename.replace("\\", "/"):
        base = "<cell>"
    text = source.strip() if source and source.strip() else str(line)
    return crc32(f"{base}\0{name}\0{text}".encode("utf-8", "replace")) % N_SITE_COLORS
