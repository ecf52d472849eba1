#!/usr/bin/env python3
# The checks behind STYLE.md: prints each place that breaks a rule and fails if there is one. No
# arguments: the whole repository. `--list` prints the checks.
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize
from typing import NamedTuple

import cpp_source

ROOT = pathlib.Path(__file__).resolve().parents[2]

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70
KERNEL_FUNCTION_LINES_MAX = 200
FILE_LINES_MAX = 600

CPP_FOLDERS = ("include/", "src/", "tools/", "bench/", "test/")

# What each layer may include, itself aside.
LAYERS = {
    "base": (),
    "format": ("base",),
    "cache": ("format", "base"),
    "attention": ("cache", "format", "base"),
    "model/file": ("base",),
    "model/text": ("model/file", "base"),
    "model/ops": ("model/file", "base"),
    "model": ("model/file", "model/text", "model/ops", "attention", "cache", "format", "base"),
}
LAYERS["engine"] = ("model", *LAYERS["model"])
LAYERS["server"] = ("engine", *LAYERS["engine"])

# Tools and benchmarks use public headers. These headers of src/ they may use besides.
SRC_HEADERS_OF_TOOLS = {
    # What bench/ measures, and asks of formats.
    "attention/attention.h", "attention/cuda_attention.h", "format/asymmetric.h",
    "format/kernels.h", "model/ops/matmul.h",
}

# Kernel files are compiled for one instruction set each: an inline function of a std header would
# be compiled for it too and could be linked into another set's path. These headers hold types,
# constants and functions that compilers always expand.
KERNEL_HEADERS = {
    "array", "bit", "cfloat", "climits", "cmath", "concepts", "cstddef", "cstdint", "cstring",
    "immintrin.h", "limits", "span", "type_traits", "utility",
}

BANNED = {
    r"(?<![\w.>:])(?:std::)?(?:strcpy|strcat|strncpy|strtok|sprintf|vsprintf|gets)\s*\(":
        "has no bound: use std::string, fmt or snprintf",
    r"(?<![\w.>:])(?:std::)?(?:atoi|atol|atoll|atof)\s*\(": "hides errors: use std::from_chars",
    r"(?<![\w.>:])(?:std::)?s?rand\s*\(": "is shared state: use a seeded generator of one's own",
    r"(?<![\w.>:])(?:std::)?system\s*\(": "runs a shell",
    r"\bstd::(?:w?regex|basic_regex)\b": "recurses on its input",
    r"\busing\s+namespace\s+std\b": "hides whose name it is",
}
BANNED_OUTSIDE_TESTS = {
    r"\bstd::sto(?:i|l|ll|ul|ull|f|d|ld)\s*\(": "throws: use std::from_chars",
    r"\bthrow\b(?!\s*\()": "errors are values here: return a Result",
}
# `= delete` is not an expression; `operator new` is a declaration.
NEW_EXPRESSION = re.compile(r"(?<!operator )\bnew\b\s*[\w(:\[]"
                            r"|(?<!operator )(?<!=)(?<!= )\bdelete\b\s*[\w(\[]")

LEFT_OVER = re.compile(r"\b(?:FIXME|TODO|XXX|HACK)\b")
ABSOLUTE_PATH = re.compile(r"(?<![\w./~$}-])/(?:work|root|tmp|home)(?![\w-])")
FOREIGN_WORDS = re.compile(
    r"(?i)\b(?:issue|ticket|pull request|pr)\s*#?\d+"
    r"|\b(?:this|previous|next|last|another|earlier|helper) session\b"
    r"|\.\./shared\b|\bcases\.md\b|\breference/(?:kernels|methods|style|conventions)\b"
    r"|\bcases? [a-e]\d{2}\b|\bdevice machine\b|\bpypi\.org\b|\bpythonhosted\b|\bhuggingface\.co\b")

# One default in the cache's configuration may name a format, as may what is listed here: path ->
# names.
FORMAT_NAMES_ALLOWED = {}
# These two are types of numbers as well as formats: as identifiers they are everywhere.
NUMBER_TYPES = ("f16", "bf16")


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


