// Conditions that meet: formats, prefix cache, full pools, chunks, windows, rollbacks, aborts and
// forks in a covering array: each three levels of three of them occur together. Whatever meets,
// each sequence has the bits of its run alone. Free blocks are poisoned.
#include <array>
#include <set>

#include "attention_fixture.h"

namespace kvart {
namespace {

enum Factor { format, prefix, pressure, chunks, windows, rollback, abort_one, forks, factors };

constexpr std::array<int, factors> levels = {6, 2, 2, 2, 3, 2, 2, 2};
constexpr const char* policies[] = {"f16", "fp8", "int8", "int4", "int4_g32", "kivi2"};

using Row = std::array<int, factors>;

std::string text_of(const Row& row) {
  std::string text = policies[row[format]];
  const char* const words[] = {"",          " prefix cache", " full pool", " small chunks",
                               " windows ", " rollback",     " abort",     " forks"};
  for (int f = 1; f < factors; ++f) {
    if (row[f] > 0) text += words[f];
  }
  return text + (row[windows] > 0 ? std::to_string(row[windows]) : "");
}

using Triple = std::array<int, 6>;  // factors and their levels

std::vector<Triple> triples_of(const Row& row) {
  std::vector<Triple> triples;
  for (int a = 0; a < factors; ++a) {
    for (int b = a + 1; b < factors; ++b) {
      for (int c = b + 1; c < factors; ++c) triples.push_back({a, b, c, row[a], row[b], row[c]});
    }
  }
  return triples;
}

// Greedy: of all combinations always the one with the most triples that no row has yet.
std::vector<Row> covering_array() {
  std::vector<Row> all = {Row{}};
  for (int f = 0; f < factors; ++f) {
    std::vector<Row> longer;
    for (Row row : all) {
      for (row[f] = 0; row[f] < levels[f]; ++row[f]) longer.push_back(row);
    }
    all = std::move(longer);
  }
  std::set<Triple> left;
  for (const Row& row : all) {
    for (const Triple& triple : triples_of(row)) left.insert(triple);
  }
  std::vector<Row> rows;
  while (!left.empty()) {
    size_t most = 0;
    Row best = {};
    for (const Row& row : all) {
      size_t found = 0;
      for (const Triple& triple : triples_of(row)) found += left.count(triple);
      if (found > most) {
        most = found;
        best = row;
      }
    }
    for (const Triple& triple : triples_of(best)) left.erase(triple);
    rows.push_back(best);
  }
  return rows;
}

// Some sequences through one cache, under the conditions of a row.
class Scenario {
 public:
  explicit Scenario(const Row& row)
      : row_(row),
        case_(make_case(row)),
        runner_(case_, best_isa, 2, 300, make_cache()),
        random_(test_seed() + 7) {
    for (int i = 0; i <= other_text; ++i) {
      texts_.push_back(random_sequence(case_, 270 + 20 * i, 50 + i));
      expected_.push_back(expected_out(case_, texts_.back()));
    }
  }

  void run() {
    hold_the_rest_of_the_pool();
    // Going back, some prefixes are found and others were evicted.
    for (const int text : {0, 1, 2, 3, 4, 4, 3, 2, 1, 0}) {
      run_one(text);
      if (testing::Test::HasFatalFailure()) return;
    }
    if (row_[prefix] == 0) return;
    EXPECT_GT(runner_.cache().stats().prefix_hits_tokens, 0);
    if (row_[pressure] == 1) {
      EXPECT_GT(runner_.cache().stats().evictions, 0);
    }
  }

 private:
  static constexpr int other_text = 5;  // of the one that is aborted

  static AttentionCase make_case(const Row& row) {
    AttentionCase c = AttentionCase::uniform(2, 2, 32, 2, policies[row[format]]);
    if (row[windows] >= 1) c.layers[1].window = 96;
    if (row[windows] == 2) c.layers[0].window = 200;
    return c;
  }

  [[nodiscard]] std::unique_ptr<KvCache> make_cache() const {
    CacheConfig config;
    config.shape.layers = case_.layers;
    config.policy = parse_policy(policies[row_[format]])->policy;
    config.plan = *plan_memory({config.shape, config.policy, 384, 4, 0, 300});
    config.prefix_caching = row_[prefix] == 1;
    config.poison_free_blocks = true;
    return KvCache::create(config).value();
  }

