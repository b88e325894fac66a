"""The documents of the checkout."""
import pathlib

# The checkout itself, which a test's copy of this file links to: every page counts, declared or not.
ROOT = pathlib.Path(__file__).resolve().parent.parent
PATTERNS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "examples/*.md", "th/**/README.md",
            "tools/**/README.md", "testing/**/README.md"]


def all_pages():
    pages = sorted({page for pattern in PATTERNS for page in ROOT.glob(pattern) if page.is_file()})
    if len(pages) <= 40:
        raise AssertionError("the checkout was not found: %d pages below %s" % (len(pages), ROOT))
    return pages


def name_of(page):
    return str(page.relative_to(ROOT))
