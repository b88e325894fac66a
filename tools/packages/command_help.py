"""Manual pages and shell completions, made from what programs answer to --help.

The programs' parser (CLI11) prints a description, `Usage:`, sections such as `Options:` and `Subcommands:`, whose entries are
indented by two and their continuations further, and a footer. Nothing is known here of any one program.
"""
import collections
import os
import re
import subprocess

Entry = collections.namedtuple("Entry", "names value text")  # an option: ["-h", "--help"], "TEXT"; a command: ["pull"], ""


class Command:
    """A program, or one of its commands, with those below it."""

    def __init__(self, path, text):
        self.path = path  # ["th", "bench", "server"]
        paragraphs = text.strip("\n").split("\n")
        self.description = paragraphs[0]
        self.usage = next(line[len("Usage: "):] for line in paragraphs if line.startswith("Usage: "))
        self.sections = {}
        self.footer = []
        section = None
        for line in paragraphs[paragraphs.index("Usage: " + self.usage) + 1:]:
            title = re.fullmatch(r"([A-Z][\w ]*):", line)
            if title:
                section = self.sections.setdefault(title.group(1), [])
            elif line.startswith("  ") and section is not None:
                self._add(section, line)
            elif line:
                section = None
                self.footer.append(line)
        self.commands = []

    @staticmethod
    def _add(section, line):
        found = re.fullmatch(r"  (\S.*?)(?:\s{2,}(.*))?", line)
        if not found:  # goes on with the entry before it
            last = section.pop()
            section.append(last._replace(text=(last.text + " " + line.strip()).strip()))
            return
        names, _, value = found.group(1).partition(" ")
        section.append(Entry(names.split(","), value, found.group(2) or ""))

    def options(self):
        return [entry for title, entries in self.sections.items() if title not in ("Subcommands", "Positionals")
                for entry in entries]

    def subcommands(self):
        return self.sections.get("Subcommands", [])

    def all(self):
        """This one and those below it, depth first."""
        yield self
        for command in self.commands:
            yield from command.all()


def ask(program, path=()):
    """The tree of commands of a program; `program` is its file, whose name is the command's."""
    answer = subprocess.run([str(program), *path, "--help"], capture_output=True, text=True, timeout=60, check=True,
                            env=dict(os.environ, TH_CONFIG=""))
    command = Command([program.name, *path], answer.stdout)
    for entry in command.subcommands():
        command.commands.append(ask(program, (*path, entry.names[0])))
    return command


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def manual_page(program, version):
    """roff for man(1): the program, then each of its commands."""
    name = program.path[0]
    lines = [".TH %s 1 \"\" \"TensorHub %s\"" % (name.upper(), version), ".SH NAME",
             "%s \\- %s" % (roff(name), roff(program.description))]
    for command in program.all():
        lines += [".SH SYNOPSIS" if command is program else ".SH %s" % roff(" ".join(command.path)).upper()]
        if command is not program:
            lines += [roff(command.description), ".PP"]
        lines += [".B %s" % roff(command.usage)]
        for title, entries in command.sections.items():
            lines += [".SS %s" % roff(title)]
            for entry in entries:
                lines += [".TP", ".B %s" % roff(", ".join(entry.names) + (" " + entry.value if entry.value else "")),
                          roff(entry.text)]
    if program.footer:
        lines += [".SH NOTES", *(roff(line) for line in program.footer)]
    return "\n".join(lines) + "\n"


def words_of(command):
    return [name for entry in command.subcommands() for name in entry.names] + [
        name for entry in command.options() for name in entry.names if name.startswith("--")]


def bash_completion(program):
    """For bash-completion's folder `completions`: commands and flags; files where a flag's value is asked for."""
    name = program.path[0]
    function = "_" + re.sub(r"\W", "_", name)
    cases = ["    '%s') words='%s' ;;" % (" ".join(command.path[1:]), " ".join(words_of(command))) for command in program.all()]
    paths = " ".join("'%s'" % " ".join(command.path[1:]) for command in program.all() if command is not program)
    return "\n".join([
        "# Completions of %s, made from its --help." % name,
        "%s() {" % function,
        "  local current=${COMP_WORDS[COMP_CWORD]} path='' word words known=(%s)" % paths,
        "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do",
        "    for each in \"${known[@]}\"; do",
        "      if [[ $each == \"${path:+$path }$word\" ]]; then path=$each; break; fi",
        "    done",
        "  done",
        "  case $path in",
        *cases,
        "  esac",
        "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")",
        "}",
        "complete -o default -F %s %s" % (function, name),
        ""])


def fish_completion(program):
    """For fish's folder `vendor_completions.d`."""
    name = program.path[0]

    def quoted(text):
        return "'%s'" % text.replace("\\", "\\\\").replace("'", "\\'")
    lines = ["# Completions of %s, made from its --help." % name]
    for command in program.all():
        if command is program:
            condition = "__fish_use_subcommand" if program.subcommands() else ""
        else:
            condition = "; and ".join("__fish_seen_subcommand_from %s" % word for word in command.path[1:])
        only = " -n %s" % quoted(condition) if condition else ""
        for entry in command.subcommands():
            lines.append("complete -c %s%s -a %s -d %s" % (name, only, quoted(entry.names[0]), quoted(entry.text)))
        for entry in command.options():
            flags = " ".join("-l %s" % flag[2:] if flag.startswith("--") else "-s %s" % flag[1:] for flag in entry.names)
            lines.append("complete -c %s%s %s%s -d %s" % (name, only, flags, " -r" if entry.value else "", quoted(entry.text)))
    return "\n".join(lines) + "\n"
