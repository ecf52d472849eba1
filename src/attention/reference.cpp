// The oracle of attention: obvious and slow.
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/half.h"
#include "format/kernels.h"

namespace kvart {

ReferenceKv::ReferenceKv(const LayerShape& shape, const LayerFormats& formats, int sink_blocks,
                         std::span<const float> k, std::span<const float> v)
    : shape_(shape),
      sink_blocks_(sink_blocks),
      tokens_(static_cast<int64_t>(k.size()) / (shape.kv_heads * shape.head_dim)),
      k_(make_side(formats.k, k)),
      v_(make_side(formats.v, v)) {
  KVART_CHECK(k.size() == v.size(), "%zu and %zu values", k.size(), v.size());
}

ReferenceKv::Side ReferenceKv::make_side(const FormatInfo* format, std::span<const float> x) const {
  const FormatKernels& kernels = format_kernels(format, Isa::scalar);
  const int d = shape_.head_dim;
  Side side;
  side.open.resize(x.size());
  side.sealed.resize(x.size());
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int c = 0; c < d; ++c) {
        side.open[(head * tokens_ + t) * d + c] =
            f16_to_f32(f32_to_f16(x[(t * shape_.kv_heads + head) * d + c]));
      }
    }
    std::vector<uint8_t> codes(block_tokens * format->row_bytes(d));
    std::vector<uint16_t> parameters(format->parameter_bytes(d) / sizeof(uint16_t));
    for (int64_t t = 0; t + block_tokens <= tokens_; t += block_tokens) {
      const int64_t at = (head * tokens_ + t) * d;
      kernels.encode(side.open.data() + at, d, codes.data(), parameters.data());
      kernels.decode(codes.data(), parameters.data(), d, 0, block_tokens, side.sealed.data() + at);
    }
  }
  return side;
}

const float* ReferenceKv::row(const Side& side, int64_t position, int64_t token, int head) const {
  const int64_t block = token / block_tokens;
  const bool full_precision = block == position / block_tokens || block < sink_blocks_;
  const std::vector<float>& values = full_precision ? side.open : side.sealed;
  return values.data() + (head * tokens_ + token) * shape_.head_dim;
}

std::vector<double> ReferenceKv::attend(const AttentionParams& params, int64_t position,
                                        const float* q) const {
  KVART_CHECK(position < tokens_, "position %lld", static_cast<long long>(position));
  const int d = shape_.head_dim;
  const int group = params.q_heads / shape_.kv_heads;
  const int64_t first = params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
  std::vector<double> out(static_cast<size_t>(params.q_heads) * d, 0.0);
  std::vector<double> scores(position + 1);
  for (int head = 0; head < params.q_heads; ++head) {
    double maximum = -INFINITY;
    for (int64_t t = first; t <= position; ++t) {
      const float* key = row(k_, position, t, head / group);
      double score = 0;
      for (int c = 0; c < d; ++c) score += static_cast<double>(q[head * d + c]) * key[c];
      score *= params.scale;
      if (params.soft_cap != 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
      scores[t] = score;
      maximum = std::max(maximum, score);
    }
    double sum = 0;
    for (int64_t t = first; t <= position; ++t) sum += scores[t] = std::exp(scores[t] - maximum);
    for (int64_t t = first; t <= position; ++t) {
      const float* value = row(v_, position, t, head / group);
      for (int c = 0; c < d; ++c) out[head * d + c] += scores[t] / sum * value[c];
    }
  }
  return out;
}

}  // namespace kvart
