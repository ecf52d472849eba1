// The template language's limits and errors: hostile templates end with an error that names
// construct, limit and line.
#include "model/text/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "cpu_time.h"
#include "rounds.h"

namespace kvart::jinja {
namespace {

using ::testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

// Without a limit of time, which a busy machine would reach before the others.
Options patient() {
  Options options;
  options.limits.time = std::chrono::hours(1);
  return options;
}

Result<std::string> render(const std::string& source, const Options& options = patient()) {
  const Result<Template> parsed = Template::parse(source);
  return parsed.ok() ? parsed->render({}, options) : Result<std::string>(parsed.error());
}

std::string error_of(const std::string& source, const Options& options = patient()) {
  const Result<std::string> text = render(source, options);
  return text.ok() ? "no error, but: " + text->substr(0, 200) : text.error().message;
}

TEST(JinjaLimits, NoInternals) {
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ ''['__class__'] }}", "{{ x.__init__ }}",
        "{{ __builtins__ }}", "{{ [''] | map(attribute='__class__') | list }}",
        "{{ [''] | selectattr('__class__') | list }}", "{% set __x = 1 %}",
        "{{ namespace(__a=1) }}", "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
        "{{ [1] | sort(attribute='__len__') }}",
        "{{ ('__cl' ~ 'ass__') in {} }}{{ ''['__cl' ~ 'ass__'] }}"}) {
    EXPECT_THAT(error_of(source), HasSubstr("names that begin with '__' are internals")) << source;
  }
}

TEST(JinjaLimits, Ranges) {
  EXPECT_EQ(error_of("\n{% for i in range(10**9) %}{% endfor %}"),
            "chat template, line 2: in 'range': more items than the limit of 100000");
  EXPECT_THAT(error_of("{{ range(0, -(2**100), -1) | list }}"),
              HasSubstr("in 'range': more items"));
}

TEST(JinjaLimits, Steps) {
  const std::string nested =
      "{% set r = range(1000) %}{% for i in r %}{% for j in r %}{% for k in r %}\n"
      "{% set x = 1 + 2 * 3 %}{% set x = 1 + 2 * 3 %}{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_EQ(error_of(nested),
            "chat template, line 2: in 'set': more steps than the limit of 100000000");
  Options few = patient();
  few.limits.work = 1000;
  EXPECT_THAT(error_of("{% for i in range(100000) %}{% endfor %}", few),
              HasSubstr("in 'range': more steps"));
}

TEST(JinjaLimits, Output) {
  const std::string gigabyte =
      "{% set x = 'a' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}";
  EXPECT_THAT(error_of(gigabyte),
              HasSubstr("in '{{ }}': more bytes of output than the limit of 67108864"));
}

TEST(JinjaLimits, Memory) {
  EXPECT_THAT(error_of("{{ 'a' * 10**12 }}"), HasSubstr("a longer text than the limit"));
  EXPECT_THAT(error_of("{{ [1] * 10**12 }}"), HasSubstr("a longer list than the limit"));
  const std::string doubling =
      "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor "
      "%}";
  EXPECT_THAT(error_of(doubling), HasSubstr("in 'set': more bytes of values than the limit"));
  EXPECT_THAT(error_of("{% set x = 'a' * 100000 %}{{ x.replace('a', x) | length }}"),
              HasSubstr("more bytes"));
  EXPECT_THAT(error_of("{{ ('a\n' * 100000) | indent(100000) }}"), HasSubstr("more bytes"));
  EXPECT_THAT(error_of("{{ [1] | tojson(indent=10**10) }}"), HasSubstr("longer text"));
  EXPECT_THAT(error_of("{% set x = 'a' * 100000 %}{{ ([x] * 100000) | join }}"),
              HasSubstr("than the limit"));
}

TEST(JinjaLimits, SharedValuesThatWouldGrowWithoutEnd) {
  const std::string sharing =
      "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor "
      "%}";
  EXPECT_THAT(error_of(sharing + "{{ n.l }}"), HasSubstr("a heavier value than the limit"));
  const std::string deep =
      "{% set n = namespace(l=[]) %}{% for i in range(90000) %}{% set n.l = [n.l] %}{% endfor %}";
  EXPECT_THAT(error_of(deep), HasSubstr("values nested deeper than the limit of 128"));
  const std::string loops =
      "{% set n = namespace(l=[]) %}{% for i in range(90000) %}"
      "{% for x in [n.l] %}{% set n.l = loop %}{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(loops), HasSubstr("values nested deeper than the limit of 128"));
}

