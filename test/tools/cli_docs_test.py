#!/usr/bin/env python3
# The figures in the documents are those that the commands print. Argument: the program `kvart`.
import pathlib
import re
import unittest

from cli import Case, model_cache

ROOT = pathlib.Path(__file__).parents[2]
CELL = re.compile(r"([0-9.]+) \(([0-9.]+), layer (\d+)\)")


class Documents(Case):
    def about(self, found, written, what):
        # Instruction sets round differently in the last digit.
        self.assertAlmostEqual(found, written, delta=0.02 + 0.005 * written, msg=what)

    def test_errors_of_formats_are_what_is_printed(self):
        model = model_cache() / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if not model.exists():
            self.skipTest(f"{model.name} is not in the model cache")
        found, _ = self.run_json("formats", model, "--text", ROOT / "LICENSE", "--layers")
        self.assertEqual(found["inputs"]["tokens"], 1024)
        rows = {}
        for line in (ROOT / "docs/formats.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 5 and CELL.fullmatch(cells[1]):
                rows[cells[0]] = [CELL.fullmatch(cell).groups() for cell in cells[1:3]]
        self.assertEqual(list(rows), [row["format"] for row in found["errors"]])
        for row in found["errors"]:
            name = row["format"]
            for side, (error, worst, layer) in zip("kv", rows[name]):
                what = f"{side} of {name}"
                self.about(row[f"{side}_error_percent"], float(error), what)
                self.about(row[f"{side}_worst_percent"], float(worst), what)
                of_layer = found[f"{side}_layers"][int(layer)]
                self.about(of_layer[f"{name}_percent"], float(worst), what)


if __name__ == "__main__":
    unittest.main()
