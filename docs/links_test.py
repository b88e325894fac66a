"""Links between the documents of the checkout lead somewhere, to the heading that they name."""
import re
import unittest

from docs import pages

SHOWN_AS_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def without_code(text):
    return SHOWN_AS_CODE.sub("", text)


def anchors_of(text):
    """What GitHub makes of the headings: '## From C++' -> 'from-c', a second one of these 'from-c-1'."""
    anchors = []
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE),
                              re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        same = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", known) is not None for known in anchors)
        anchors.append("%s-%d" % (anchor, same) if anchor in anchors else anchor)
    return anchors


def broken_links(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            yield "%s: there is no %s" % (pages.name_of(page), target)
        elif anchor and anchor not in anchors_of(file.read_text(encoding="utf-8")):
            yield "%s: %s has no such heading" % (pages.name_of(page), target)


class LinksTest(unittest.TestCase):

    def test_links_lead_somewhere(self):
        self.assertEqual([], [broken for page in pages.all_pages() for broken in broken_links(page)])

    def test_headings_become_anchors(self):
        text = "# A `b` c\n```sh\n# no heading\n```\n## From C++\n## From C\n## Where it does not work, and what to do\n"
        self.assertEqual(anchors_of(text), ["a-b-c", "from-c", "from-c-1", "where-it-does-not-work-and-what-to-do"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
