#!/usr/bin/env python3
# Every shell script parses, every Python file compiles.
import ast
import subprocess
import sys

import tidy


def main():
    tree = tidy.Tree.of_folder(tidy.ROOT)
    failed = count = 0
    for path, text in tree.files.items():
        if path.endswith(".sh") or text.startswith(("#!/usr/bin/env bash", "#!/bin/sh")):
            count += 1
            failed += subprocess.run(["bash", "-n", tidy.ROOT / path], check=False).returncode != 0
        elif path.endswith(".py"):
            count += 1
            try:
                ast.parse(text, path)
            except SyntaxError as error:
                failed += 1
                print(f"{path}: {error}")
    print(f"scripts: {count} files, {failed} don't parse")
    return 1 if failed or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
