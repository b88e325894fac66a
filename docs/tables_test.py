"""Every row of a table in the documents stands below a header, and has as many cells as that."""
import unittest

from docs import pages
from docs import tables


class TablesTest(unittest.TestCase):

    def test_no_row_lacks_its_header(self):
        self.assertEqual([], ["%s, %s" % (pages.name_of(page), row) for page in pages.all_pages()
                              for row in tables.rows_without_header(page.read_text(encoding="utf-8"))])

    def test_rows_are_as_wide_as_their_header(self):
        for page in pages.all_pages():
            with self.subTest(pages.name_of(page)):
                tables.all_tables(page.read_text(encoding="utf-8"))

    def test_rows_above_a_header_and_behind_a_gap_are_found(self):
        page = "# A\n\n| early |\n| word |\n|---|\n| a |\n\n| late |\n"
        self.assertEqual(tables.rows_without_header(page), ["line 3: | early |", "line 8: | late |"])

    def test_tables_and_what_is_shown_as_code_lack_nothing(self):
        page = "| word |\n| :-- |\n| a |\n| b |\n\n```\n| no row |\n```\n"
        self.assertEqual(tables.rows_without_header(page), [])
        self.assertEqual(tables.all_tables(page), [(("word",), [["a"], ["b"]])])


if __name__ == "__main__":
    unittest.main(verbosity=2)
