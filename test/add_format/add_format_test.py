#!/usr/bin/env python3
"""CONTRIBUTING.md's way to add a format, done in a copy of the tree: one file, one word.

The formats' tests then run there. Usage: add_format_test.py SOURCE WORK_FOLDER CXX_COMPILER
"""

import pathlib
import shutil
import subprocess
import sys

HEADER = """// int4_c16: 4-bit codes, one f16 scale and minimum per channel over 16 tokens.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int4_c16 : PerChannel<4, 16> {
  static constexpr int version = 1;
  static constexpr const char* description = "4 bits per channel over 16 tokens";
};

}  // namespace kvart::KVART_ISA
"""


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    source, work, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "tree"
    tree.mkdir(parents=True)
    for folder in ("cmake", "include", "src", "test", "tools"):
        shutil.copytree(source / folder, tree / folder)
    shutil.copy(source / "CMakeLists.txt", tree)
    (tree / "src/format/int4_c16.h").write_text(HEADER, encoding="utf-8")
    formats = tree / "cmake/formats.cmake"
    formats.write_text(
        formats.read_text(encoding="utf-8").replace(" int2_a32)", " int2_a32 int4_c16)"),
        encoding="utf-8",
    )
    build = work / "build"
    run(
        "cmake",
        "-S",
        tree,
        "-B",
        build,
        "-G",
        "Ninja",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DKVART_CUDA=OFF",
    )
    run("cmake", "--build", build, "--target", "format_test", "policy_test", "--parallel", "2")
    for test in ("format_test", "policy_test"):
        run(build / "test" / test)
    print("int4_c16 added with one file and one word; the formats' tests pass with it")


main()
