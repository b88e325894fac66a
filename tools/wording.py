"""The wording of sources: names that were given up for the field's own words, and comments without a subject.

  for line, old, new in old_names(text): ...
  for line, comment in openings(text): ...

A comment is a sentence with a subject: one that opens with a word like "Whether" or "Of" is a fragment, which has to be
read twice. How far that holds can be told by its first word alone, so that is what is looked at, in comments that have
lines of their own.

An identifier is an old name when its words are those of the name ("kLookAt", "look_at_"), or when one of its words has
been given up altogether ("kPaceWindow"). Comments and texts for people are left alone; a string that is one identifier,
like a key of a JSON object, is not.
"""
import re

# Whole names.
NAMES = {
    "asks at": "deferred_until", "comes last": "deprioritized", "copies alone": "offloading_offline", "count anew": "BumpGroupGeneration",
    "demo truth": "ExpectedChecksums", "handed on": "Consumed", "happening": "Event", "has hope": "IsCompletable",
    "keeps nothing": "streaming", "let go": "detach", "look at": "recheck_at", "may yet feed": "MayBecomeSource",
    "offload first": "must_offload", "process stage": "ProcessPoller", "raise curtain": "SetUp", "rank cast": "LocalCluster",
    "real cast": "ScenarioCluster", "seed copy": "site_copy", "seed promise": "SiteCopyReservation",
    "seed reservation": "SiteCopyReservation", "seed wanted": "SiteCopyWanted", "soft switch": "graceful_switch", "take away": "DropReplicaContent",
}
# Words, wherever they stand in a name.
WORDS = {
    "mishap": "fault", "pace": "throughput", "reign": "epoch", "tell": "report or send", "telling": "reporting", "told": "reported or sent",
    "untold": "unreported or unsent",
}
# A test's name is a sentence, and so is free like prose.
TEST_NAME = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*\w+,\s*(\w+)")

TOKEN = re.compile(r"""
    //[^\n]* | /\*.*?\*/ | \#[ ][^\n]*              # comments, those of Starlark too
  | "(?P<key>[A-Za-z_]\w*)" | "(?:\\.|[^"\\\n])*"   # strings
  | (?P<identifier>[A-Za-z_]\w*)
""", re.X | re.S)


def words_of(identifier):
    """'kPaceWindow', 'pace_window_' -> ['pace', 'window']."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)
    words = [w.lower() for w in words]
    return words[1:] if words[:1] == ["k"] else words


def singular(word):
    return word[:-1] if word.endswith("s") else word


def new_name(identifier):
    """What it is called now, or None."""
    words = words_of(identifier)
    if not words:
        return None
    name = NAMES.get(" ".join(words[:-1] + [singular(words[-1])])) or NAMES.get(" ".join(words))
    return name or next((WORDS[singular(w)] for w in words if singular(w) in WORDS), None)


def old_names(text):
    """(line, old name, new name) of each old name in C++, protobuf or Starlark."""
    sentences = {match.start(1) for match in TEST_NAME.finditer(text)}
    for match in TOKEN.finditer(text):
        if match.start() in sentences:
            continue
        old = match.group("key") or match.group("identifier")
        new = old and new_name(old)
        if new:
            yield text.count("\n", 0, match.start()) + 1, old, new


OPENING = re.compile(r"// ?(?:Of|That|What|Whether|Who|Whose|With)\b")


def openings(text):
    """(line, first line of the comment) of each comment of C++ that opens without a subject."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        begins = stripped.startswith("//") and not inside
        inside = stripped.startswith("//")
        if begins and OPENING.match(stripped):
            yield number, stripped
