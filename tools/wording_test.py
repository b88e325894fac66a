"""Which names and comments tools/wording.py finds."""
import unittest

from tools import wording


def found(text):
    return [(line, old) for line, old, _ in wording.old_names(text)]


class OldNamesTest(unittest.TestCase):
    def test_names_in_all_their_forms(self):
        for name in ("LookAt", "look_at", "look_at_", "kLookAt", "OffloadFirst", "offload_first", "SeedPromises"):
            self.assertEqual(found("int %s = 1;" % name), [(1, name)])

    def test_words_anywhere_in_a_name(self):
        for name in ("kPaceWindow", "paces", "BeginReign", "server_mishaps", "from_earlier_reign"):
            self.assertEqual(found("\n  f(%s);" % name), [(2, name)])

    def test_other_names_that_contain_the_letters(self):
        for name in ("namespace", "ForeignThreadScope", "replace", "workspace_", "LookAtAll", "takes_away"):
            self.assertEqual(found(name), [])

    def test_prose_is_free_and_keys_are_not(self):
        self.assertEqual(found("// at its own pace\n/* reign */ int a;"), [])
        self.assertEqual(found("# at its own pace\nname = 1"), [])
        self.assertEqual(found('Say("the pace of a reign \\"pace\\"");'), [])
        self.assertEqual(found('json["reign"]'), [(1, "reign")])
        self.assertEqual(found('a("//", pace)'), [(1, "pace")])

    def test_names_of_tests_are_sentences(self):
        self.assertEqual(found("TEST_F(PaceTest, ReadersAreTold) {\n  Tell();"), [(1, "PaceTest"), (2, "Tell")])

    def test_the_new_name_is_told(self):
        self.assertEqual(list(wording.old_names("HasHope(shard)")), [(1, "HasHope", "IsCompletable")])


class OpeningsTest(unittest.TestCase):
    def found(self, text):
        return [line for line, _ in wording.openings(text)]

    def test_a_comment_without_a_subject(self):
        for word in ("Of", "That", "What", "Whether", "Who", "Whose", "With"):
            self.assertEqual(self.found("int a;\n  // %s it is.\nint b;" % word), [2])

    def test_sentences_are_left_alone(self):
        self.assertEqual(self.found("// Whatever comes.\n\n// Offers one.\n\n// The part of it.\n//\n// What follows."), [])

    def test_only_the_first_line_of_a_comment_counts(self):
        self.assertEqual(self.found("// The sum\n// of it.\n// What else.\nint a;  // Of this line.\n"), [])


if __name__ == "__main__":
    unittest.main()
