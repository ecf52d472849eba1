#!/usr/bin/env python3
# Reads the symbols of the objects compiled for AVX2, AVX-512 and AMX: a weak function that isn't in
# that set's namespace could be the copy that the linker gives to a machine without it.
# Argument: the build folder.
import pathlib
import re
import subprocess
import sys
import unittest


def shared_functions(listing):
    """The weak functions of one object (`nm -C`) that are not in an ISA's namespace."""
    found = re.findall(r"^[0-9a-fA-F]+ W (.+)$", listing, re.MULTILINE)
    return [name for name in found if not re.search(r"\bisa_(?:avx2|avx512|amx)::", name)]


class SharedFunctions(unittest.TestCase):
    def test_samples(self):
        shared = "0000 W int std::max<int>(int, int)\n0 W kvart::f(int)\n"
        self.assertEqual(shared_functions(shared), ["int std::max<int>(int, int)", "kvart::f(int)"])
        self.assertEqual(shared_functions("0000 W kvart::isa_avx2::f(int)\n0000 T kvart::g()\n"
                                          "     U std::h()\n     w weak_but_undefined\n0 V data\n"),
                         [])


def main():
    objects = [path for isa in ("avx2", "avx512", "amx")
               for path in sorted(pathlib.Path(sys.argv[1]).glob(f"CMakeFiles/*_{isa}.dir/**/*.o"))]
    if not objects:
        sys.exit("no objects of AVX2 or AVX-512 found: is this a build folder?")
    bad = 0
    for path in objects:
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True)
        for name in shared_functions(listing.stdout):
            bad += 1
            print(f"{path.name} ({path.parts[-4] if len(path.parts) > 3 else ''}): {name}")
    print(f"isa_symbols: {len(objects)} objects, {bad} functions outside their set's namespace")
    return 1 if bad else 0


if __name__ == "__main__":
    samples = unittest.defaultTestLoader.loadTestsFromTestCase(SharedFunctions)
    if not unittest.TextTestRunner(verbosity=0).run(samples).wasSuccessful():
        sys.exit(1)
    sys.exit(main())
