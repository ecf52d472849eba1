// Sentences, needles, questions and the scores of replies.
#include "tools/eval/haystack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace kvart::tools {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::array<std::string_view, 32> people = {
    "Anna",   "Boris", "Clara", "Daniel", "Edith",  "Felix",  "Greta",  "Henry",
    "Ingrid", "Jonas", "Karin", "Leo",    "Martha", "Nils",   "Olga",   "Peter",
    "Ruth",   "Simon", "Tilda", "Viktor", "Wanda",  "Arthur", "Bertha", "Conrad",
    "Dora",   "Emil",  "Frida", "Gustav", "Hanna",  "Ivan",   "Judith", "Kasper"};
constexpr std::array<std::string_view, 32> places = {
    "harbour",   "library",    "old mill",     "market hall", "orchard",     "railway station",
    "town hall", "lighthouse", "bakery",       "north gate",  "ferry",       "glass house",
    "quarry",    "school",     "small chapel", "boat yard",   "post office", "river bank",
    "museum",    "barn",       "upper meadow", "workshop",    "inn",         "stone bridge",
    "theatre",   "vineyard",   "pump house",   "observatory", "dairy",       "printing house",
    "pine wood", "tram depot"};
constexpr std::array<std::string_view, 32> things = {
    "a basket of pears",   "two ladders",         "a brass lamp",
    "the blue curtains",   "a box of nails",      "a torn map",
    "some fresh bread",    "a coil of rope",      "the broken clock",
    "a wheelbarrow",       "three empty jars",    "a woollen coat",
    "the parish register", "a bundle of letters", "a copper kettle",
    "the spare key",       "a sack of flour",     "an easel",
    "the garden chairs",   "a bunch of thyme",    "a pair of skates",
    "the tall mirror",     "a bag of seeds",      "an old violin",
    "a crate of apples",   "the winter boots",    "a roll of linen",
    "a tin of paint",      "the notice board",    "a pot of honey",
    "a leather trunk",     "the fishing nets"};
constexpr std::array<std::string_view, 28> times = {"before breakfast",    "late in the evening",
                                                    "on Monday",           "after the rain",
                                                    "in early spring",     "just before noon",
                                                    "during the fair",     "last autumn",
                                                    "every other week",    "on a quiet Sunday",
                                                    "at first light",      "when the bells rang",
                                                    "in the afternoon",    "after supper",
                                                    "on market day",       "at the end of May",
                                                    "before the holidays", "during the frost",
                                                    "one foggy morning",   "in the long summer",
                                                    "on Thursday",         "towards midnight",
                                                    "after the harvest",   "in a great hurry",
                                                    "without any haste",   "as usual",
                                                    "for the first time",  "against all advice"};
constexpr std::array<std::string_view, 28> manners = {
    "slow",   "patient",  "narrow", "cheerful", "dusty",   "quiet", "crooked",
    "bright", "heavy",    "modest", "careful",  "distant", "plain", "damp",
    "steady", "curious",  "tidy",   "sleepy",   "gentle",  "rough", "pale",
    "clever", "stubborn", "warm",   "hollow",   "round",   "loud",  "simple"};
constexpr std::array<std::string_view, 28> trades = {
    "gardener", "clerk",    "miller",    "teacher", "sailor",  "painter",   "baker",
    "surveyor", "weaver",   "porter",    "nurse",   "farmer",  "carpenter", "printer",
    "cook",     "shepherd", "mason",     "tailor",  "postman", "fiddler",   "doctor",
    "smith",    "glazier",  "librarian", "pilot",   "brewer",  "ferryman",  "gatekeeper"};