TEST(JinjaLimits, NamespacesInACircleAreFreed) {
  EXPECT_EQ(
      error_of("{% set a = namespace() %}{% set a.self = [a] %}{{ a.self[0].self | length }}"),
      "no error, but: 1");
  EXPECT_THAT(error_of("{% set a = namespace() %}{% set a.self = a %}{{ a }}"),
              HasSubstr("can't be written"));
}

TEST(JinjaLimits, Depth) {
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}"),
              HasSubstr("in 'm': more macros that call one another than the limit of 50"));
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"(", ")"},
                                                        {"[", "]"},
                                                        {"{1:", "}"},
                                                        {"not ", ""},
                                                        {"-", ""},
                                                        {"x[", "]"},
                                                        {"f(", ")"},
                                                        {"1 if ", ""},
                                                        {"1 if 1 else ", ""},
                                                        {"x | f(", ")"}}) {
    const std::string source = "{{ " + repeated(open, 10000) + "1" + repeated(close, 10000) + " }}";
    EXPECT_THAT(error_of(source), HasSubstr("than the limit of")) << open;
  }
  for (const std::string chain : {".a", "[0]", "()", " | upper", " + 1", " or 1"}) {
    const std::string message = error_of("{{ x" + repeated(chain, 10000) + " }}");
    EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("than the limit of"), HasSubstr("undefined")))
        << chain;
  }
  for (const std::string tag :
       {"{% if 1 %}", "{% for x in [1] %}", "{% set x %}", "{% generation %}"}) {
    EXPECT_THAT(error_of(repeated(tag, 10000)), HasSubstr("nested deeper than the limit of 100"))
        << tag;
  }
  EXPECT_FALSE(render(repeated("{% macro m() %}", 10000)).ok());
}

TEST(JinjaLimits, DepthOfCallBlocksAndRecursiveLoops) {
  EXPECT_EQ(error_of("{% for x in [1] recursive %}\n{{ loop([x]) }}{% endfor %}"),
            "chat template, line 2: in 'loop': more loops that call one another than the limit of "
            "50");
  EXPECT_THAT(error_of("{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}"
                       "{{ m() }}"),
              HasSubstr("in 'm': more macros that call one another than the limit of 50"));
  EXPECT_THAT(error_of("{% macro m(f) %}{{ f(m) if f else caller(caller) }}{% endmacro %}"
                       "{% call(c) m() %}{{ c(c) }}{% endcall %}"),
              HasSubstr("in 'caller': more macros that call one another than the limit of 50"));
  // Through one another: neither of the two escapes by going through the other.
  EXPECT_THAT(error_of("{% macro m(f) %}{{ f([1]) }}{% endmacro %}"
                       "{% for x in [1] recursive %}{{ m(loop) }}{% endfor %}"),
              HasSubstr("that call one another than the limit of 50"));
  for (const std::string tag :
       {"{% call m() %}", "{% for x in [1] recursive %}", "{% call(a, b=1) m() %}"}) {
    EXPECT_THAT(error_of("{% macro m() %}{{ caller() }}{% endmacro %}" + repeated(tag, 10000)),
                HasSubstr("nested deeper than the limit of 100"))
        << tag;
  }
}

