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

# Call sites: 64 points of OKLCH, each as far from the nearest other as a greedy choice among 3,000 brings it, in both
# themes at once (same hue and chroma, lightness 0.46 to 0.66 on white and 0.80 to 0.58 on black), with lightness at 0.6
# of its weight, since the stacks of a line are shades of its colour. The accent and the grey of "none" are left free.
# Contrast with the background is at least 3.0 (light) and 3.9 (dark); the closest two are 0.047 apart in OKLab. Among
# seven lines two share a colour in 28 of 100 recordings; with 24 colours, 0.06 apart, in 61. No such number can be told
# apart by colour-blind eyes, which is why blocks have hairlines and labels too.
#
# Categories: the Okabe-Ito hues moved as little as a random search needed to bring the closest pair of the eleven
# from 0.016 (parameter and autograd detail, protanopia) to 0.060 in OKLab, over normal, protanopic, deuteranopic and
# tritanopic eyes (Machado 2009, severity 1).
#
# Ramps run from small or young to large or old, always towards more contrast with the background.
PALETTE: dict[str, dict[str, list[str] | str]] = {
    "light": {
        "site": [
            *("#7e66ca", "#8176b2", "#957ee5", "#684192", "#8f57b5", "#86728f", "#7d3488", "#715a74"),
            *("#9f69a7", "#bc70c8", "#aa83a8", "#7c3e71", "#9a418c", "#bf5da2", "#982f66", "#b26387"),
            *("#905d6e", "#b64774", "#d2608c", "#883a51", "#b54150", "#de6672", "#c37b7f", "#9c7573"),
            *("#993a31", "#955546", "#be6e52", "#aa4600", "#c3610d", "#6e513c", "#844500", "#c88004"),
            *("#93640b", "#a29070", "#887a49", "#9f8405", "#606301", "#767a20", "#879453", "#799a1b"),
            *("#568502", "#627659", "#106b07", "#41623d", "#528b4c", "#128537", "#24a660", "#0b764d"),
            *("#579d79", "#02906a", "#2f7063", "#018d87", "#6e9c9f", "#009eaf", "#1d6270", "#067a9c"),
            *("#0398cd", "#5b7890", "#1f6cb0", "#2784d5", "#3c578a", "#5679bb", "#5e8fed", "#7492ca"),
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
            *("#9881e8", "#8f84c1", "#7e66ca", "#cfa9ff", "#b87ee0", "#a18caa", "#ea9cf7", "#bfa6c3"),
            *("#ad77b6", "#a258ae", "#916c8f", "#e9a3db", "#e182d0", "#c15fa3", "#fe8cc1", "#c17195"),
            *("#c790a2", "#e3709b", "#c45480", "#fa9fb5", "#f17782", "#c34e5b", "#a96368", "#ab8280"),
            *("#ff9588", "#db9483", "#bf6f53", "#f48751", "#d36f25", "#d7b69f", "#f3ac75", "#a86b06"),
            *("#c9984d", "#897858", "#a39462", "#a08509", "#b8be68", "#9da24c", "#7c8847", "#6f8e05"),
            *("#7cad3f", "#94aa8b", "#82d67a", "#a5caa0", "#6ca666", "#56bb6a", "#089a55", "#6cc598"),
            *("#4b916e", "#24ad82", "#7ebfb0", "#1eaaa4", "#568387", "#0a91a1", "#88cad9", "#47b0d6"),
            *("#048cbd", "#819fb9", "#65aef7", "#3992e5", "#9ebef8", "#6f94d8", "#4777d2", "#5d7ab0"),
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

N_SITE_COLORS = 64
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
