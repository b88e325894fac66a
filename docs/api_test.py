"""The API's page lists the calls, states, codes and default times of the headers, all of them and no others."""
import argparse
import pathlib
import re
import unittest

from docs import tables

CLASSES = ["Client", "WeightBuffer", "AttachedVersion", "Controller"]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True)
    parser.add_argument("--c-header", required=True)
    parser.add_argument("--states", required=True, help="the header that has the states of a buffer")
    parser.add_argument("headers", nargs="+", help="those that may declare the classes and options")
    return parser.parse_args()


OPTIONS = parse_arguments()


def text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def without_comments(code):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.DOTALL)


def body_of(kind, name):
    """What stands between the braces of `class name` or `struct name`, in whichever header has it."""
    bodies = []
    for header in OPTIONS.headers:
        code = without_comments(text(header))
        for found in re.finditer(r"\b%s %s\b[^;{]*\{" % (kind, name), code):
            depth, at = 1, found.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(code[at], 0)
                at += 1
            bodies.append(code[found.end():at - 1])
    if len(bodies) != 1:
        raise AssertionError("%d headers define %s %s" % (len(bodies), kind, name))
    return bodies[0]


def without(opening, closing, code):
    """The code with everything between such brackets left out, also the brackets within."""
    kept, depth = [], 0
    for character in code:
        depth -= character == closing
        if depth == 0:
            kept.append(character)
        depth += character == opening
    return "".join(kept)


def methods_of(name):
    public = re.split(r"\b(?:private|protected):", body_of("class", name))[0]
    found = set()
    for declaration in re.split(r"[;{}]|\bpublic:", without("{", "}", without("(", ")", public))):
        method = re.search(r"([~\w]+)\s*\(", declaration)
        special = method and (method.group(1).lstrip("~") == name or "operator" in declaration)
        if method and not special and not re.match(r"\s*(friend|using|struct|enum)\b", declaration):
            found.add("%s::%s" % (name, method.group(1)))
    return found


def seconds(expression):
    """'absl::Minutes(10)' -> 600."""
    if expression == "kDefaultOffloadTimeout":
        return 60  # test_the_one_named_time_is_what_it_says looks at that
    number = re.fullmatch(r"absl::(Seconds|Minutes)\((\d+)\)", expression)
    if not number:
        raise AssertionError("what time is %s?" % expression)
    return int(number.group(2)) * {"Seconds": 1, "Minutes": 60}[number.group(1)]


# Helpers, of which the page says that they wait for nobody.
AT_ONCE_AS_A_KIND = {"th_abi_version", "th_last_error", "th_last_error_fields", "th_status_name"}

# The options of C++ that a caller gives, and where C has them.
STRUCTS = {"ClientOptions": "th_join_options", "RegisterOptions": "th_register_options",
           "PublishOptions": "th_publish_options", "UnpublishOptions": "th_unpublish_options",
           "UpdateOptions": "th_update_options", "StageOptions": "th_stage_options",
           "ApplyOptions": "th_apply_options", "ReceiveOptions": "th_receive_options",
           "AttachOptions": "th_attach_options"}
PUBLIC_HEADERS = ("client.h", "client_options.h", "verb_options.h", "weight_buffer.h", "controller.h", "receive.h", "attach.h")

# Options that have another name in C. None: C needs none, for the reason beside it.
OTHER_NAMES = {
    ("", "on_retention"): "drop_retained",
    ("", "on_progress"): None,  # th_operation_progress
    ("", "after"): None,  # "now" is all that there is
    ("ClientOptions", "on_reader"): "keep_reader_reports",
    ("RegisterOptions", "checksums"): "no_checksums",
    ("PublishOptions", "component"): None,  # reserved: anything is UNIMPLEMENTED
    ("AttachOptions", "verify_bytes"): "verify",
}


def fields_of_cpp(name):
    body = without("{", "}", without("(", ")", body_of("struct", name)))
    return [re.search(r"(\w+)\s*(?:=.*)?$", statement.strip(), re.DOTALL).group(1)
            for statement in body.split(";") if statement.strip()]


def fields_of_c(header, name):
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), without_comments(header), re.DOTALL).group(1)
    return [re.search(r"(\w+)$", field.strip()).group(1) for field in body.split(";") if field.strip()]


