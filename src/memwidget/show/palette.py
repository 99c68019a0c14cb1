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

# Call sites: 96 points of OKLCH, each as far from the nearest other as a greedy choice among 3,000 brings it, in both
# themes at once (same hue and chroma, lightness 0.46 to 0.66 on white and 0.80 to 0.58 on black), with lightness at 0.8
# of its weight, since the stacks of a line are shades of its colour. The accent and the grey of "none" are left free.
# Contrast with the background is at least 3.0 (light) and 3.9 (dark); the closest two are 0.042 apart in OKLab. Among
# seven lines two share a colour in 19 of 100 recordings; with 24 colours, 0.06 apart, in 61. No such number can be told
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
            *("#8972d8", "#5e4c84", "#7b69a2", "#9380bc", "#6f6281", "#713995", "#9868ba", "#8a48a2"),
            *("#b573cf", "#ab75b4", "#684e66", "#823181", "#844a83", "#a24fa0", "#91618f", "#b561b3"),
            *("#8d7087", "#ab6595", "#b082a0", "#cd6aaf", "#8f2b69", "#844763", "#ac4278", "#98576e"),
            *("#cb5a86", "#a43459", "#b46f80", "#835d62", "#ba4760", "#92323f", "#d05a67", "#b25e5c"),
            *("#cd7673", "#724d48", "#b6443a", "#af8781", "#955546", "#d05f45", "#9b776a", "#a14301"),
            *("#ba7b5d", "#7f4824", "#d8732b", "#b26417", "#945913", "#7c6449", "#9c703a", "#c07b03"),
            *("#b28b50", "#775814", "#645737", "#896a01", "#a68003", "#8a814f", "#847e06", "#999652"),
            *("#595d17", "#6a6e2b", "#8f9407", "#5f7a0b", "#61911c", "#889979", "#516448", "#45712d"),
            *("#6d9b56", "#106b07", "#4c8446", "#688b64", "#527a57", "#2e9848", "#047e44", "#2ca470"),
            *("#10684c", "#228f6b", "#64a08d", "#5e8a83", "#15a194", "#406d69", "#107f7a", "#2c8f9c"),
            *("#5b9ea9", "#036373", "#2b99bf", "#00729b", "#477c97", "#0383bd", "#4b677e", "#036bb9"),
            *("#3e96ea", "#367ad1", "#7e94b1", "#3c578a", "#516ea3", "#5b7fc2", "#70819f", "#6d92d6"),
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
            *("#8b73d9", "#c4b2f1", "#a28fcc", "#8775b0", "#b0a2c3", "#d8a5fe", "#a676c9", "#cd89e8"),
            *("#9c5ab5", "#9f6aa8", "#d0b3ce", "#f199ee", "#d697d3", "#cc77ca", "#ba87b8", "#b663b5"),
            *("#a88aa1", "#ba72a3", "#976a87", "#b25196", "#ff97d1", "#e49fbd", "#e777ac", "#d08aa2"),
            *("#cc5b87", "#fd84a5", "#b57081", "#c69ca2", "#e86f86", "#fe9fa5", "#d25b68", "#d07876"),
            *("#b25e5c", "#dcb2ac", "#f1796c", "#966f6a", "#db9483", "#d26046", "#a98477", "#fc8e58"),
            *("#ad6f52", "#edae88", "#bc5b03", "#cf7e39", "#d99a5b", "#bea487", "#b88b55", "#b17102"),
            *("#997338", "#d4b173", "#cbbc9a", "#bf9e4a", "#a78207", "#988f5d", "#a09926", "#817e3a"),
            *("#bfc47f", "#aaaf6b", "#838805", "#91b04e", "#6f9f2f", "#718161", "#a9bf9f", "#90c079"),
            *("#62904b", "#82d67a", "#73ad6c", "#769972", "#85af8a", "#40a656", "#5ec183", "#189865"),
            *("#83d1b0", "#45aa85", "#4b8876", "#6b9891", "#049588", "#8bbab7", "#56b4ae", "#3e9dab"),
            *("#428690", "#74cde1", "#178db3", "#57b5e2", "#6ea3c0", "#329fdb", "#96b4ce", "#5caefe"),
            *("#1f7dcf", "#5195ef", "#677c98", "#9ebef8", "#83a2db", "#698dd1", "#7d8fad", "#5679bb"),
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

N_SITE_COLORS = 96
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
