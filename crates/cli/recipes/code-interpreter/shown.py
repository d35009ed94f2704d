"""What is shown of a value beside its text and its picture, for E2B's code interpreter SDKs.

An extension of IPython. A figure of matplotlib is told as the data that it was drawn from, and a table of pandas as its columns.
"""

import datetime
import math
import re

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


class ChartFormatter(BaseFormatter):
    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def pop(self, typ, default=None):
        """The backend of matplotlib takes figures away from all formatters when it sets up its own."""
        return default


class DataFormatter(BaseFormatter):
    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


def load_ipython_extension(shell):
    charts, data = ChartFormatter(parent=shell), DataFormatter(parent=shell)
    charts.for_type_by_name("matplotlib.figure", "Figure", unless_it_fails(chart_of_figure))
    for module in ("pandas", "pandas.core.frame"):
        data.for_type_by_name(module, "DataFrame", unless_it_fails(columns))
    formatters = shell.display_formatter.formatters
    formatters["e2b/chart"], formatters["e2b/data"] = charts, data


def unless_it_fails(told):
    """A figure can hold anything: what cannot be told is left out, and its picture is shown all the same."""

    def tried(value):
        try:
            return told(value) or None
        except Exception:
            return None

    return tried


def plain(value):
    """As JSON has it."""
    if hasattr(value, "item") and not hasattr(value, "isoformat"):
        value = value.item()
    if isinstance(value, (datetime.date, datetime.datetime)) or hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def columns(table):
    return {str(name): [plain(value) for value in table[name].tolist()] for name in table.columns}


# ---- charts ----


def chart_of_figure(figure):
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        # Artists that were added by hand are no data, but something was drawn.
        axes = [ax for ax in axes if ax.artists or ax.patches]
        if not axes:
            return None
    if len(axes) == 1:
        return chart_of(axes[0])
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": [chart_of(ax) for ax in axes]}


def chart_of(ax):
    kind = kind_of(ax)
    chart = {"type": kind, "title": ax.get_title() or None, "elements": []}
    if kind in ("line", "scatter"):
        chart |= labels(ax) | scales(ax)
        chart["elements"] = lines(ax) if kind == "line" else clouds(ax)
    elif kind == "bar":
        chart |= labels(ax)
        chart["elements"] = bars(ax, chart)
    elif kind == "box_and_whisker":
        chart |= labels(ax)
        chart["elements"] = boxes(ax, chart)
    elif kind == "pie":
        chart["elements"] = [
            {"label": wedge.get_label(), "angle": near(abs(wedge.theta2 - wedge.theta1)), "radius": near(wedge.r)}
            for wedge in ax.patches
        ]
    return chart


def kind_of(ax):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    drawn = [artist for part in (ax.lines, ax.patches, ax.collections, ax.artists) for artist in part]
    straight = [artist for artist in drawn if isinstance(artist, Line2D) and is_rule(artist)]
    rest = [artist for artist in drawn if artist not in straight]

    def all_are(kinds, artists):
        return bool(artists) and all(isinstance(artist, kinds) for artist in artists)

    if all_are(Line2D, drawn):
        return "line"
    if any(isinstance(artist, PathPatch) for artist in drawn) and all_are((PathPatch, Line2D), drawn):
        return "box_and_whisker"
    if all_are(PathCollection, rest):
        return "scatter"
    if all_are(Wedge, rest):
        return "pie"
    if all_are(Rectangle, rest):
        return "bar"
    return "unknown"


def is_rule(line):
    """Straight across or straight up: a line of a grid, and no data."""
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == len(ys) == 2 and (xs[0] == xs[1] or ys[0] == ys[1])


def labels(ax):
    told = {}
    for side, label in (("x", ax.get_xlabel()), ("y", ax.get_ylabel())):
        unit = UNIT.search(label or "")
        told[f"{side}_label"] = label or None
        told[f"{side}_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return told


def scales(ax):
    from matplotlib import dates
    from matplotlib.category import StrCategoryConverter

    told = {}
    for side, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        if "Date" in type(converter).__name__:
            scale, ticks = "datetime", [dates.num2date(tick).isoformat() for tick in ticks]
        elif isinstance(converter, StrCategoryConverter):
            scale = "categorical"
        else:
            scale = axis.get_scale()
        told[f"{side}_scale"], told[f"{side}_ticks"] = scale, ticks
        told[f"{side}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
    return told


def point(x, y):
    return [plain(x), plain(y)]


def lines(ax):
    return [
        {"label": named(line, "_child", "Line"), "points": [point(x, y) for x, y in zip(*line.get_data(orig=True))]}
        for line in ax.get_lines()
        if not is_rule(line)
    ]


def clouds(ax):
    return [
        {"label": cloud.get_label(), "points": [point(float(x), float(y)) for x, y in cloud.get_offsets()]}
        for cloud in ax.collections
    ]


def named(artist, prefix, word):
    label = str(artist.get_label())
    return f"{word} {label.removeprefix(prefix)}" if label.startswith(prefix) else label


def swap(chart):
    """Of one that lies on its side, what grows is still called y."""
    for part in ("label", "unit"):
        chart[f"x_{part}"], chart[f"y_{part}"] = chart[f"y_{part}"], chart[f"x_{part}"]


def bars(ax, chart):
    told, lies = [], False
    for container in ax.containers:
        group = named(container, "_container", "Group")
        if getattr(container, "orientation", None) == "horizontal":
            lies, ticks, sizes = True, ax.get_yticklabels(), [bar.get_width() for bar in container]
        else:
            ticks, sizes = ax.get_xticklabels(), [bar.get_height() for bar in container]
        texts = [label.get_text() for label in ticks]
        told += [{"label": label, "group": group, "value": plain(size)} for label, size in zip(texts, sizes)]
    if lies:
        swap(chart)
    return told


def near(number):
    """Without what rounding left behind."""
    return float(f"{float(number):.9g}")


def boxes(ax, chart):
    """A box is a patch; whiskers and medians are lines of two points, and outliers points."""
    outlines = [patch.get_path().vertices for patch in ax.patches]
    heights = {near(max(box[:, 1]) - min(box[:, 1])) for box in outlines}
    lies = len(outlines) > 1 and len(heights) == 1
    across, along = (1, 0) if lies else (0, 1)
    ticks = [label.get_text() for label in (ax.get_yticklabels() if lies else ax.get_xticklabels())]
    if lies:
        swap(chart)
    told = []
    for number, box in enumerate(outlines):
        sides = [near(edge(box[:, across])) for edge in (min, max)]
        low, high = (near(edge(box[:, along])) for edge in (min, max))
        one = {
            "label": ticks[number] if number < len(ticks) else str(number + 1),
            "min": low, "first_quartile": low, "median": low, "third_quartile": high, "max": high, "outliers": [],
        }
        for line in ax.lines:
            data = [[near(value) for value in side] for side in line.get_data()]
            places, values = data[across], data[along]
            if not places or not all(sides[0] <= place <= sides[1] for place in places):
                continue
            if len(set(places)) == 1 and len(values) == 2 and values[0] != values[1]:  # a whisker
                one["min"], one["max"] = min([one["min"], *values]), max([one["max"], *values])
            elif len(values) == 2 and places[0] != places[1] and low <= values[0] == values[1] <= high:
                if [min(places), max(places)] == sides:
                    one["median"] = values[0]
            elif line.get_linestyle() == "None":
                one["outliers"] += values
        told.append(one)
    return told