TEST(JinjaLimits, WorkOfCallBlocksAndRecursiveLoops) {
  Options few = patient();
  few.limits.work = 1'000'000;
  few.limits.memory_bytes = 8u << 20;
  few.limits.output_bytes = 1u << 20;
  // Each level calls itself twice: 2^50 calls.
  EXPECT_THAT(error_of("{% for x in [1, 2] recursive %}{% if loop.depth < 50 %}{{ loop([1, 2]) }}"
                       "{% endif %}{% endfor %}",
                       few),
              HasSubstr("than the limit of"));
  EXPECT_THAT(error_of("{% macro m(n) %}{% if n %}{% call m(n - 1) %}{% endcall %}{{ caller() }}"
                       "{% call m(n - 1) %}{% endcall %}{% endif %}{% endmacro %}"
                       "{% call m(48) %}{% endcall %}",
                       few),
              HasSubstr("than the limit of"));
  // What a block writes is kept once for each level.
  EXPECT_THAT(error_of("{% set t = 'a' * 300000 %}{% for x in [1] recursive %}"
                       "{{ t if loop.depth == 40 else loop([1]) }}{% endfor %}",
                       few),
              HasSubstr("more bytes"));
  EXPECT_THAT(error_of("{% macro m() %}{{ varargs }}{% endmacro %}{% set t = 'a' * 1000000 %}"
                       "{% for i in range(100000) %}{% set u = m(t, t, t) %}{% endfor %}",
                       few),
              HasSubstr("than the limit of"));
}

TEST(JinjaLimits, SourceSize) {
  EXPECT_THAT(error_of(std::string(2u << 20, 'x')), HasSubstr("more than the limit of 1048576"));
}

TEST(JinjaLimits, WorkOnLongTextsIsBounded) {
  Options few = patient();
  few.limits.work = 3'000'000;
  few.limits.memory_bytes = 8u << 20;
  const double step = cpu_seconds([&] {
                        (void)error_of(
                            "{% for i in range(100000) %}{% for j in range(100000) %}"
                            "{% set x = j %}{% endfor %}{% endfor %}",
                            few);
                      }) /
                      static_cast<double>(few.limits.work);
  for (const char* use :
       {"x.find(y)", "x in y", "x.split(y)", "x.count(y)", "x.replace(y, '')", "x.strip(y)",
        "x.rfind(y)", "x == y", "x | upper", "x | length", "x[0]", "x | tojson", "x | title",
        "x | list", "x[::-1]", "x.splitlines()", "x < y"}) {
    const std::string source =
        "{% set x = 'a' * 300000 ~ 'b' %}{% set y = 'a' * 150000 ~ 'c' %}"
        "{% for i in range(100000) %}{% set z = " +
        std::string(use) + " %}{% endfor %}";
    const double seconds = cpu_seconds(
        [&] { EXPECT_THAT(error_of(source, few), HasSubstr("than the limit of")) << use; });
    EXPECT_LT(seconds, 100 * step * static_cast<double>(few.limits.work)) << use;
  }
}

TEST(JinjaLimits, Time) {
  Options options;
  options.limits.time = std::chrono::milliseconds(100);
  options.limits.work = std::uint64_t{1} << 60;
  const double seconds = cpu_seconds([&] {
    // The list itself is made at once, however busy the machine is.
    EXPECT_EQ(error_of("{% set r = range(1000) %}\n{% for i in r %}{% for j in r %}{% for k in r %}"
                       "{% for l in r %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
                       options),
              "chat template, line 2: in 'for': more milliseconds than the limit of 100");
  });
  EXPECT_LT(seconds, 10);  // of the processor: a busy machine makes it less
}

TEST(JinjaLimits, TokensOfASource) {
  EXPECT_THAT(error_of("{{ [" + repeated("1,", 200000) + "] }}"),
              HasSubstr("more names, signs and texts than the limit of 250000"));
  const std::string parameters = repeated("a,", 30000) + "a";
  EXPECT_THAT(error_of("{{ namespace(" + repeated("a=1,", 60000) + ") is defined }}"),
              HasSubstr("no error"));
  EXPECT_THAT(error_of("{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" +
                       repeated("b=1,", 30000) + ") }}"),
              HasSubstr("the macro 'm' can't take the argument 'b'"));
}

TEST(JinjaErrors, NameTheLine) {
  EXPECT_EQ(error_of("a\n\n{{ 1 +\n }}"),
            "chat template, line 4: expected an expression, found the tag's end");
  EXPECT_EQ(error_of("\n{{ a.b.c }}"),
            "chat template, line 2: 'a' is undefined, and so has no 'b'");
  EXPECT_EQ(error_of("{# \n\n #}\n{{ raise_exception('no tools') }}"),
            "chat template, line 4: the template refuses: no tools");
  EXPECT_EQ(error_of("{% if x %}\n\n{{ 'a\nb' + 1 }}{% endif %}{{ 1 // 0 }}"),
            "chat template, line 4: division by zero in '//'");
}

