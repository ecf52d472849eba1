// Small templates that make large values: what they hold at once stays near the limit, and a unit
// of work takes none much longer than it takes a loop. All memory of this program is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

#include "cpu_time.h"
#include "model/text/jinja.h"

namespace {

std::atomic<std::size_t> live_bytes = 0;
std::atomic<std::size_t> peak_bytes = 0;

constexpr std::size_t header_bytes = 16;  // before each allocation, its size

}  // namespace

void* operator new(std::size_t size) {
  auto* block = static_cast<std::size_t*>(std::malloc(size + header_bytes));
  if (block == nullptr) {
    std::abort();
  }
  *block = size;
  const std::size_t now = live_bytes += size;
  if (now > peak_bytes) {
    peak_bytes = now;
  }
  return reinterpret_cast<char*>(block) + header_bytes;
}

// The one of std::stable_sort; a sanitizer's own would not match the operator delete below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);  // it ends the program rather than throw
}

void operator delete(void* data) noexcept {
  if (data != nullptr) {
    auto* block = reinterpret_cast<std::size_t*>(static_cast<char*>(data) - header_bytes);
    live_bytes -= *block;
    std::free(block);
  }
}

void operator delete(void* data, std::size_t) noexcept {
  operator delete(data);
}

namespace kvart::jinja {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t memory_bytes = 32u << 20;

struct Outcome {
  std::string message;  // of its error; what it wrote if there is none
  double peak;          // bytes held at once, as a share of the limit
  double seconds;       // of the processor
};

Outcome run(const std::string& source, std::uint64_t work = Limits().work) {
  const Result<Template> parsed = Template::parse(source);
  if (!parsed.ok()) {
    return {"no template: " + parsed.error().message, 0, 0};
  }
  Options options;
  options.limits.memory_bytes = memory_bytes;
  options.limits.work = work;
  options.limits.time = std::chrono::hours(1);  // the others must do
  const std::size_t before = live_bytes;
  peak_bytes = before;
  Result<std::string> text = std::string();
  const double seconds = cpu_seconds([&] { text = parsed->render({}, options); });
  return {text.ok() ? "no error: " + text->substr(0, 100) : text.error().message,
          static_cast<double>(peak_bytes - before) / memory_bytes, seconds};
}

// What a plain loop takes for one unit of work.
double seconds_of_a_step() {
  constexpr std::uint64_t steps = 3'000'000;
  static const double seconds =
      run("{% for i in range(100000) %}{% for j in range(100000) %}{% set x = j %}{% endfor %}"
          "{% endfor %}",
          steps)
          .seconds;
  return seconds / steps;
}

// A unit of work may be a few thousand bytes to copy or to compare.
constexpr double step_max = 100;

// A text or a list may have room for twice what is in it.
constexpr double peak_max = 2;

TEST(JinjaMemory, TinyTemplatesThatOnceTookMinutesOrGigabytes) {
  std::string integers = "{% set x = {";
  for (int i = 0; i < 60000; ++i) {
    integers += std::to_string(i) + ":1,";
  }
  for (const std::string& source : std::vector<std::string>{
           "{% set x = 'a' * 10000000 %}{% set d = {} %}"
           "{% for i in range(100000) %}{% set y = d[x] %}{% endfor %}",
           "{% set x = 'a' * 10000000 %}"
           "{% for i in range(100000) %}{% set y = [][x] %}{% endfor %}",
           "{% set x = 'a' * 10000000 %}"
           "{% for i in range(100000) %}{% set y = {x: 1} %}{% endfor %}",
           "{% set x = 'a' * 10000000 %}"
           "{% for i in range(100000) %}{% set y = {}.get(x) %}{% endfor %}",
           "{% set x = 'a' * 10000000 %}"
           "{% for i in range(100000) %}{% set y = x in {} %}{% endfor %}",
           "{{ ('a ' * 5000000).split() | length }}", "{{ ('a ' * 5000000).rsplit() | length }}",
           "{% set x = 'a' * 20000000 %}{% for i in range(100) %}{{ x[0] }}{% endfor %}"}) {
    const Outcome result = run(source);
    EXPECT_THAT(result.message, HasSubstr("than the limit of")) << source;
    EXPECT_LT(result.peak, peak_max) << source;
    EXPECT_LT(result.seconds, step_max * seconds_of_a_step() * static_cast<double>(Limits().work))
        << source;
  }
  const Outcome result = run(integers + "} %}{{ x | length }}");
  EXPECT_EQ(result.message, "no error: 60000");
  EXPECT_LT(result.peak, peak_max);
}

// Expressions on a text x and lists l and t, each with a semicolon behind.
constexpr std::string_view operations =
    R"(x[0]; x[-1]; x[1:]; x[::-1]; x[::2]; x | first; x | last; x | list; x | reverse; x | upper;
x | title; x | capitalize; x | trim; x | trim('a'); x | indent; x | replace('a', 'bb');
x | replace('', '-'); x | tojson; [x] | string; x | tojson(ensure_ascii=true); x | join('-');
x | unique | list; x | sort; x | map('upper') | list; x | select('lower') | list; x | int;
x | float; x ~ x; x + x; x * 2; x is upper; x.split(); x.rsplit(); x.split('a'); x.rsplit('a');
x.splitlines(); x.strip('a'); x.lstrip('b'); x.title(); x.find('b'); x.rfind('b');
x.count('a'); x.replace('a', 'xy'); x.join(t); x.format(x); '{}'.format(x); x.startswith(x);
x.removesuffix('b'); {x: x}; [x, x].index(x); dict(a=x); namespace(a=x); m(x);
raise_exception(x); strftime_now(x); l | tojson; l | tojson(indent=9); l | string; l | list;
l | reverse; l | join; l | join(x); l | sort; l | unique; l | map('string') | list;
[x] | map('list') | list; l | map(attribute='upper') | list; l | map(attribute=x) | list;
l | select | list; l | rejectattr('a') | list; l | sum; l | min; l | max; l[::-1]; l + l;
l * 2; l ~ l; l == l[1:]; [l, l] | map('sort') | list; x in l;
t | map('trim') | unique | map('list') | list; t | map('upper') | list; t | sort; t | unique;
t | join; t | tojson;)";

