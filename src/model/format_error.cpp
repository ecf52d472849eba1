// Format errors, measured on the blocks that an f16 cache seals.
#include "kvart/format_error.h"

#include <algorithm>
#include <cmath>

#include "cache/page_layout.h"
#include "format/kernels.h"
#include "kvart/session.h"

namespace kvart {

namespace {
Result<std::unique_ptr<Session>> full_precision_session(const Model& model, int64_t tokens,
                                                        int threads) {
  auto parsed = parse_policy(open_block_format().name);
  if (!parsed) return parsed.error();
  SessionOptions options;
  options.policy = std::move(parsed->policy);
  options.context_tokens = tokens;
  options.threads = threads;
  return Session::create(model, options);
}

// bytes: of all groups of layers, one after the other.
Status visit_block(const PageLayout& layout, const FormatKernels& kernels,
                   const std::vector<uint8_t>& bytes, const BlockVisitor& visit) {
  std::vector<size_t> group_starts = {0};
  for (int group = 0; group < layout.groups(); ++group) {
    group_starts.push_back(group_starts.back() + layout.block_bytes(group));
  }
  if (bytes.size() != group_starts.back()) {
    return Error{ErrorCode::unsupported,
                 "the model's window is so short that its K and V can't be measured"};
  }
  std::vector<float> x(static_cast<size_t>(block_tokens) * 256);
  for (int layer = 0; layer < layout.layers(); ++layer) {
    const LayerShape& shape = layout.shape(layer);
    const uint8_t* block = bytes.data() + group_starts[static_cast<size_t>(layout.group(layer))];
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (const Side side : {Side::k, Side::v}) {
        const PageLayout::Side place =
            side == Side::k ? layout.k(layer, head) : layout.v(layer, head);
        kernels.decode(block + place.codes, nullptr, shape.head_dim, 0, block_tokens, x.data());
        visit(layer, side, x.data(), shape.head_dim);
      }
    }
  }
  return {};
}
}  // namespace

Result<int64_t> record_kv(const Model& model, std::span<const int32_t> tokens, int threads,
                          const BlockVisitor& visit, const std::function<bool()>& go_on) {
  if (tokens.size() < block_tokens) {
    return Error{ErrorCode::invalid_argument,
                 "the text has " + std::to_string(tokens.size()) + " tokens; at least " +
                     std::to_string(block_tokens) + " are needed for a full block"};
  }
  auto session = full_precision_session(model, static_cast<int64_t>(tokens.size()), threads);
  if (!session) return session.error();
  const auto sequence = (*session)->start(tokens, "");
  if (!sequence) return sequence.error();
  const std::vector<LayerShape> shapes = model.config().layer_shapes;
  const std::vector<LayerFormats> formats(shapes.size(),
                                          {&open_block_format(), &open_block_format()});
  const PageLayout layout(shapes, formats);
  const FormatKernels& kernels = format_kernels(&open_block_format(), Isa::scalar);
  // A block at a time: of each layer with a window it is held until the next step.
  constexpr size_t chunk = block_tokens;
  int64_t visited = 0;
  for (size_t at = 0; at < tokens.size() && (!go_on || go_on()); at += chunk) {
    const size_t end = std::min(at + chunk, tokens.size());
    const StepRequest request = {*sequence, tokens.subspan(at, end - at), WantLogits::none};
    KVART_RETURN_IF_ERROR((*session)->step({&request, 1})[0].status);
    if (end - at < chunk) break;
    KVART_RETURN_IF_ERROR(visit_block(
        layout, kernels, (*session)->sealed_block(*sequence, visited / block_tokens), visit));
    visited += block_tokens;
  }
  return visited;
}

void ErrorSum::add(const float* x, const float* decoded, int head_dim) {
  for (int c = 0; c < head_dim; ++c) {
    double mean = 0;
    for (int t = 0; t < block_tokens; ++t) mean += x[t * head_dim + c];
    mean /= block_tokens;
    double channel_error = 0;
    double channel_spread = 0;
    for (int t = 0; t < block_tokens; ++t) {
      const double value = x[t * head_dim + c];
      const double difference = value - decoded[t * head_dim + c];
      channel_error += difference * difference;
      channel_spread += (value - mean) * (value - mean);
    }
    error += channel_error;
    spread += channel_spread;
    channels += 1;
    lost_channels += channel_spread > 0 && 2 * channel_error >= channel_spread ? 1 : 0;
  }
}

double ErrorSum::relative() const {
  return spread > 0 ? std::sqrt(error / spread) : 0;
}

double ErrorSum::lost_share() const {
  return channels > 0 ? static_cast<double>(lost_channels) / static_cast<double>(channels) : 0;
}

ErrorSum FormatError::total(std::span<const ErrorSum> layers) {
  ErrorSum sum;
  for (const ErrorSum& layer : layers) sum.add(layer);
  return sum;
}

int FormatError::worst_layer(std::span<const ErrorSum> layers) {
  int worst = 0;
  for (size_t i = 1; i < layers.size(); ++i) {
    if (layers[i].relative() > layers[worst].relative()) worst = static_cast<int>(i);
  }
  return worst;
}

Result<FormatErrors> measure_format_errors(const Model& model, std::span<const int32_t> tokens,
                                           int threads, const std::function<bool()>& go_on) {
  const auto isa = chosen_isa();
  if (!isa) return isa.error();
  FormatErrors errors;
  const auto layers = static_cast<size_t>(model.config().layers);
  for (const FormatInfo* format : formats()) {
    errors.formats.push_back(
        {format, std::vector<ErrorSum>(layers), std::vector<ErrorSum>(layers)});
  }
  std::vector<uint8_t> codes;
  std::vector<uint16_t> parameters;
  std::vector<float> decoded;
  const auto visited = record_kv(
      model, tokens, threads,
      [&](int layer, Side side, const float* x, int head_dim) {
        decoded.resize(static_cast<size_t>(block_tokens) * head_dim);
        for (FormatError& row : errors.formats) {
          codes.resize(block_tokens * row.format->row_bytes(head_dim));
          parameters.resize(row.format->parameter_bytes(head_dim) / sizeof(uint16_t));
          const FormatKernels& kernels = format_kernels(row.format, *isa);
          kernels.encode(x, head_dim, codes.data(), parameters.data());
          kernels.decode(codes.data(), parameters.data(), head_dim, 0, block_tokens,
                         decoded.data());
          (side == Side::k ? row.k : row.v)[layer].add(x, decoded.data(), head_dim);
        }
      },
      go_on);
  if (!visited) return visited.error();
  errors.tokens = *visited;
  return errors;
}

}  // namespace kvart