// What a template says in a message can't steer the terminal that shows it.
TEST(JinjaErrors, ShowNoControlCharacters) {
  const std::string title = "\x1b]0;owned\x07\xc2\x9b";
  const std::string escaped = R"(\x1b]0;owned\x07\u009b\n)";
  const std::vector<std::string> sources = {
      "{{ raise_exception('" + escaped + "') }}",
      "{{ \x1b }}",
      "{{ " + title + " }}",
      "{% " + title + " %}",
      "{% x" + title + " %}",
      "{{ 12" + title + " }}",
      "{{ x." + title + " }}",
      "{{ x\xc2\x9b.a }}",
      "{{ x\xc2\x9b() }}",
      "{{ x\xc2\x9b + 1 }}",
      "{{ -x\xc2\x9b }}",
      "{{ {}['" + escaped + "'].a }}",
      "{{ {}['" + escaped + "'] + 1 }}",
      "{{ {}['" + escaped + "'] | tojson }}",
      "{{ {}['" + escaped + "']() }}",
      "{{ ''['__" + escaped + "'] }}",
      "{{ [1] | map('" + escaped + "') }}",
      "{{ [1] | select('" + escaped + "') }}",
      "{{ 'x' | f\xc2\x9b }}",
      "{{ 'x' is f\xc2\x9b }}",
      "{{ 'x'.f\xc2\x9b() }}",
      "{{ 'x' | trim(f\xc2\x9b=1) }}",
      "{{ '{" + escaped + "}'.format(1) }}",
      "{% for x in [1] %}{{ loop['" + escaped + "'] }}{% endfor %}",
      "{% macro m\xc2\x9b() %}{% endmacro %}{{ m\xc2\x9b(1) }}",
      "{% macro m() %}{% endmacro %}{{ m(a\xc2\x9b=1) }}",
      "{% set x\xc2\x9b = 1 %}{% set x\xc2\x9b.y\xc2\x9b = 1 %}",
      "{% set __x\xc2\x9b = 1 %}",
      "{% for x\xc2\x9b of y %}",
      "{{ raise_exception('" + std::string(5000, 'x') + "') }}",
  };
  for (const std::string& source : sources) {
    const Result<std::string> text = render(source);
    ASSERT_FALSE(text.ok()) << source << " gives " << *text;
    const std::string& message = text.error().message;
    EXPECT_THAT(message, HasSubstr("chat template, line 1: "));
    EXPECT_LT(message.size(), 700u) << message;
    EXPECT_EQ(message.find("\xc2\x9b"), std::string::npos) << source;
    for (const char c : message) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << source << ": " << message;
    }
  }
  EXPECT_EQ(error_of("{{ raise_exception('\\x1b[2J') }}"),
            "chat template, line 1: the template refuses: \\x1B[2J");
}

