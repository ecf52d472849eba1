#!/usr/bin/env python3
# Each check of tidy.py and each reader of cpp_source.py, on a sample that breaks the rule and on
# one that doesn't.
import unittest

import cpp_source
import tidy

FORMATS = {"cmake/formats.cmake": "# The list.\nset(kvart_formats\n  f16 int4_x9)\n"}


def findings(check, files):
    return [str(finding) for finding in check(tidy.Tree(files))]


class Checks(unittest.TestCase):
    def expect(self, check, files, *words):
        """One finding for each of `words`, which it contains."""
        found = findings(check, files)
        self.assertEqual(len(found), len(words), found)
        for text, word in zip(found, words):
            self.assertIn(word, text)

    def test_includes(self):
        check = tidy.check_includes
        self.expect(check, {"src/format/a.h": '#include "cache/pool.h"\n'}, "layer format")
        self.expect(check, {"src/model/file/a.h": '#include "model/text/b.h"\n'}, "model/text")
        self.expect(check, {"src/format/isa/a.cpp": '#include "attention/b.h"\n'}, "attention")
        self.expect(check, {"src/base/a.h": '#include "kvart/format.h"\n'}, "layer base")
        self.expect(check, {"include/kvart/a.h": '#include "base/b.h"\n'}, "public header")
        self.expect(check, {"tools/a.cpp": '#include "cache/b.h"\n', "src/cache/b.h": ""}, "public")
        self.expect(check, {
            "src/model/a.cpp": '#include "model/text/b.h"\n#include "cache/c.h"\n#include <map>\n',
            "src/cache/a.cpp": '#include "a.h"\n#include "kvart/format.h"\n'
                               '// #include "engine/e.h"\n',
            "tools/a.cpp": '#include "kvart/format.h"\n#include "table.h"\n'})

    def test_line_length(self):
        check = tidy.check_line_length
        self.expect(check, {"src/a.h": "x" * 101}, "101")
        self.expect(check, {"src/a.h": "ä" * 100, "README.md": "x" * 500})
        sample = 'a = 1\nb = """\n' + "x" * 200 + '\n"""\n' + "c = 1  # " + "x" * 100 + "\n"
        self.expect(check, {"test/oracle/a.py": sample}, "a.py:5")
        self.expect(check, {"scripts/a.py": sample}, "a.py:3", "a.py:5")

    def test_file_length(self):
        check = tidy.check_file_length
        self.expect(check, {"src/a.h": "\n" * 601}, "601")
        self.expect(check, {"src/a.h": "\n" * 600, "LICENSE": "\n" * 1000})

    def test_function_length(self):
        check = tidy.check_function_length
        body = "void f() {\n" + "  g();\n" * 69 + "}\n"
        self.expect(check, {"src/a.cpp": body}, "71 lines")
        self.expect(check, {"src/x/isa/a.cpp": body})
        self.expect(check, {"src/x/isa/a.cpp": body.replace("}", "  g();\n" * 130 + "}")}, "201")
        many = "namespace a {\nclass B {\n" + "int b() {\n}\n" * 99 + "};}"
        self.expect(check, {"src/a.cpp": many})
        python = "def f():\n" + "    g()\n" * 70
        self.expect(check, {"a.py": python}, "71 lines")
        self.expect(check, {"a.py": python + "def h():\n    g()\n"}, "71 lines")

    def test_format_names(self):
        check = tidy.check_format_names
        self.expect(check, {**FORMATS, "src/cache/a.cpp": "if (is<int4_x9>()) {}\n"}, "int4_x9")
        self.expect(check, {**FORMATS, "tools/a.cpp": 'f("k=int4_x9,v");\n'}, "int4_x9")
        self.expect(check, {**FORMATS, "src/cache/a.cpp": 'f("f16");\n'}, "f16")
        self.expect(check, {**FORMATS, "src/cache/a.cpp": '#include "format/f16.h"\n'}, "f16")
        self.expect(check, {
            **FORMATS, "src/format/int4_x9.h": "struct int4_x9 {};\n",
            "src/cache/a.cpp": "// int4_x9\nfloat y = f16_to_f32(f16{x}); int4_x9_t z;\n",
            "src/model/file/a.cpp": 'name("f16");\n', "test/a.cpp": "int4_x9 x;\n"})

    def test_kernel_headers(self):
        check = tidy.check_kernel_headers
        self.expect(check, {"src/format/isa/a.cpp": "#include <vector>\n"}, "<vector>")
        self.expect(check, {"src/format/isa/a.cpp": "#include <immintrin.h>\n",
                            "src/format/a.cpp": "#include <vector>\n"})

    def test_banned(self):
        check = tidy.check_banned
        for call in ("strcpy(a, b)", "std::sprintf(a, b)", "atoi(a)", "std::stoi(a)", "rand()",
                     "std::system(a)", "gets(a)", "std::regex r", "throw Error()", "new int",
                     "new (p) int", "delete p", "delete[] p", "using namespace std"):
            with self.subTest(call):
                found = findings(check, {"src/cache/a.cpp": f"void f() {{ {call}; }}\n"})
                self.assertEqual(len(found), 1, found)
        self.expect(check, {
            "src/cache/a.h": "A(const A&) = delete;\nint renew(int new_id);\n// new delete rand()\n"
                             'f("atoi(x)"); file.system(x); snprintf(a, 1, b); a.delete_row();\n',
            "test/a.cpp": "std::stoi(x);",
            "src/base/a.h": "void* operator new(size_t); p = new int; delete p;\n"})

    def test_words(self):
        check = tidy.check_words
        for text in ("FIX" + "ME", "x // TO" + "DO: y", "/ro" + "ot/x", "in /tm" + "p/x",
                     "iss" + "ue #7", "py" + "pi.org", "../sha" + "red/x", "(cas" + "es B21"):
            with self.subTest(text):
                self.assertEqual(len(findings(check, {"docs/a.md": text})), 1)
        self.expect(check, {"docs/a.md": "todo list, an issue, build/tmp/x, /usr/include, session"})

    def test_first_lines(self):
        check = tidy.check_first_lines
        self.expect(check, {"src/a.cpp": "#include <map>\n"}, "comment")
        self.expect(check, {"src/a.h": "// What.\n#include <map>\n"}, "#pragma once")
        self.expect(check, {"a.sh": "#!/bin/sh\nset -e\n"}, "comment")
        self.expect(check, {"src/a.h": "// What.\n// More.\n#pragma once\n", "a.cmake": "# What.\n",
                            "a.sh": "#!/bin/sh\n# What.\n", "a.py": '"""What."""\n'})

    def test_dead_headers(self):
        check = tidy.check_dead_headers
        self.expect(check, {"src/cache/a.h": "", "src/cache/b.cpp": '#include "cache/c.h"\n'},
                    "a.h")
        self.expect(check, {**FORMATS, "src/format/int4_x9.h": "", "src/cache/a.h": "",
                            "include/kvart/c.h": "", "tools/d.h": "",
                            "tools/b.cpp": '#include "cache/a.h"\n#include <kvart/c.h>\n'
                                           '#include "d.h"\n'})

    def test_links(self):
        check = tidy.check_links
        self.expect(check, {"docs/a.md": "[x](b.md) [y](../no.md#z)"}, "b.md", "no.md")
        self.expect(check, {"docs/a.md": "[x](../b.md#part) [y](#z) [z](https://a.example) [d](.)",
                            "b.md": ""})

    def test_style_page(self):
        check = tidy.check_style_page
        named = "".join(f"`tidy: {name}`" for name in tidy.CHECKS)
        self.expect(check, {"STYLE.md": named.replace("`tidy: links`", "`tidy: lynx`")},
                    "links", "lynx")
        self.expect(check, {"STYLE.md": named})


