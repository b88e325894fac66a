#!/usr/bin/python3
"""Writes docs/python.md: what the package tensorhub has, from the docstrings of its sources.

  docs/python_reference.py th/python/tensorhub > docs/python.md

Reads the sources and imports nothing, so that it needs no library.
"""
import ast
import pathlib
import sys
import textwrap

HEAD = """\
# The Python package `tensorhub`
Made from the docstrings by `docs/python_reference.py`; a test compares the two. [The package's page](../th/python/README.md) says how to install it, and what Ctrl-C, threads and
`fork` do; [getting started](getting_started.md#from-python) has two programs. [The API](api.md) explains versions, verbs and states, [errors](errors.md) the code words.

"""


def modules(folder):
    """{module: its syntax tree}"""
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}


def exported(tree):
    """The names of __all__."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError("__init__.py has no __all__")


def definitions(trees):
    """{name: its class or function}, of all modules but the library's own names."""
    return {node.name: node for module, tree in trees.items() if module != "_library" for node in tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")}


MAX_COLUMNS = 110


def signature(function, is_method=False):
    """A call as one writes it, in a block of code; long ones an argument a line."""
    arguments = function.args
    positional = arguments.args[1:] if is_method else arguments.args
    first_default = len(positional) - len(arguments.defaults)
    words = []
    for i, argument in enumerate(positional):
        default = arguments.defaults[i - first_default] if i >= first_default else None
        words.append(parameter(argument, default))
    if arguments.kwonlyargs:
        words.append("*")
    words += [parameter(*each) for each in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        words.append("**" + parameter(arguments.kwarg, None))
    result = " -> " + ast.unparse(function.returns).strip("'\"") if function.returns else ""
    line = "%s(%s)%s" % (function.name, ", ".join(words), result)
    if len(line) > MAX_COLUMNS:
        line = "%s(%s)%s" % (function.name, "".join(packed(words)).replace(" \n", "\n"), result)
    return "```python\n%s\n```" % line


def packed(words):
    """The words with commas, as many a line as there is room for."""
    column = MAX_COLUMNS  # so that the first one begins a line
    for i, word in enumerate(words):
        text = word + (", " if i + 1 < len(words) else "")
        if column + len(text) > MAX_COLUMNS:
            yield "\n    "
            column = 4
        yield text
        column += len(text)


def parameter(argument, default):
    kind = ": " + ast.unparse(argument.annotation) if argument.annotation else ""
    equals = " = " if kind else "="
    return argument.arg + kind + (equals + ast.unparse(default) if default else "")


def decorators(function):
    return [ast.unparse(each) for each in function.decorator_list]


def docstring(node):
    """Without the indentation of its quotes, so that what is indented more stays so."""
    if not ast.get_docstring(node):
        raise ValueError("%s has no docstring" % getattr(node, "name", "a module"))
    margin = " " * node.body[0].col_offset
    return "\n".join(line[len(margin):] if line.startswith(margin) else line
                     for line in node.body[0].value.value.split("\n")).strip()


def prose(node):
    """The docstring as Markdown: what is indented in it is code, and attributes are a list."""
    blocks = []
    for block in docstring(node).split("\n\n"):
        if block.startswith("Attributes:"):
            lines = textwrap.dedent(block.split("\n", 1)[1]).split("\n")
            blocks.append("\n".join("- " + line if not line.startswith(" ") else "  " + line.strip() for line in lines))
        elif all(line.startswith("    ") for line in block.split("\n")):
            blocks.append("```python\n%s\n```" % textwrap.dedent(block))
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def methods(kind):
    return [node for node in kind.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")]


def describe_class(kind):
    lines = ["## %s" % kind.name, prose(kind)]
    found = methods(kind)
    names = {method.name for method in found}
    for method in found:
        if method.name.endswith("_async") and method.name[:-len("_async")] in names:
            continue  # its twin says that there is one
        lines.append("### %s.%s" % (kind.name, method.name))
        if "property" not in decorators(method):
            lines.append(signature(method, is_method=True))
        lines.append(prose(method) + twin_of(method.name, names))
    return "\n\n".join(lines)


def twin_of(name, names):
    return "\n\nIts twin for event loops is `%s_async`." % name if name + "_async" in names else ""


def describe_errors(kinds):
    rows = ["| exception | is raised for |", "|---|---|"]
    for kind in kinds:
        also = [ast.unparse(base) for base in kind.bases if ast.unparse(base) != "Error"]
        rows.append("| `%s`%s | %s |" % (kind.name, ", also `%s`" % "`, `".join(also) if also else "", " ".join(prose(kind).split())))
    return "\n".join(rows)


def describe_module(name, tree):
    yield "## tensorhub.%s\n\n%s" % (name, prose(tree))
    for node in tree.body:
        if node.__class__ not in (ast.ClassDef, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef):
            yield "### tensorhub.%s.%s\n\n%s\n\n%s" % (name, node.name, signature(node), prose(node))
            continue
        yield "### tensorhub.%s.%s\n\n%s" % (name, node.name, prose(node))
        for method in methods(node):
            call = [] if "property" in decorators(method) else [signature(method, is_method=True)]
            yield "\n\n".join(["#### tensorhub.%s.%s.%s" % (name, node.name, method.name), *call, prose(method)])


def page(folder):
    trees = modules(folder)
    known = definitions(trees)
    names = [name for name in exported(trees["__init__"]) if name in known]
    error = known["Error"]
    errors = [known[name] for name in names
              if isinstance(known[name], ast.ClassDef) and "Error" in map(ast.unparse, known[name].bases)]
    functions = [name for name in names if not isinstance(known[name], ast.ClassDef)]
    classes = [known[name] for name in names if isinstance(known[name], ast.ClassDef) and known[name] not in errors + [error]]

    parts = [prose(trees["__init__"])]
    for name in functions:
        if name.endswith("_async") and name[:-len("_async")] in functions:
            continue
        parts.append("## tensorhub.%s\n\n%s\n\n%s" % (name, signature(known[name]), prose(known[name]) + twin_of(name, functions)))
    parts += [describe_class(kind) for kind in classes]
    parts.append("## Errors\n\n%s\n\n%s" % (prose(error), describe_errors(errors)))
    for module in ("store", "engines"):
        parts += describe_module(module, trees[module])
    return HEAD + "\n\n".join(parts) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python_reference.py FOLDER > docs/python.md")
    folder = pathlib.Path(sys.argv[1])
    if not (folder / "__init__.py").is_file():
        sys.exit("python_reference.py: %s is no package; name th/python/tensorhub" % folder)
    sys.stdout.write(page(folder))


if __name__ == "__main__":
    main()