TEST(JinjaErrors, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\n{% include 'x' %}", "line 2: the tag 'include' is not supported"},
      {"{% with a = 1 %}{% endwith %}", "the tag 'with' is not supported"},
      {"{{ '{:>3}'.format(1) }}", "'format' with the field ':>3' is not supported"},
      {"{% set n = namespace() %}{% for x in [1] %}{% macro m() %}{% endmacro %}{% set n.f = m %}"
       "{% endfor %}{{ n.f() }}",
       "the macro 'm' can't be called: the block in which it was made has ended"},
      {"{% set n = namespace() %}{% generation %}{% for x in [1] recursive %}{% set n.l = loop %}"
       "{% endfor %}{% endgeneration %}{{ n.l([1]) }}",
       "'loop' can't be called: its loop has ended"},
      {"{% macro m() %}{% endmacro %}{{ m.catch_kwargs }}",
       "the attribute 'catch_kwargs' of a macro is not supported"},
      {"{{ f(*x) }}", "arguments unpacked with '*' are not supported"},
      {"{{ 1 | groupby('x') }}", "the filter 'groupby' is not supported"},
      {"{{ 1 is escaped }}", "the test 'escaped' is not supported"},
      {"{{ 'a'.swapcase() }}", "the method 'swapcase' of a string is not supported"},
      {"{{ [].append(1) }}", "the method 'append' of a list is not supported"},
      {"{{ '%s' % 1 }}", "formatting of a text with '%' is not supported"},
      {"{{ joiner() }}", "'joiner' is not supported"},
      {"{{ 2 ** 200 }}", "integers of more than 128 bits are not supported"},
      {"{% for x in [1] %}{{ loop.changed(x) }}{% endfor %}", "'loop.changed' is not supported"},
      {"{{ '\\N{DASH}' }}", "an escape in a string that can't be read"},
      {"{{ [1] | tojson(cls=1) }}", "'tojson' has no argument 'cls'"},
  };
  for (const auto& [source, message] : cases) {
    const Result<std::string> text = render(source);
    ASSERT_FALSE(text.ok()) << source;
    EXPECT_EQ(text.error().code, ErrorCode::unsupported) << source;
    EXPECT_THAT(text.error().message, HasSubstr(message)) << source;
  }
}

TEST(JinjaErrors, OnlyWhatIsReachedMustBeSupported) {
  EXPECT_EQ(*render("{% if false %}{{ 1 | groupby('x') }}{% endif %}ok"), "ok");
}

TEST(Jinja, OneTemplateRendersManyTimesAndInItsCopies) {
  Result<Template> parsed = Template::parse("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}");
  ASSERT_TRUE(parsed.ok());
  const Template copy = *parsed;
  EXPECT_EQ(*copy.render({{"x", Value::integer(1)}}), "<1>");
  EXPECT_EQ(*parsed->render({{"x", Value::string("y")}}), "<y>");
  EXPECT_EQ(*copy.render({}), "<>");
}

TEST(Jinja, TextThatIsNoUtf8PassesThrough) {
  const Context context = {{"x", Value::string("a\xff\xc3(\xe4\xbd")}};
  const Result<Template> parsed =
      Template::parse("{{ x }}|{{ x | length }}|{{ x[::-1] }}|{{ x | tojson }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed->render(context),
            "a\xff\xc3(\xe4\xbd|6|\xbd\xe4(\xc3\xff"
            "a|\"a\xff\xc3(\xe4\xbd\"");
}

// Damaged templates give an error or a text, never more.
TEST(Jinja, RandomDamageIsHarmless) {
  const std::string source =
      "{% set ns = namespace(a=[1, 'x'], b={'k': (1.5, none)}) %}{%- for m in ns.a[::-1] if m is "
      "not none -%}"
      "{{ loop.index ~ m | string | upper }}{% else %}{# c #}{{ \"\\u00e9\" }}{%- endfor %}"
      "{% macro f(x, y=2) %}{{ x ** y // 3 if x > 1 else -x }}{% endmacro %}{{ f(3) }}{% raw %}{{ "
      "{% endraw %}"
      "{% if a and not b or c in [1] %}{{ ns.b.k | tojson(indent=1) }}{% elif {}.get('e') %}{% set "
      "q %}w{% endset %}{% endif %}";
  ASSERT_TRUE(render(source).ok()) << error_of(source);
  std::mt19937 random(7);
  const std::string pieces = "{}%#-+'\"()[]|.,:=~ \nforifins1x\\\xc3";
  Options few = patient();
  few.limits.work = 1'000'000;
  int rendered = 0;
  for (int i = 0; i < rounds_of(20000); ++i) {
    std::string damaged = source;
    for (unsigned n = random() % 4 + 1; n > 0; --n) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged.erase(at, random() % 4 + 1);
          break;
        case 1:
          damaged.insert(at, 1, pieces[random() % pieces.size()]);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 12));
      }
    }
    const Result<std::string> text = render(damaged, few);
    rendered += text.ok() ? 1 : 0;
    if (!text.ok()) {
      ASSERT_THAT(text.error().message, HasSubstr("chat template, line ")) << damaged;
    }
  }
  EXPECT_GT(rendered, rounds_of(500));
}

}  // namespace
}  // namespace kvart::jinja
