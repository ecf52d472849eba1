// Finds and checks the parts of a split model.
#include "model/gguf_parts.h"

#include <fmt/format.h>

#include <utility>

#include "model/file/printable.h"

namespace kvart {

namespace {

constexpr uint32_t max_parts = 9999;

struct Split {
  uint32_t number = 0;
  uint32_t count = 1;
  uint64_t tensors = 0;
};

Result<Split> read_split(const GgufFile& file) {
  Split split;
  if (!file.has("split.count")) return split;
  const auto count = file.get_u32("split.count");
  if (!count.ok()) return count.error();
  split.count = *count;
  if (split.count <= 1) return split;
  const auto number = file.get_u32("split.no");
  if (!number.ok()) return number.error();
  const auto tensors = file.get_u64("split.tensors.count");
  if (!tensors.ok()) return tensors.error();
  split.number = *number;
  split.tensors = *tensors;
  if (split.count <= max_parts && split.number < split.count) return split;
  return Error{ErrorCode::invalid_file,
               fmt::format("{}: key 'split.no' is {} and 'split.count' is {}; at most {} parts are "
                           "possible, counted from 0",
                           file.name(), split.number, split.count, max_parts)};
}

std::string part_suffix(uint32_t number, uint32_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

Status check_part(const GgufFile& part, uint32_t number, const Split& model) {
  const auto split = read_split(part);
  if (!split.ok()) return split.error();
  if (split->number == number && split->count == model.count && split->tensors == model.tensors) {
    return {};
  }
  return Error{ErrorCode::invalid_file,
               fmt::format("{}: it says that it is part {} of {} with {} tensors in all; expected "
                           "part {} of {} with {}: not a part of this model, fetch it again",
                           part.name(), split->number + 1, split->count, split->tensors, number + 1,
                           model.count, model.tensors)};
}

}  // namespace

Result<std::vector<GgufFile>> open_gguf_parts(const std::string& path) {
  auto opened = GgufFile::open(path);
  if (!opened.ok()) return opened.error();
  const auto split = read_split(*opened);
  if (!split.ok()) return split.error();
  std::vector<GgufFile> parts;
  if (split->count <= 1) {
    parts.push_back(std::move(*opened));
    return parts;
  }
  const std::string suffix = part_suffix(split->number, split->count);
  if (path.size() < suffix.size() ||
      path.compare(path.size() - suffix.size(), suffix.size(), suffix) != 0) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: part {} of {} of a model; its name must end in {}, so that the "
                             "other parts are found beside it",
                             opened->name(), split->number + 1, split->count, suffix)};
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  uint64_t tensors = 0;
  for (uint32_t number = 0; number < split->count; ++number) {
    auto part = number == split->number ? Result<GgufFile>(std::move(*opened))
                                        : GgufFile::open(stem + part_suffix(number, split->count));
    if (!part.ok()) return part.error();
    KVART_RETURN_IF_ERROR(check_part(*part, number, *split));
    tensors += part->tensors().size();
    parts.push_back(std::move(*part));
  }
  if (tensors == split->tensors) return parts;
  return Error{
      ErrorCode::invalid_file,
      fmt::format("{}: the {} parts have {} tensors, expected {}: they aren't of one model",
                  printable(path, 512), split->count, tensors, split->tensors)};
}

}  // namespace kvart