// %P a person, %L a place, %T a thing, %W when or how, %A what something is like, %J a trade.
constexpr std::array<std::string_view, 40> forms = {
    "%P carried %T to the %L %W.",
    "The %J at the %L seldom spoke of %T.",
    "%W the road to the %L was %A and almost empty.",
    "Nobody could say why %P kept %T in the %L.",
    "%P and %P met at the %L %W and talked about the weather.",
    "A %A %J once repaired %T for %P.",
    "The %L was painted again, and %P chose a %A colour.",
    "When the %J arrived, %P had already left for the %L.",
    "It was a %A day, and the children played behind the %L.",
    "%P wrote a long letter to the %J about %T.",
    "From the %L one can see the %L if the air is clear.",
    "The %J lent %P %T, which came back %W.",
    "There is a %A path between the %L and the %L.",
    "%P never learned how the %J had found %T.",
    "%W %P swept the floor of the %L and closed the shutters.",
    "The roof of the %L leaked, so the %J brought %T.",
    "Some say that the %L is older than the %L.",
    "%P sold %T to a %A %J from the next valley.",
    "A cart with %T stood in front of the %L %W.",
    "The %J whistled a %A tune while %P counted the sheep.",
    "%P would rather walk to the %L than wait for the %J.",
    "In the %L there was %T, and beside it a %A chair.",
    "The meeting in the %L ended %W, and %P went home.",
    "%P taught the %J how to mend %T.",
    "Two %A dogs slept in the shade of the %L.",
    "What %P liked best about the %L was its %A light.",
    "The %J promised to bring %T, but came with nothing.",
    "%W a %A wind blew from the %L.",
    "%P looked for %T in the %L and found only dust.",
    "The bench near the %L was made by a %J.",
    "%P has a %A voice and sings in the %L %W.",
    "Behind the %L the %J grows beans and lettuce.",
    "The %J asked %P to look after the %L %W.",
    "%P thought the %L too %A for a wedding.",
    "They took %T from the %L to the %L in one trip.",
    "%W the %J of the %L lost a bet against %P.",
    "A %A smell of bread came from the %L.",
    "%P painted the %L from memory, with %T in front.",
    "Even the %J could not explain the %A noise in the %L.",
    "%P borrowed a boat and rowed past the %L %W."};

constexpr std::array<std::string_view, 40> animals = {
    "badger",  "heron",  "otter",  "falcon",  "lynx",    "beaver", "raven",  "marten",
    "salmon",  "bison",  "weasel", "crane",   "gecko",   "walrus", "magpie", "hamster",
    "dolphin", "jaguar", "lizard", "ostrich", "panther", "quail",  "rabbit", "stork",
    "tapir",   "urchin", "viper",  "wombat",  "yak",     "zebra",  "alpaca", "buffalo",
    "cobra",   "donkey", "egret",  "ferret",  "gibbon",  "hornet", "iguana", "jackal"};

constexpr size_t shortest_number = 5;

Words words_for(char slot) {
  switch (slot) {
    case 'P':
      return people;
    case 'L':
      return places;
    case 'T':
      return things;
    case 'W':
      return times;
    case 'A':
      return manners;
    default:
      return trades;
  }
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::string filled(std::string_view form, Random& random) {
  std::string sentence;
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '%') {
      sentence += form[i];
      continue;
    }
    const Words words = words_for(form[++i]);
    sentence += words[random.below(words.size())];
  }
  if (sentence[0] >= 'a' && sentence[0] <= 'z') sentence[0] = static_cast<char>(sentence[0] - 32);
  return sentence;
}

// Draws that none was like before.
class Distinct {
 public:
  explicit Distinct(Random* random) : random_(*random) {}
  std::string key() {
    return once([this] {
      return fmt::format("{}-{}", animals[random_.below(animals.size())], 100 + random_.below(900));
    });
  }
  std::string value(uint64_t smallest) {
    return once([&] { return std::to_string(smallest + random_.below(9 * smallest)); });
  }
  std::string name() {
    return once([this] {
      std::string name;
      while (name.size() < 5) name += static_cast<char>('A' + random_.below(26));
      return name;
    });
  }

 private:
  template <class Draw>
  std::string once(const Draw& draw) {
    std::string drawn = draw();
    while (std::find(seen_.begin(), seen_.end(), drawn) != seen_.end()) drawn = draw();
    seen_.push_back(drawn);
    return drawn;
  }

  Random& random_;
  std::vector<std::string> seen_;
};

constexpr uint64_t seven_digits = 1000000;
constexpr uint64_t five_digits = 10000;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// "a, b and c"
std::string listed(const std::vector<std::string>& parts) {
  if (parts.size() == 1) return parts[0];
  return fmt::format("{} and {}", fmt::join(parts.begin(), parts.end() - 1, ", "), parts.back());
}

Question code_question(const std::string& key, const std::string& value) {
  Question question;
  question.text = fmt::format("What is the access code of {}? Answer in one sentence.", key);
  question.lead = fmt::format("The access code of {} is", key);
  question.answer = " " + value;
  question.expected = {value};
  return question;
}