class Source(unittest.TestCase):
    def heads(self, text):
        return [function.head for function in cpp_source.functions(text)]

    def test_blanking_keeps_lines(self):
        text = 'a /* x\ny */ b "//" c // d\nR"(e\n")" f\n1\'000 + \'"\''
        self.assertEqual(cpp_source.code_only(text).split(),
                         ["a", "b", "c", "f", "1'000", "+"])
        self.assertEqual(cpp_source.code_only(text).count("\n"), text.count("\n"))

    def test_functions(self):
        text = """
        namespace a::b {
        struct C : D {
          C(int x) : x_{x}, y_(2) { g(); }
          int f() const { if (x_) { return 1; } return 2; }
          int x_ = 3; std::vector<int> z{1, 2};
        };
        enum class E { one, two };
        template <class T> requires (sizeof(T) == 4)
        T h(T t) { auto l = [](int i) { return i; }; return l(t); }
        constexpr int table[] = {1, 2};
        const std::map<int, int> m = f({{1, 2}});
        extern "C" { void k() {} }
        }
        """
        heads = self.heads(text)
        self.assertEqual([head.split("(")[0].split()[-1] for head in heads[:2]], ["C", "f"])
        self.assertEqual(len(heads), 4, heads)
        self.assertTrue(heads[3].endswith("void k()"))

    def test_function_lines(self):
        function, = cpp_source.functions("int a;\n\n\nint f(int b,\n      int c) {\n  g();\n}\n")
        self.assertEqual((function.line, function.lines), (4, 4))


if __name__ == "__main__":
    unittest.main()
