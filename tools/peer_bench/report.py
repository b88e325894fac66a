"""The page of a bench: a table for every setting, its pictures, and how it came about. Pure.

`result` is the JSON object that tools/bench prints; run.py makes it.
"""
from tools.peer_bench import bar_chart
from tools.peer_bench import figures
from tools.peer_bench import machine

TITLES = {"tcp": "over TCP", "same_host": "on the same host"}
NO_VALUE = "–"


def size(count):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return "%g %s" % (round(count / (1 << shift), 2), unit)
    return "%d B" % count


def text(value, form="%.3g"):
    return NO_VALUE if value is None else form % value


def settings_of(result):
    """The settings of the rows, in their order."""
    seen = []
    for row in result["rows"]:
        setting = figures.Setting(row["readers"], row["congestion"])
        if setting not in seen:
            seen.append(setting)
    return seen


def rows_of(result, setting):
    return [row for row in result["rows"] if (row["readers"], row["congestion"]) == (setting.readers, setting.congestion)]


def is_ours(row):
    return row["peer"].startswith(figures.OURS)


def moved_less(row, wanted_bytes):
    """A version has whole tensors, so a few bytes less are what was asked for."""
    return row["bytes"] < 0.9 * wanted_bytes


def cells(row, wanted_bytes):
    """The cells of one row of a table. A contender that moved other bytes than were asked for says so."""
    name = "**%s**" % row["title"] if is_ours(row) else row["title"]
    if not row["rounds"]:
        return [name, row["version"], NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE,
                "failed: " + (row["failures"] or ["it was not run"])[0]]
    notes = [] if row["verified"] else ["bytes are not compared"]
    if moved_less(row, wanted_bytes):
        notes.append("with %s" % size(row["bytes"]))
    if row["failures"]:
        notes.append("%d runs failed: %s" % (len(row["failures"]), row["failures"][0]))
    spread = "%s – %s" % (text(row["seconds_min"]), text(row["seconds_max"]))
    ratio = NO_VALUE
    if row["ratio"] is not None:
        ratio = "%.2f (%.2f – %.2f)" % (row["ratio"], row["ratio_min"], row["ratio_max"])
    cpu = "%s + %s" % (text(row["holder_cpu_seconds_per_gb"]), text(row["readers_cpu_seconds_per_gb"]))
    return [name, row["version"], text(row["last_reader_seconds"]), spread, text(row["gbytes_per_s"]), ratio,
            cpu if row["cpu_seconds_per_gb"] is not None else NO_VALUE, "; ".join(notes)]


HEADS = ["", "version", "last reader, s", "spread, s", "GB/s a reader", "ours is faster by", "processor s a GB (holder + readers)",
         ""]


def table(heads, lines):
    def line(values):
        return "| " + " | ".join(str(value).replace("|", "/").replace("\n", " ") for value in values) + " |"

    return "\n".join([line(heads), "|" + "---|" * len(heads)] + [line(values) for values in lines])


def picture_name(result, congestion):
    return "%s%s.svg" % (result["name"], "-" + congestion if congestion else "")


def bar_of(row, wanted_bytes):
    """The bar of a row. One that moved less is drawn as long as all bytes take at its rate, and says so."""
    if not moved_less(row, wanted_bytes):
        label, factor = row["title"], 1.0
    else:
        label, factor = "%s, as %.0f MiB took" % (row["title"], row["bytes"] / (1 << 20)), wanted_bytes / row["bytes"]
    return bar_chart.Bar(label, row["last_reader_seconds"] * factor, row["seconds_min"] * factor,
                         row["seconds_max"] * factor, is_ours(row))


def chart(result, congestion):
    """The picture of all settings with this congestion control."""
    groups = []
    for setting in settings_of(result):
        if setting.congestion == congestion:
            bars = [bar_of(row, result["bytes"]) for row in rows_of(result, setting) if row["rounds"]]
            groups.append(bar_chart.Group("1 reader" if setting.readers == 1 else "%d readers" % setting.readers, bars))
    title = "%s %s%s: seconds until the last reader has it" % (
        size(result["bytes"]), TITLES[result["transport"]], " (%s)" % congestion if congestion else "")
    return bar_chart.Chart(title, "s", groups)


def congestions(result):
    return list(dict.fromkeys(row["congestion"] for row in result["rows"]))


def pictures(result):
    """{file name: SVG}"""
    return {picture_name(result, congestion): chart(result, congestion).svg() for congestion in congestions(result)}


def notes(result):
    lines = list(dict.fromkeys("- %s: %s" % (row["title"], row["note"]) for row in result["rows"] if row["note"]))
    lines += ["- %s is not in the table: %s" % (missing["title"], missing["reason"]) for missing in result["missing"]]
    if result["network"]:
        lines.append("- The bench had %s." % result["network"])
    return "\n".join(lines)


def markdown(result):
    """The whole page."""
    parts = ["# %s %s, beside others" % (size(result["bytes"]), TITLES[result["transport"]]),
             "Written by `%s`; [what is measured and how to read it](README.md), [all figures](%s.json)." %
             (result["command"], result["name"]),
             "Machine: %s.  \nMedian of %d rounds, all contenders in turn; %d streams a reader." %
             (machine.sentence(result["machine"]), result["rounds"], result["streams"])]
    parts += ["![seconds until the last reader has it](%s)" % picture_name(result, congestion)
              for congestion in congestions(result)]
    for setting in settings_of(result):
        parts += ["## %s" % setting.title(), table(HEADS, [cells(row, result["bytes"]) for row in rows_of(result, setting)])]
    parts += ["## How each was set up", notes(result)]
    return "\n\n".join(part for part in parts if part) + "\n"