  // Leaves what one sequence of the longest text and a few more blocks need, so that each of them
  // takes the blocks that the ones before it left.
  void hold_the_rest_of_the_pool() {
    if (row_[pressure] == 0) return;
    KvCache& cache = runner_.cache();
    const int sequences = row_[forks] == 1 || row_[abort_one] == 1 ? 1 : 2;
    for (int i = 0; i < sequences; ++i) {
      const SequenceId id = cache.start({}, "held").value();
      ASSERT_TRUE(cache.reserve(id, std::vector<int32_t>(384, i), Durability::final).ok());
      cache.commit(id, 384);
    }
  }

  void run_one(int text) {
    const int sequence = runner_.add(texts_[text], text_owner_[text]);
    if (text_owner_[text] < 0) text_owner_[text] = sequence;
    const int64_t from = runner_.done(sequence);
    int other = -1;
    if (row_[abort_one] == 1) {  // it ends in the middle, with what it shares
      other = runner_.add(texts_[other_text], other_owner_);
      if (other_owner_ < 0) other_owner_ = other;
    }
    while (runner_.done(sequence) < texts_[text].tokens) {
      step(text, sequence, other);
      if (testing::Test::HasFatalFailure()) return;
      if (other >= 0 && runner_.done(sequence) > 130) {
        runner_.release(other);
        other = -1;
      }
    }
    expect_bits(text, sequence, from);
    if (other >= 0) runner_.release(other);
    runner_.release(sequence);
  }

  void step(int text, int sequence, int other) {
    const auto left = static_cast<int>(texts_[text].tokens - runner_.done(sequence));
    const int most = row_[chunks] == 1 ? 1 + static_cast<int>(random_() % 40) : 200;
    const int count = std::min(left, most);
    const int64_t before = runner_.done(sequence);
    if (row_[rollback] == 1 && random_() % 3 == 0 && count <= 64) {
      runner_.step({{sequence, count}}, Durability::speculative, false);
      const int64_t kept = before + static_cast<int64_t>(random_() % (count + 1));
      runner_.truncate(sequence, kept);
      runner_.cache().commit(runner_.id(sequence), kept);
      return;
    }
    std::vector<AttentionRunner::Part> parts = {{sequence, count}};
    if (other >= 0) {
      const int64_t rest = texts_[other_text].tokens - runner_.done(other);
      parts.push_back({other, static_cast<int>(std::min<int64_t>(rest, 37))});
    }
    runner_.step(parts);
    // A second one goes the same way from here: in its own open block, beside the first.
    if (row_[forks] == 1 && before < 100 && runner_.done(sequence) < texts_[text].tokens) {
      const int64_t start = runner_.done(sequence);
      const int twin = runner_.fork(sequence);
      if (testing::Test::HasFatalFailure()) return;
      runner_.step({{twin, 1}});
      runner_.step(
          {{sequence, 1},
           {twin, static_cast<int>(std::min<int64_t>(30, texts_[text].tokens - start - 1))}});
      expect_bits(text, twin, start);
      runner_.release(twin);
    }
  }

  // Tokens [from, done) have the bits of the run alone.
  void expect_bits(int text, int sequence, int64_t from) {
    for (size_t layer = 0; layer < case_.layers.size(); ++layer) {
      const LayerShape& shape = case_.layers[layer];
      const auto row = static_cast<size_t>(shape.kv_heads * case_.group * shape.head_dim);
      const size_t first = static_cast<size_t>(from) * row;
      const size_t count = static_cast<size_t>(runner_.done(sequence) - from) * row;
      ASSERT_TRUE(same_bits(std::span(runner_.out(sequence)[layer]).subspan(first, count),
                            std::span(expected_[text][layer]).subspan(first, count)))
          << "text " << text << " layer " << layer << " from " << from;
    }
  }

  Row row_;
  AttentionCase case_;
  AttentionRunner runner_;
  std::mt19937_64 random_;
  std::vector<SequenceData> texts_;
  std::vector<std::vector<std::vector<float>>> expected_;
  std::array<int, other_text> text_owner_ = {-1, -1, -1, -1, -1};
  int other_owner_ = -1;
};

TEST(AttentionCovering, EachSequenceHasTheBitsOfItsRunAlone) {
  const std::vector<Row> rows = covering_array();
  EXPECT_GE(rows.size(), 36u);  // three levels of format, windows and any third
  for (const Row& row : rows) {
    SCOPED_TRACE(text_of(row));
    Scenario scenario(row);
    scenario.run();
    ASSERT_FALSE(testing::Test::HasFailure()) << text_of(row);
  }
}

}  // namespace
}  // namespace kvart
