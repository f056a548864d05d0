"""The capacity curve: tokens that a replica holds, by tp, and where copies of heads begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpspec.pictures.drawing import Drawing, box, line, width_of, words
from tpspec.pictures.elements import Markup, element, joined, number
from tpspec.pictures.scales import Scale, doubling, linear, ticks
from tpspec.pictures.words import plural
from tpspec.planning.report import Capacity, SizePlan
from tpspec.quantities import many

HEIGHT = 340.0
TOP, BOTTOM, LEFT, RIGHT = 66.0, 52.0, 46.0, 30.0
HEADROOM = 1.2
"""The y axis goes that much higher than the highest point, so that labels have room."""
NAMES = {"exact": "exact weights", "simple": "weights ÷ tp"}


def capacity_curve(sizes: Sequence[SizePlan], width: float) -> Drawing:
    """Tokens held, under the exact budget of weights and the simple one, by tp."""
    sizes = sorted(sizes, key=lambda size: size.tp)
    highest = max(max(size.exact.tokens, size.simple.tokens) for size in sizes) or 1
    x = doubling([size.tp for size in sizes], LEFT + 24, width - RIGHT)
    y = linear(highest * HEADROOM, HEIGHT - BOTTOM, TOP)
    drawn = [
        words(0, 14, "Tokens held by one replica", "strong"),
        *_key(),
        *_copies(sizes, x, width),
        *_axes(sizes, highest, x, y, width),
        _path([(x(size.tp), y(size.exact.tokens)) for size in sizes], "exact"),
        _path([(x(size.tp), y(size.simple.tokens)) for size in sizes], "simple"),
        *_points(sizes, x, y),
    ]
    said = ", ".join(f"tp {size.tp}: {_tokens(size.exact)}" for size in sizes)
    return Drawing(width, HEIGHT, f"Tokens held by one replica. {said}", joined(drawn))


def copied_beyond(sizes: Sequence[SizePlan]) -> dict[int, list[str]]:
    """The tp beyond which axes are copied, as far as the sizes show it, and which axes."""
    found: dict[int, list[str]] = {}
    for axis in dict.fromkeys(name for size in sizes for name in size.copies):
        first = min(
            (size for size in sizes if size.copies.get(axis, 1) > 1), key=lambda s: s.tp, default=None
        )
        if first:
            found.setdefault(first.tp // first.copies[axis], []).append(axis)
    return dict(sorted(found.items()))


def _tokens(capacity: Capacity) -> str:
    return many(capacity.tokens) if capacity.fits else "no room"


def _key() -> Iterator[Markup]:
    x = 0.0
    for name, meaning in NAMES.items():
        yield line(x, 33, x + 22, 33, name)
        yield words(x + 28, 37, meaning, "quiet")
        x += 28 + width_of(meaning, 12) + 14


def _axes(sizes: Sequence[SizePlan], highest: float, x: Scale, y: Scale, width: float) -> Iterator[Markup]:
    for value in ticks(highest * HEADROOM, 5):
        yield line(LEFT, y(value), width, y(value), "axis" if value == 0 else "grid")
        yield words(LEFT - 8, y(value) + 4, many(value), "quiet small end")
    taken = 0.0
    for size in sizes:
        half = width_of(str(size.tp), 11) / 2
        if x(size.tp) - half > taken:
            yield words(x(size.tp), HEIGHT - BOTTOM + 20, str(size.tp), "small middle")
            taken = x(size.tp) + half
    yield words(
        (LEFT + width) / 2,
        HEIGHT - BOTTOM + 42,
        "tensor parallel size, devices of one replica",
        "quiet small middle",
    )


def _copies(sizes: Sequence[SizePlan], x: Scale, width: float) -> Iterator[Markup]:
    """A ground under the sizes at which heads are copied, and a line where that begins."""
    smallest = sizes[0].tp
    for level, (units, axes) in enumerate(copied_beyond(sizes).items()):
        begin = x(max(units, smallest))
        said = f"beyond tp {units}: {', '.join(plural(axis) for axis in axes)} copied"
        yield box(begin, TOP, width - begin, HEIGHT - BOTTOM - TOP, class_="ground")
        yield line(begin, TOP, begin, HEIGHT - BOTTOM, "mark")
        before = begin + width_of(said, 11) > width
        yield words(
            width if before else begin + 6, TOP - 6 - 14 * level, said, "small end" if before else "small"
        )


def _path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    return element("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)


def _points(sizes: Sequence[SizePlan], x: Scale, y: Scale) -> Iterator[Markup]:
    """Points and their labels: left of a point, for the curve rises to the right; else above it, or none."""
    taken = LEFT
    for size in sizes:
        across, up, label = x(size.tp), y(size.exact.tokens), _tokens(size.exact)
        said = f"tp {size.tp}: {label} tokens; {_tokens(size.simple)} if weights were divided by tp"
        kind = "point" if size.exact.fits else "point none"
        yield element("circle", element("title", said), cx=across, cy=up, r=4.5, class_=kind)
        wide = width_of(label, 12)
        if across - 6 - wide > taken:
            yield words(across - 6, up - 9, label, "strong end halo")
            taken = across - 6
        elif (start := max(across - wide / 2, taken + 4)) < across:
            yield words(start, up - 12, label, "strong halo")
            taken = start + wide