class ApiTest(unittest.TestCase):
    page = text(OPTIONS.page)
    c_header = text(OPTIONS.c_header)

    def cells(self, header, column):
        return [row[column] for table in tables.with_header(self.page, header) for row in table]

    def spans(self, header, column, pattern):
        return [span for cell in self.cells(header, column) for span in tables.code_spans(cell)
                if re.fullmatch(pattern, span)]

    def test_lists_every_call_of_cpp(self):
        declared = set().union(*(methods_of(name) for name in CLASSES))
        self.assertGreater(len(declared), 40)
        listed = self.spans(("C++", "C", "does"), 0, "(%s)::.*" % "|".join(CLASSES))
        self.assertCountEqual(listed, declared)

    def exported(self):
        return set(re.findall(r"TH_EXPORT[^;]*?\b(th_\w+)\(", without_comments(self.c_header)))

    def test_lists_every_call_of_c(self):
        exported = self.exported()
        self.assertGreater(len(exported), 60)
        by_rule = {name for name in exported if name.endswith("_start")}
        self.assertEqual(set(self.spans(("C++", "C", "does"), 1, r"th_\w+")), exported - by_rule)

    def test_c_has_every_verb_of_cpp(self):
        for table in tables.with_header(self.page, ("C++", "C", "does")):
            for cpp, c, _ in table:
                if any(span.split("::")[0] in CLASSES for span in tables.code_spans(cpp)):
                    self.assertTrue([span for span in tables.code_spans(c) if span in self.exported()],
                                    "C has nothing for %s" % cpp)

    def test_every_call_of_c_that_waits_has_a_twin_that_does_not(self):
        sentence = re.search(r"These calls wait for nobody and have no `_start`: (.*?)\n\n", self.page, re.DOTALL)
        at_once = set(re.findall(r"`(th_\w+)`", sentence.group(1))) | AT_ONCE_AS_A_KIND
        self.assertEqual(at_once - self.exported(), set())
        calls = {name for name in self.exported() if not name.endswith(("_start", "_free"))
                 and not re.match(r"th_(operation|receive)_", name)}
        calls.add("th_controller_connect")
        starts = {name.removesuffix("_start") for name in self.exported() if name.endswith("_start")}
        self.assertEqual(starts, calls - at_once)

    def test_c_has_every_option_of_cpp(self):
        compared = 0
        for cpp, c in STRUCTS.items():
            there = fields_of_c(self.c_header, c)
            for field in fields_of_cpp(cpp):
                name = OTHER_NAMES.get((cpp, field), OTHER_NAMES.get(("", field), field))
                if name is None:
                    continue
                compared += 1
                self.assertIn(name, there, "%s::%s has no field of %s" % (cpp, field, c))
        self.assertGreater(compared, 50)

    def test_no_struct_of_options_is_left_out_in_c(self):
        public = [header for header in OPTIONS.headers if pathlib.Path(header).name in PUBLIC_HEADERS]
        self.assertEqual(len(public), len(PUBLIC_HEADERS))
        declared = {name for header in public for name in re.findall(r"^struct (\w+Options) \{", text(header), re.MULTILINE)}
        self.assertEqual(declared, set(STRUCTS))

    def test_lists_every_status(self):
        declared = re.findall(r"^  (TH_\w+) = \d+", self.c_header.split("enum th_status")[1].split("}")[0], re.MULTILINE)
        self.assertEqual(len(declared), 17)
        header = ("C++", "C", "what to do")
        self.assertEqual(self.spans(header, 1, ".*"), declared)
        in_cpp = ["k" + "".join(word.capitalize() for word in name.split("_")[1:]) for name in declared]
        self.assertEqual(self.spans(header, 0, ".*"), ["kOk"] + in_cpp[1:])

    def test_lists_every_state_of_a_buffer(self):
        declared = re.search(r"enum class BufferState[^{]*\{([^}]*)\}", text(OPTIONS.states)).group(1)
        names = [name.strip().removeprefix("k").lower() for name in declared.split(",")]
        header = ("state", "the caller may write it", "readers get", "calls that are allowed")
        self.assertEqual(self.cells(header, 0), names)

    def test_lists_every_default_time(self):
        header = ("C++", "C", "default")
        listed_cpp, listed_c = {}, {}
        for (table,) in [tables.with_header(self.page, header)]:
            for cpp, c, default in table:
                value = int(re.fullmatch(r"(\d+) s", default).group(1))
                listed_cpp[tables.code_spans(cpp)[0]] = value
                listed_c.update({name: value for name in tables.code_spans(c)})
        declared = {}
        for name in {key.split("::")[0] for key in listed_cpp} | {"RegisterOptions", "ClientOptions"}:
            for field, value in re.findall(r"absl::Duration (\w+) = ([^;]+);", body_of("struct", name)):
                declared["%s::%s" % (name, field)] = seconds(value)
        self.assertEqual(listed_cpp, declared)
        declared_c = {}
        for name, fields in re.findall(r"typedef struct (\w+) \{(.*?)^\}", self.c_header, re.DOTALL | re.MULTILINE):
            for field, value in re.findall(r"double (\w+);\s*/\*[^*]*?\b0: (\d+)", fields):
                declared_c["%s::%s" % (name, field)] = int(value)
        self.assertEqual(listed_c, declared_c)

    def test_no_options_are_left_out(self):
        with_times = {name for header in OPTIONS.headers
                      for name, body in re.findall(r"struct (\w+Options) \{(.*?)^\};", text(header), re.DOTALL | re.MULTILINE)
                      if re.search(r"absl::Duration \w+ = ", body)}
        self.assertGreater(len(with_times), 5)
        for name in with_times:
            self.assertIn("`%s::" % name, self.page)

    def test_the_one_named_time_is_what_it_says(self):
        for header in OPTIONS.headers:
            found = re.search(r"kDefaultOffloadTimeout = absl::Seconds\((\d+)\);", text(header))
            if found:
                return self.assertEqual(int(found.group(1)), seconds("kDefaultOffloadTimeout"))
        return self.fail("no header defines kDefaultOffloadTimeout")


if __name__ == "__main__":
    unittest.main(argv=["api_test"], verbosity=2)