class Tree:
    """The files of a repository: path relative to its root -> text."""

    def __init__(self, files):
        self.files = files

    @staticmethod
    def of_folder(root):
        try:
            listed = subprocess.run(
                ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                 "--exclude-standard"], capture_output=True, check=True).stdout
            paths = [name for name in listed.decode().split("\0") if name]
        except (FileNotFoundError, subprocess.CalledProcessError):  # no git, or not its repository
            paths = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
            paths = [p for p in paths if not p.startswith(("build/", ".git/"))]
        files = {}
        for path in sorted(set(paths)):
            try:
                files[path] = (root / path).read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
                continue  # golden bytes; deleted but not yet committed
        return Tree(files)

    def cpp(self, folders=CPP_FOLDERS):
        return {p: t for p, t in self.files.items()
                if p.startswith(folders) and p.endswith((".h", ".cpp", ".cu", ".cuh"))}

    def code(self):
        """Everything that is written to be compiled or run."""
        return {p: t for p, t in self.files.items()
                if p.endswith((".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".js"))
                or p.split("/")[-1] in ("CMakeLists.txt", "Makefile") or p == ".ci/run"}

    def formats(self):
        listed = re.search(r"set\(kvart_formats\s+([^)]*)\)",
                           self.files.get("cmake/formats.cmake", ""))
        return listed.group(1).split() if listed else []


def is_kernel(path):
    return path.startswith("src/") and "/isa/" in path


def is_oracle(path):
    return path.startswith("test/oracle/") and path.endswith(".py")


def layer_of(folder_path):
    """The layer of a path below src/: the longest folder that is one."""
    folders = folder_path.split("/")[:-1]
    for length in range(len(folders), 0, -1):
        if "/".join(folders[:length]) in LAYERS:
            return "/".join(folders[:length])
    return None


def included_layer(path):
    """The layer that an include names, None for std, other libraries and the file's own folder."""
    if path.startswith("kvart/"):
        stem = path[len("kvart/"):].removesuffix(".h")
        return stem if stem in LAYERS else None
    return layer_of(path)


def check_includes(tree):
    """Layers look down only; tools and bench use the public headers."""
    for path, text in tree.cpp(("include/", "src/", "tools/", "bench/")).items():
        own = layer_of(path.removeprefix("src/")) if path.startswith("src/") else None
        for line, quoted, name in cpp_source.includes(text):
            if not quoted:
                continue
            layer = included_layer(name)
            if own and layer and layer != own and layer not in LAYERS[own]:
                yield Finding(path, line, f"layer {own} includes {name} of {layer}")
            if path.startswith("include/") and not name.startswith("kvart/"):
                yield Finding(path, line, f"a public header includes {name}, which isn't installed")
            if path.startswith(("tools/", "bench/")) and "src/" + name in tree.files \
                    and name not in SRC_HEADERS_OF_TOOLS:
                yield Finding(path, line, f"{name} is not a public header")


def lines_of_strings(text):
    """The numbers of the lines of Python code that hold a string or a part of one."""
    return {line for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.STRING for line in range(token.start[0], token.end[0] + 1)}


def check_line_length(tree):
    """No line of code beyond 100 characters; the oracles' samples may be longer."""
    for path, text in tree.code().items():
        samples = lines_of_strings(text) if is_oracle(path) else ()
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > LINE_LENGTH_MAX and number not in samples:
                yield Finding(path, number, f"{len(line)} characters, at most {LINE_LENGTH_MAX}")


def check_file_length(tree):
    """No file of code beyond 600 lines; the oracles are mostly samples."""
    for path, text in tree.code().items():
        lines = text.count("\n")
        if not is_oracle(path) and lines > FILE_LINES_MAX:
            yield Finding(path, 1, f"{lines} lines, at most {FILE_LINES_MAX}")


def check_function_length(tree):
    """No function beyond 70 lines; kernels 200."""
    for path, text in tree.cpp().items():
        limit = KERNEL_FUNCTION_LINES_MAX if is_kernel(path) else FUNCTION_LINES_MAX
        for function in cpp_source.functions(text):
            if function.lines > limit:
                yield Finding(path, function.line,
                              f"{function.lines} lines, at most {limit}: {function.head[-60:]}")
    for path, text in tree.files.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield Finding(path, node.lineno, f"{lines} lines: {node.name}")


def check_format_names(tree):
    """No format is named outside src/format and the list in cmake/formats.cmake."""
    names = [name for name in tree.formats() if name not in NUMBER_TYPES]
    if not names:
        return
    word = re.compile(r"(?<![\w])(?:" + "|".join(map(re.escape, names)) + r")(?![\w])")
    exact = {f'"{name}"' for name in NUMBER_TYPES}
    for path, text in tree.cpp(("include/", "src/", "tools/", "bench/")).items():
        if path.startswith("src/format/"):
            continue
        allowed = FORMAT_NAMES_ALLOWED.get(path, ())
        places = [(line, found) for line, literal in cpp_source.string_literals(text)
                  for found in word.findall(literal)]
        if not path.startswith("src/model/"):  # weights have number types too
            places += [(line, literal.strip('"')) for line, literal in
                       cpp_source.string_literals(text) if literal in exact]
        code = cpp_source.code_only(text)
        places += [(cpp_source.line_of(code, m.start()), m.group(0)) for m in word.finditer(code)]
        places += [(line, name.split("/")[1].removesuffix(".h"))
                   for line, _, name in cpp_source.includes(text)
                   if re.fullmatch(r"format/\w+\.h", name)
                   and name.split("/")[1].removesuffix(".h") in tree.formats()]
        for line, name in places:
            if name not in allowed:
                yield Finding(path, line, f"names the format {name}")


def check_kernel_headers(tree):
    """Kernel files use only std headers whose functions never stay out of line."""
    for path, text in tree.cpp(("src/",)).items():
        if not is_kernel(path):
            continue
        for line, quoted, name in cpp_source.includes(text):
            if not quoted and name not in KERNEL_HEADERS:
                yield Finding(path, line, f"<{name}> in a kernel file")


def check_banned(tree):
    """No banned calls; no new or delete outside base; nothing throws but tests."""
    for path, text in tree.cpp().items():
        code = cpp_source.code_only(text)
        rules = dict(BANNED)
        if not path.startswith("test/"):
            rules.update(BANNED_OUTSIDE_TESTS)
        for pattern, why in rules.items():
            for match in re.finditer(pattern, code):
                yield Finding(path, cpp_source.line_of(code, match.start()),
                              f"{match.group(0).strip(' (')} {why}")
        if not path.startswith("src/base/"):
            for match in NEW_EXPRESSION.finditer(code):
                yield Finding(path, cpp_source.line_of(code, match.start()),
                              "new or delete: use a container or a unique_ptr")


def check_words(tree):
    """No left-over markers, no paths of one machine, no words about anything but the project."""
    rules = ((LEFT_OVER, "left-over marker"), (ABSOLUTE_PATH, "path of one machine"),
             (FOREIGN_WORDS, "not about the project"))
    for path, text in tree.files.items():
        if path.startswith("test/tidy/") or "/data/" in path:
            continue
        for pattern, what in rules:
            for match in pattern.finditer(text):
                yield Finding(path, cpp_source.line_of(text, match.start()),
                              f"{what}: {match.group(0)}")


def check_first_lines(tree):
    """Each file begins with a sentence that says what it holds; headers go on with #pragma once."""
    for path, text in tree.code().items():
        lines = text.split("\n")
        if lines[0].startswith("#!"):
            lines = lines[1:]
        first = lines[0] if lines else ""
        mark = "//" if path.endswith((".h", ".cpp", ".cu", ".cuh", ".js")) else "#"
        is_docstring = path.endswith(".py") and first.startswith('"""')
        if not is_docstring and not re.match(re.escape(mark) + r" [`\w]", first):
            yield Finding(path, 1, "the first line is not a comment that says what the file holds")
        if path.endswith((".h", ".cuh")):
            rest = [line for line in lines if line.strip() and not line.startswith("//")]
            if not rest or rest[0] != "#pragma once":
                yield Finding(path, 1, "the first line after the comment is not #pragma once")


def check_dead_headers(tree):
    """Each header is included by some file, or listed in cmake/formats.cmake."""
    included = {f"format/{name}.h" for name in tree.formats()}
    for path, text in tree.cpp().items():
        folder = path.rsplit("/", 1)[0]
        for _, _, name in cpp_source.includes(text):
            included.update((name, f"{folder}/{name}"))
    for path in tree.cpp():
        if not path.endswith((".h", ".cuh")):
            continue
        names = {path} | {path.removeprefix(root) for root in
                          ("include/", "src/", "tools/", "bench/", "test/")}
        if not names & included:
            yield Finding(path, 1, "no file includes this header")


def check_links(tree):
    """Each relative link of a document leads to a file."""
    for path, text in tree.files.items():
        if not path.endswith(".md"):
            continue
        folder = pathlib.PurePosixPath(path).parent
        for match in re.finditer(r"\]\(([^)\s]+)\)", text):
            target = match.group(1).split("#")[0]
            if not target or re.match(r"[a-z]+:", target):
                continue
            parts = []
            for part in (folder / target).parts:
                if part == "..":
                    parts = parts[:-1]
                else:
                    parts.append(part)
            goal = "/".join(parts)
            if goal not in tree.files and not any(f.startswith(goal + "/") for f in tree.files) \
                    and not (ROOT / goal).exists():
                yield Finding(path, cpp_source.line_of(text, match.start()), f"no file {target}")


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items())
          if name.startswith("check_")}


def check_style_page(tree):
    """STYLE.md names each check, and no check that doesn't exist."""
    text = tree.files.get("STYLE.md", "")
    named = set(re.findall(r"`tidy: (\w+)`", text))
    for name in sorted(set(CHECKS) - named):
        yield Finding("STYLE.md", 1, f"doesn't name the check {name}")
    for name in sorted(named - set(CHECKS)):
        yield Finding("STYLE.md", 1, f"names the check {name}, which doesn't exist")


CHECKS["style_page"] = check_style_page


def main():
    if sys.argv[1:] == ["--list"]:
        for name, check in CHECKS.items():
            print(f"{name}: {check.__doc__}")
        return 0
    tree = Tree.of_folder(ROOT)
    findings = 0
    for name, check in CHECKS.items():
        for finding in check(tree):
            findings += 1
            print(f"{finding} [{name}]")
    print(f"tidy: {len(tree.files)} files, {len(CHECKS)} checks, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
