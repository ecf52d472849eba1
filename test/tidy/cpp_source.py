# Reads C++ text as far as tidy needs: comments and strings blanked out, lengths of functions,
# includes, string literals.
import re
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>R"(?P<delimiter>[^(\s\\]*)\(.*?\)(?P=delimiter)")
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<char>(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL | re.VERBOSE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
SCOPE_WORDS = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")


class Function(NamedTuple):
    line: int         # where its declaration begins
    lines: int        # from there to the closing brace
    head: str         # the declaration, on one line


def blanked(match):
    """The matched text with everything but line ends replaced by spaces."""
    return re.sub(r"[^\n]", " ", match.group(0))


def without_comments(text):
    """Comments become spaces; strings stay."""
    return TOKEN.sub(lambda m: blanked(m) if m.lastgroup == "comment" else m.group(0), text)


def code_only(text):
    """Comments, strings, characters and preprocessor lines become spaces: what is left is code."""
    return PREPROCESSOR.sub(blanked, TOKEN.sub(blanked, text))


def comments(text):
    """(line, text) of each comment."""
    return [(line_of(text, m.start()), m.group(0)) for m in TOKEN.finditer(text)
            if m.lastgroup == "comment"]


def string_literals(text):
    """(line, content) of each string literal, includes left out."""
    text = INCLUDE.sub(blanked, text)
    return [(line_of(text, m.start()), m.group(0)) for m in TOKEN.finditer(text)
            if m.group("string") or m.group("raw")]


def includes(text):
    """(line, is_quoted, path) of each include directive."""
    return [(line_of(text, m.start()), m.group(1) == '"', m.group(2))
            for m in INCLUDE.finditer(without_comments(text))]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def is_member_initializer(head):
    """True for the brace in `X::X() : a_{`: a member's value, not the function's body."""
    colon = re.search(r"\)[^:()]*(?<!:):(?!:)", head)
    last_word = re.search(r"([A-Za-z_]\w*|>)\s*$", head)
    return bool(colon and last_word and last_word.start() >= colon.end() - 1)


def brace_kind(head):
    if "(" not in head:
        return "scope" if SCOPE_WORDS.search(head) else "value"
    before_parenthesis = head.split("(", 1)[0]
    if re.search(r"\b(?:namespace|class|struct|union)\b", before_parenthesis) and \
            re.search(r"\)\s*[A-Za-z_]\w*\s*(?:final\s*)?(?::[^:].*)?$", head) and \
            "=" not in before_parenthesis:
        return "scope"  # class alignas(64) Name, struct __attribute__((x)) Name
    if is_member_initializer(head):
        return "value"
    if re.search(r"=\s*$", head) or head.count("(") > head.count(")"):
        return "value"
    return "function"


def functions(text):
    """Every function with a body, at namespace or class scope."""
    code = code_only(text)
    found = []
    stack = []  # kinds of the open braces
    head_start = 0
    function_start = 0
    for match in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:(?!:)", code):
        mark = match.group(0)
        inside = any(kind in ("function", "value") for kind in stack)
        if mark == "{":
            kind = "value" if inside else brace_kind(code[head_start:match.start()])
            if kind == "function":
                function_start = head_start
            stack.append(kind)
            if not inside and kind != "value":
                head_start = match.end()
        elif mark == "}":
            kind = stack.pop() if stack else "value"
            if kind == "function":
                declaration = code[function_start:match.start()]
                lead = len(declaration) - len(declaration.lstrip())
                first = line_of(code, function_start + lead)
                last = line_of(code, match.start())
                head = " ".join(declaration.split("{", 1)[0].split())
                found.append(Function(first, last - first + 1, head))
            if kind != "value" and not any(k in ("function", "value") for k in stack):
                head_start = match.end()
        elif not inside:
            head_start = match.end()
    return found
