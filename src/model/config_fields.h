// Reading and checking the fields of a model's header, whatever kind of file they come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/model_config.h"
#include "kvart/result.h"

namespace kvart {

// Fields by name. nullopt: absent (or null); an error: present but of another type.
class ConfigFields {
 public:
  virtual ~ConfigFields() = default;
  [[nodiscard]] virtual std::string source() const = 0;                         // for messages
  [[nodiscard]] virtual std::string full_name(std::string_view key) const = 0;  // for messages
  [[nodiscard]] virtual Result<std::optional<int64_t>> integer(std::string_view key) const = 0;
  [[nodiscard]] virtual Result<std::optional<double>> number(std::string_view key) const = 0;
  [[nodiscard]] virtual Result<std::optional<bool>> boolean(std::string_view key) const = 0;
  [[nodiscard]] virtual Result<std::optional<std::string>> text(std::string_view key) const = 0;
  // One value for all layers, or a list with one for each.
  [[nodiscard]] virtual Result<std::optional<std::vector<int64_t>>> integers(
      std::string_view key) const = 0;
};

struct IntegerRange {
  int64_t min = 1;
  int64_t max = 0;
};

// Keeps the first error, so that a reader of many fields asks once at the end. After an error the
// values are harmless ones (the range's minimum) and must not be used.
class FieldReader {
 public:
  explicit FieldReader(const ConfigFields& fields) : fields_(fields) {}

  int64_t integer(std::string_view key, IntegerRange range);  // required
  int64_t integer_or(std::string_view key, IntegerRange range, int64_t fallback);
  double number_or(std::string_view key, double min, double max, double fallback);
  bool boolean_or(std::string_view key, bool fallback);
  std::string text_or(std::string_view key, std::string fallback);
  // `layers` values: a scalar is repeated; a list must have that many.
  std::vector<int64_t> per_layer(std::string_view key, IntegerRange range, int layers,
                                 int64_t fallback);

  void fail(ErrorCode code, std::string_view key, const std::string& what);
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  template <class T>
  std::optional<T> keep(Result<std::optional<T>> value);

  const ConfigFields& fields_;
  Status status_;
};

// The names under which one kind of file has the fields that all models share.
struct CommonKeys {
  std::string_view layers, hidden, ffn, q_heads, kv_heads, head_dim, context, norm_eps, experts;
};

// Where a file may leave a field out; 0: it may not (heads), or it follows from others (head_dim =
// hidden / heads).
struct CommonDefaults {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// Fills layers, hidden, ffn, heads, head_dim, context_length, norm_eps, experts and layer_shapes
// (windows 0).
Status read_common_fields(const ConfigFields& fields, const CommonKeys& keys,
                          const CommonDefaults& defaults, ModelConfig& config);

// Sets each layer's window: every `full_every`-th layer sees all tokens, the others `window`; 0:
// all layers are windowed.
void set_windows(ModelConfig& config, int window, int full_every);

// What follows from the fields: which layers are turned by which angles, the usual scale of
// attention, and, if nothing else is, the first thing that the forward pass wouldn't do right
// (run_refusal).
void complete_config(ModelConfig& config);

// Why an architecture is refused (unsupported): a known one whose cache can't be counted, or an
// unknown one; `known` is the list for the message.
Error refuse_architecture(const std::string& source, std::string_view architecture,
                          const std::string& known);

inline constexpr int max_vocab = 1 << 24;
inline constexpr int64_t max_window = int64_t{1} << 30;

}  // namespace kvart