// Each on values that take half of the limit, with what it makes kept.
TEST(JinjaMemory, OperationsOnLargeValues) {
  const std::string setup =
      "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}"
      "{% set x = 'a\\n \x01\xc3\xa9' * 1000000 %}{% set l = [1] * 100000 %}"
      "{% set t = ['a' * 1000] * 90000 %}";
  constexpr std::uint64_t work = 12'000'000;
  ASSERT_EQ(run(setup, work).message, "no error: ");
  std::string_view rest = operations;
  for (std::size_t end = rest.find(';'); end != rest.npos; end = rest.find(';')) {
    const std::string use(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    const std::string source = setup +
                               "{% set n = namespace(kept=[]) %}{% for i in range(1000) %}" +
                               "{% set n.kept = [n.kept, " + use + "] %}{% endfor %}";
    const Outcome result = run(source, work);
    EXPECT_THAT(result.message,
                ::testing::AnyOf(HasSubstr("limit of"), HasSubstr("can't be used with"),
                                 HasSubstr("the template refuses"), HasSubstr("'format'")))
        << use;
    EXPECT_LT(result.peak, peak_max) << use;
    EXPECT_LT(result.seconds, step_max * seconds_of_a_step() * static_cast<double>(work)) << use;
  }
}

// Many small values, each of a kind that has more to it than its place in a list.
TEST(JinjaMemory, SmallValuesThatAreKept) {
  for (const std::string use : {"{}",
                                "[]",
                                "()",
                                "'ab'[0]",
                                "'ab'.split('x')",
                                "'ab' ~ i",
                                "{'a': i}",
                                "namespace(a=i)",
                                "loop",
                                "'ab'.upper",
                                "dict(a=1)",
                                "i | string",
                                "{}.a",
                                "[] | first",
                                "'a'.items",
                                "{1: 2}.items()",
                                "{1: 2} | items",
                                "loop.cycle",
                                "m(1)",
                                "range(1)",
                                "['a', 'b'] | list",
                                "v(1, 2)",
                                "v(a=1)",
                                "r(1)"}) {
    std::string many;
    for (int i = 0; i < 200; ++i) {
      many += use + ", ";
    }
    const std::string source =
        "{% macro m(a) %}{{ a }}{% endmacro %}{% set n = namespace(a=[]) %}"
        "{% macro v() %}{{ varargs | length ~ kwargs | length }}{% endmacro %}"
        "{% macro r(a) %}{% for x in [a] recursive %}{{ loop([]) }}{% endfor %}{% endmacro %}"
        "{% for i in range(100000) %}{% set n.a = n.a + [[" +
        many + "]] %}{% endfor %}";
    const Outcome result = run(source);
    EXPECT_THAT(result.message, HasSubstr("limit of")) << use;
    EXPECT_LT(result.peak, peak_max) << use;
  }
}

TEST(JinjaMemory, TextsThatAreCapturedInsideOfOneAnother) {
  std::string source = "{% set x = 'a' * 5000000 %}";
  for (int i = 0; i < 90; ++i) {
    source += "{% set y %}{{ x }}";
  }
  for (int i = 0; i < 90; ++i) {
    source += "{% endset %}";
  }
  const Outcome result = run(source);
  EXPECT_THAT(result.message, HasSubstr("more bytes of values than the limit"));
  EXPECT_LT(result.peak, peak_max);
  for (const std::string text : {
           "{% macro m(n) %}{{ caller() }}{% if n %}{% call m(n - 1) %}{{ x }}{% endcall %}"
           "{% endif %}{% endmacro %}{% call m(45) %}{% endcall %}",
           "{% for y in [x] recursive %}{{ y }}{{ loop([x]) if loop.depth < 45 }}{% endfor %}",
           "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(x, x, x, a=x, b=x) }}",
       }) {
    const Outcome nested = run("{% set x = 'a' * 5000000 %}" + text);
    EXPECT_THAT(nested.message, HasSubstr("more bytes of values than the limit")) << text;
    EXPECT_LT(nested.peak, peak_max) << text;
  }
}

// Parses `piece` repeated to `size` bytes; the processor seconds of it.
double parse_seconds(const std::string& piece, std::size_t size, int rounds) {
  std::string source = "{{ [";
  while (source.size() + piece.size() <= size) {
    source += piece;
  }
  return cpu_seconds([&] { (void)Template::parse(source).ok(); }, rounds);
}

TEST(JinjaMemory, HostileSources) {
  for (const std::string piece : {"[", "{{}}", "1,", "{{a}}", "{%if 1%}", "a.b", "(((", "{#", "'a'",
                                  "{%set x%}", "a|b|", "\"", "-"}) {
    const std::size_t before = live_bytes;
    peak_bytes = before;
    const double large = parse_seconds(piece, 1u << 20, 1);
    EXPECT_LT(peak_bytes - before, 160u << 20) << piece;
    // 16 times as long as the small one if it grows with the size, 256 times with its square.
    EXPECT_LT(large, 100 * std::max(parse_seconds(piece, 1u << 16, 3), 1e-3)) << piece;
  }
}

}  // namespace
}  // namespace kvart::jinja
