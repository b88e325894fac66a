"""A bar chart as SVG: groups of horizontal bars, each bar with its spread, each group with a scale of its own. Pure.

  chart = Chart(title="1 GiB over TCP", unit="s", groups=[
      Group("1 reader", [Bar("TensorHub", 0.13, 0.12, 0.15, is_ours=True), Bar("UCX", 0.21, 0.20, 0.42)])])
  pathlib.Path("tcp.svg").write_text(chart.svg())
"""
import dataclasses
from xml.sax import saxutils

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 260, 100
BAR_HEIGHT, BAR_STEP, GROUP_STEP, TITLE_HEIGHT, MARGIN = 14, 22, 30, 34, 12
OURS, OTHERS, SPREAD, INK, GROUND = "#1f6f8b", "#b9c3ca", "#4a4f54", "#222222", "#ffffff"
# A bar this many times as long as the longest of ours is cut, and says so, so that the others can be told apart.
LONGEST_OVER_OURS = 8


@dataclasses.dataclass(frozen=True)
class Bar:
    """`low` and `high` are the ends of the spread around `value`."""
    label: str
    value: float
    low: float
    high: float
    is_ours: bool = False


@dataclasses.dataclass(frozen=True)
class Group:
    title: str
    bars: list

    def limit(self):
        """The value at the right end of its scale."""
        most = max((bar.high for bar in self.bars), default=0)
        ours = max((bar.high for bar in self.bars if bar.is_ours), default=0)
        return (min(most, LONGEST_OVER_OURS * ours) if ours > 0 else most) or 1.0


def element(name, text="", **attributes):
    """An XML element; `_` in an attribute's name stands for `-`."""
    written = "".join(" %s=%s" % (key.replace("_", "-"), saxutils.quoteattr(str(value))) for key, value in attributes.items())
    return "<%s%s>%s</%s>" % (name, written, saxutils.escape(text), name) if text else "<%s%s/>" % (name, written)


def number(value):
    """Three digits that count, as a reader of the table sees them."""
    return "%.3g" % value if value < 1000 else "%.0f" % value


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    unit: str
    groups: list

    def height(self):
        return (TITLE_HEIGHT + sum(GROUP_STEP + BAR_STEP * len(group.bars) for group in self.groups) + 2 * MARGIN)

    def svg(self):
        parts = [element("rect", width=WIDTH, height=self.height(), fill=GROUND),
                 element("text", self.title, x=MARGIN, y=MARGIN + 14, font_size=16, font_weight="bold", fill=INK)]
        y = MARGIN + TITLE_HEIGHT
        for group in self.groups:
            parts.append(element("text", group.title, x=MARGIN, y=y + 12, font_size=13, font_weight="bold", fill=INK))
            y += GROUP_STEP - 8
            for bar in group.bars:
                parts += drawn(bar, y, group.limit(), self.unit)
                y += BAR_STEP
            y += 8
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
                'font-family="sans-serif" role="img">\n%s\n%s\n</svg>\n' %
                (WIDTH, self.height(), WIDTH, self.height(), element("title", self.title), "\n".join(parts)))


def drawn(bar, y, limit, unit):
    """The elements of one bar whose upper edge is at `y`; `limit` is at the right end of the scale."""
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / limit
    cut = bar.value > limit
    end = LABEL_WIDTH + min(bar.value, limit) * scale
    middle = y + BAR_HEIGHT / 2
    low, high = (LABEL_WIDTH + min(value, limit) * scale for value in (bar.low, bar.high))
    parts = [element("text", bar.label, x=LABEL_WIDTH - 8, y=y + 11, font_size=12, text_anchor="end", fill=INK,
                     font_weight="bold" if bar.is_ours else "normal"),
             element("rect", x=LABEL_WIDTH, y=y, width=round(end - LABEL_WIDTH, 1), height=BAR_HEIGHT,
                     fill=OURS if bar.is_ours else OTHERS)]
    if not cut:
        parts.append(element("line", x1=round(low, 1), x2=round(high, 1), y1=middle, y2=middle, stroke=SPREAD,
                             stroke_width=1.5))
    value = "%s %s%s" % (number(bar.value), unit, ", cut" if cut else "")
    parts.append(element("text", value, x=round(max(end, high), 1) + 6, y=y + 11, font_size=12, fill=INK))
    return parts
