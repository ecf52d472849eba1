// The text that facts are hidden in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/statistics.h"

namespace kvart::tools {

// Sentences of many forms about nothing that is asked for, drawn from a seed: without digits, and
// so varied that none of them stands out by being repeated.
std::vector<std::string> generated_sentences(uint64_t seed, size_t count);

// The sentences of a text, white space made single.
std::vector<std::string> sentences_of(std::string_view text);

enum class NeedleTask {
  single,      // one fact in a text
  multikey,    // many alike, each asked for on its own
  multivalue,  // many values of one key, asked for together
  tracking,    // a chain of variables that are set to each other
};

// single, multikey, multivalue, vt
std::string_view task_name(NeedleTask task);
std::optional<NeedleTask> task_of(std::string_view name);
// Keys of a text, depths of single facts, values, or variables.
int usual_needles(NeedleTask task);

struct Needle {
  std::string sentence;
  double depth_percent = 0;  // where it stands in the text; 0: before all of it
};

struct Question {
  std::string text;                   // the end of the prompt
  std::string lead;                   // the beginning of the reply
  std::string answer;                 // its right continuation
  std::vector<std::string> expected;  // the values in it
  std::string needle;                 // the sentence that says it; of several, the first
  double depth_percent = 0;           // of the needle; of several, their mean
  bool control = false;               // what it asks for isn't in the text
};

// One text's facts, and what is asked about it.
struct NeedleSet {
  std::string intro;
  std::vector<Needle> needles;
  std::vector<Question> questions;  // the last one is a control
};

// Keys, values and names are drawn at random, so that nobody can know them; no two are equal.
// depths_percent: ascending, one for each needle. Precondition: one needle for NeedleTask::single.
NeedleSet make_needles(NeedleTask task, const std::vector<double>& depths_percent, Random& random);

// The first `count` of `sentences`, `words` words of the next one, and the needles between them.
// Precondition: needles by ascending depth.
std::string haystack_text(const std::vector<std::string>& sentences, size_t count, size_t words,
                          const std::vector<Needle>& needles);

// Runs of at least five digits, as they stand.
std::vector<std::string> numbers_in(std::string_view text);

// What a reply is worth, 0 to 1: for one value whether the first number in it is that one; for
// several, the share of them that it names.
double reply_score(NeedleTask task, const Question& question, std::string_view reply);

// Whether the reply holds so many values that what follows can't change its score.
bool reply_is_complete(NeedleTask task, const Question& question, std::string_view reply);

}  // namespace kvart::tools