NeedleSet key_needles(const std::vector<double>& depths, Distinct& distinct) {
  NeedleSet set;
  set.intro =
      "Read the following notes. Access codes are hidden in them; you will be asked for one.";
  for (const double depth : depths) {
    const std::string key = distinct.key();
    const std::string value = distinct.value(seven_digits);
    set.needles.push_back({fmt::format("The access code of {} is {}.", key, value), depth});
    Question question = code_question(key, value);
    question.needle = set.needles.back().sentence;
    question.depth_percent = depth;
    set.questions.push_back(std::move(question));
  }
  set.questions.push_back(code_question(distinct.key(), distinct.value(seven_digits)));
  return set;
}

Question codes_question(const std::string& key, const std::vector<std::string>& values) {
  Question question;
  question.text =
      fmt::format("What are the {} access codes of {}? List all of them.", values.size(), key);
  question.lead = fmt::format("The {} access codes of {} are", values.size(), key);
  question.answer = " " + listed(values);
  question.expected = values;
  return question;
}

NeedleSet value_needles(const std::vector<double>& depths, Distinct& distinct) {
  NeedleSet set;
  set.intro =
      "Read the following notes. Several access codes are hidden in them; you will be asked for "
      "all of them.";
  const std::string key = distinct.key();
  std::vector<std::string> values;
  std::vector<std::string> others;
  for (const double depth : depths) {
    values.push_back(distinct.value(seven_digits));
    others.push_back(distinct.value(seven_digits));
    set.needles.push_back(
        {fmt::format("One of the access codes of {} is {}.", key, values.back()), depth});
  }
  set.questions = {codes_question(key, values), codes_question(distinct.key(), others)};
  return set;
}

Question chain_question(const std::string& value, const std::vector<std::string>& names) {
  Question question;
  question.text = fmt::format(
      "Which variables have the value {}, directly or through another variable? List all of them.",
      value);
  question.lead = fmt::format("The {} variables with the value {} are", names.size(), value);
  question.answer = " " + listed(names);
  question.expected = names;
  return question;
}

NeedleSet chain_needles(const std::vector<double>& depths, Distinct& distinct) {
  NeedleSet set;
  set.intro =
      "Read the following notes. Variables are set in them, some to the value of another one; you "
      "will be asked which have a certain value.";
  std::string source = distinct.value(five_digits);
  const std::string value = source;
  std::vector<std::string> names;
  std::vector<std::string> others;
  for (const double depth : depths) {
    names.push_back(distinct.name());
    others.push_back(distinct.name());
    set.needles.push_back({fmt::format("VAR {} = {}.", names.back(), source), depth});
    source = "VAR " + names.back();
  }
  set.questions = {chain_question(value, names),
                   chain_question(distinct.value(five_digits), others)};
  return set;
}

std::string first_words(std::string_view sentence, size_t words) {
  size_t at = 0;
  for (size_t word = 0; word < words && at < sentence.size(); ++word) {
    at = std::min(sentence.find(' ', at + 1), sentence.size());
  }
  return std::string(sentence.substr(0, at));
}

// Whether the first number in the reply is the one that was asked for.
double first_number_score(const Question& question, std::string_view reply) {
  const std::vector<std::string> numbers = numbers_in(reply);
  return !numbers.empty() && numbers[0] == question.expected[0] ? 1 : 0;
}

// The share of the values that `is_named` says yes to.
template <class IsNamed>
double named_share(const Question& question, const IsNamed& is_named) {
  const auto named = std::count_if(question.expected.begin(), question.expected.end(), is_named);
  return static_cast<double>(named) / static_cast<double>(question.expected.size());
}

double numbers_score(const Question& question, std::string_view reply) {
  const std::vector<std::string> numbers = numbers_in(reply);
  return named_share(question, [&](const std::string& value) {
    return std::find(numbers.begin(), numbers.end(), value) != numbers.end();
  });
}

double names_score(const Question& question, std::string_view reply) {
  return named_share(question, [&](const std::string& name) {
    return reply.find(name) != std::string_view::npos;
  });
}

bool has_numbers(const Question& question, std::string_view reply) {
  return numbers_in(reply).size() >= question.expected.size();
}

bool has_sentence(const Question& /*question*/, std::string_view reply) {
  return reply.find('.') != std::string_view::npos;
}

