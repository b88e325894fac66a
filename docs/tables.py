"""The tables of a Markdown page."""
import re


def cells_of(line):
    """'| a | `b|c` |' -> ['a', '`b|c`']: a bar within a code span divides no cells."""
    line = line.strip()
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    cells = re.findall(r"((?:`[^`]*`|[^|`])*)\|", line[1:])
    return [cell.strip() for cell in cells]


def is_rule(line):
    """The line below a header: '|---|:--|'."""
    return re.fullmatch(r"\|(:?-+:?\|)+", line.replace(" ", "")) is not None


def all_tables(page):
    """(header, rows) of every table, in order."""
    lines = page.split("\n")
    found = []
    for at in range(len(lines) - 1):
        header = cells_of(lines[at])
        if header is None or not is_rule(lines[at + 1]):
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


def rows_without_header(page):
    """The first line of each run of rows that no header stands above, which is shown as text with bars in it."""
    lines = re.sub(r"^```.*?^```$", lambda code: "\n" * code.group().count("\n"), page,
                   flags=re.DOTALL | re.MULTILINE).split("\n")
    return ["line %d: %s" % (at + 1, line) for at, line in enumerate(lines)
            if cells_of(line) is not None and (at == 0 or cells_of(lines[at - 1]) is None)
            and not (at + 1 < len(lines) and is_rule(lines[at + 1]))]


def with_header(page, header):
    """The rows of every table with that header; at least one."""
    found = [rows for its_header, rows in all_tables(page) if its_header == tuple(header)]
    if not found:
        raise AssertionError("the page has no table | %s |" % " | ".join(header))
    return found


def code_spans(cell):
    return re.findall(r"`([^`]+)`", cell)
