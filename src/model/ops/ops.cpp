// Applies the kernels of rows to whole batches, and computes the angles of rotary positions.
#include "model/ops/ops.h"

#include <cmath>

#include "base/check.h"
#include "model/ops/kernels.h"

namespace kvart {

void rms_norm(Isa isa, const float* x, const float* weight, float eps, int64_t rows,
              int64_t columns, float* out) {
  const OpsKernels& kernels = ops_kernels(isa);
  for (int64_t row = 0; row < rows; ++row) {
    kernels.rms_norm_row(x + row * columns, weight, eps, columns, out + row * columns);
  }
}

void activate_mul(Isa isa, Activation activation, float* gate, const float* up, int64_t count) {
  const OpsKernels& kernels = ops_kernels(isa);
  (activation == Activation::silu ? kernels.silu_mul : kernels.gelu_tanh_mul)(gate, up, count);
}

void soft_cap(Isa isa, float cap, float* x, int64_t count) {
  ops_kernels(isa).soft_cap(cap, x, count);
}

void scale(Isa isa, float factor, float* x, int64_t count) {
  ops_kernels(isa).scale(factor, x, count);
}

void add(Isa isa, float* x, const float* y, int64_t count) {
  ops_kernels(isa).add(x, y, count);
}

RopeAngles::RopeAngles(const RopeConfig& config)
    : pairing_(config.pairing),
      dims_(config.dims),
      magnitude_(config.magnitude),
      frequencies_(config.dims / 2) {
  KVART_CHECK(dims_ > 0 && dims_ % 2 == 0, "dims %d", dims_);
  const auto& factors = config.frequency_factors;
  KVART_CHECK(factors.empty() || factors.size() == frequencies_.size(), "%zu factors, %d dims",
              factors.size(), dims_);
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / dims_;
    frequencies_[i] = std::pow(config.theta_base, exponent) / (factors.empty() ? 1.0 : factors[i]);
  }
}

bool RopeAngles::reserve(int64_t positions) {
  const auto count = static_cast<size_t>(positions) * static_cast<size_t>(table_width());
  return count <= cos_.size() || (cos_.allocate(count) && sin_.allocate(count));
}

void RopeAngles::assign(std::span<const int32_t> positions) {
  rows_ = static_cast<int64_t>(positions.size());
  KVART_CHECK(reserve(rows_), "no memory for %zu positions", positions.size());
  size_t place = 0;
  for (const int32_t position : positions) {
    for (const double frequency : frequencies_) {
      const double angle = position * frequency;
      const auto cosine = static_cast<float>(magnitude_ * std::cos(angle));
      const auto sine = static_cast<float>(magnitude_ * std::sin(angle));
      if (pairing_ == RopePairing::adjacent) {
        cos_[place] = cosine;
        sin_[place++] = -sine;
      }
      cos_[place] = cosine;
      sin_[place++] = sine;
    }
  }
}

void rope(Isa isa, const RopeAngles& angles, float* x, int heads, int head_dim,
          int64_t row_stride) {
  KVART_CHECK(angles.dims() <= head_dim, "%d of %d channels", angles.dims(), head_dim);
  const OpsKernels& kernels = ops_kernels(isa);
  const auto turn =
      angles.pairing() == RopePairing::halves ? kernels.rope_halves : kernels.rope_adjacent;
  for (int64_t row = 0; row < angles.rows(); ++row) {
    for (int head = 0; head < heads; ++head) {
      turn(x + row * row_stride + static_cast<int64_t>(head) * head_dim, angles.cos(row),
           angles.sin(row), angles.dims() / 2);
    }
  }
}

}  // namespace kvart