// All in which the tasks differ.
struct TaskRules {
  NeedleTask task;
  std::string_view name;
  int usual_needles;
  NeedleSet (*make)(const std::vector<double>& depths, Distinct& distinct);
  double (*score)(const Question& question, std::string_view reply);
  bool (*is_complete)(const Question& question, std::string_view reply);
};

constexpr std::array<TaskRules, 4> task_rules = {{
    {NeedleTask::single, "single", 5, key_needles, first_number_score, has_numbers},
    {NeedleTask::multikey, "multikey", 8, key_needles, first_number_score, has_numbers},
    {NeedleTask::multivalue, "multivalue", 4, value_needles, numbers_score, has_numbers},
    {NeedleTask::tracking, "vt", 5, chain_needles, names_score, has_sentence},
}};

const TaskRules& rules_of(NeedleTask task) {
  return *std::find_if(task_rules.begin(), task_rules.end(),
                       [task](const TaskRules& rules) { return rules.task == task; });
}

}  // namespace

std::vector<std::string> generated_sentences(uint64_t seed, size_t count) {
  Random random(seed);
  std::vector<std::string> sentences;
  sentences.reserve(count);
  while (sentences.size() < count) {
    sentences.push_back(filled(forms[random.below(forms.size())], random));
  }
  return sentences;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> sentences;
  std::string sentence;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_space(text[i])) {
      sentence += text[i];
      continue;
    }
    if (sentence.empty() || sentence.back() == ' ') continue;
    const bool ends = std::string_view(".!?").find(sentence.back()) != std::string_view::npos;
    if (ends) {
      sentences.push_back(std::move(sentence));
      sentence.clear();
    } else {
      sentence += ' ';
    }
  }
  if (!sentence.empty() && sentence.back() == ' ') sentence.pop_back();
  if (!sentence.empty()) sentences.push_back(std::move(sentence));
  return sentences;
}

NeedleSet make_needles(NeedleTask task, const std::vector<double>& depths_percent, Random& random) {
  Distinct distinct(&random);
  NeedleSet set = rules_of(task).make(depths_percent, distinct);
  for (Question& question : set.questions) {
    if (question.needle.empty()) question.needle = set.needles[0].sentence;
    if (set.questions.size() == 2) question.depth_percent = mean_of(depths_percent);
  }
  Question& control = set.questions.back();
  control.control = true;
  control.needle.clear();
  control.depth_percent = mean_of(depths_percent);
  return set;
}

std::string haystack_text(const std::vector<std::string>& sentences, size_t count, size_t words,
                          const std::vector<Needle>& needles) {
  constexpr size_t sentences_per_paragraph = 8;
  std::string text;
  size_t needle = 0;
  const auto add = [&text](std::string_view sentence) {
    if (!text.empty() && text.back() != '\n') text += ' ';
    text += sentence;
  };
  for (size_t i = 0; i <= count; ++i) {
    while (needle < needles.size() &&
           std::lround(needles[needle].depth_percent / 100 * static_cast<double>(count)) ==
               static_cast<long>(i)) {
      add(needles[needle++].sentence);
    }
    if (i == count) break;
    if (i > 0 && i % sentences_per_paragraph == 0) text += '\n';
    add(sentences[i]);
  }
  if (words > 0) add(first_words(sentences[count], words) + ".");
  return text;
}

std::vector<std::string> numbers_in(std::string_view text) {
  std::vector<std::string> numbers;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end - at >= shortest_number) numbers.emplace_back(text.substr(at, end - at));
    at = std::max(end, at + 1);
  }
  return numbers;
}

double reply_score(NeedleTask task, const Question& question, std::string_view reply) {
  return rules_of(task).score(question, reply);
}

bool reply_is_complete(NeedleTask task, const Question& question, std::string_view reply) {
  if (reply.empty() || is_digit(reply.back())) return false;  // the number may go on
  return rules_of(task).is_complete(question, reply);
}

std::string_view task_name(NeedleTask task) {
  return rules_of(task).name;
}

std::optional<NeedleTask> task_of(std::string_view name) {
  const auto* found = std::find_if(task_rules.begin(), task_rules.end(),
                                   [name](const TaskRules& rules) { return rules.name == name; });
  if (found == task_rules.end()) return std::nullopt;
  return found->task;
}

int usual_needles(NeedleTask task) {
  return rules_of(task).usual_needles;
}

}  // namespace kvart::tools
