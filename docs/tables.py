"""The tables of a Markdown page."""
import re


def cells_of(line):
    """'| a | `b|c` |' -> ['a', '`b|c`']: a bar within a code span divides no cells."""
    line = line.strip()
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    cells = re.findall(r"((?:`[^`]*`|[^|`])*)\|", line[1:])
    return [cell.strip() for cell in cells]


def all_tables(page):
    """(header, rows) of every table, in order."""
    lines = page.split("\n")
    found = []
    for at in range(len(lines) - 1):
        header = cells_of(lines[at])
        if header is None or not re.fullmatch(r"\|(:?-+:?\|)+", lines[at + 1].replace(" ", "")):
            continue
        rows = []
        for line in lines[at + 2:]:
            row = cells_of(line)
            if row is None:
                break
            if len(row) != len(header):
                raise AssertionError("%d cells under %d headings: %s" % (len(row), len(header), line))
            rows.append(row)
        found.append((tuple(header), rows))
    return found


def with_header(page, header):
    """The rows of every table with that header; at least one."""
    found = [rows for its_header, rows in all_tables(page) if its_header == tuple(header)]
    if not found:
        raise AssertionError("the page has no table | %s |" % " | ".join(header))
    return found


def code_spans(cell):
    return re.findall(r"`([^`]+)`", cell)
