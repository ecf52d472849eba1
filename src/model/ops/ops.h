// What a transformer does to rows of activations between its matrix products. Every function treats
// each row by itself, gives the same bits on every instruction set, and allocates nothing.
// Precondition of all: this machine has `isa`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/cpu.h"

namespace kvart {

// out[m][n] = x[m][n] / sqrt(mean of squares of the row + eps) · weight[n]; out may be x.
void rms_norm(Isa isa, const float* x, const float* weight, float eps, int64_t rows,
              int64_t columns, float* out);

// The gate of a feed-forward layer: f(gate) · up.
enum class Activation {
  silu,       // f(x) = x / (1 + e^-x)
  gelu_tanh,  // f(x) = x / (1 + e^-2u), u = sqrt(2 / pi) · (x + 0.044715 x^3)
};
// gate[i] = f(gate[i]) · up[i]
void activate_mul(Isa isa, Activation activation, float* gate, const float* up, int64_t count);

// x[i] = cap · tanh(x[i] / cap), to 2^-22 of cap; NaN for a NaN or an Inf
void soft_cap(Isa isa, float cap, float* x, int64_t count);

// x[i] = x[i] · factor
void scale(Isa isa, float factor, float* x, int64_t count);

// x[i] += y[i]
void add(Isa isa, float* x, const float* y, int64_t count);

// Which two of a head's first `dims` channels are turned together.
enum class RopePairing {
  halves,    // i and i + dims / 2 (also called "neox")
  adjacent,  // 2i and 2i + 1 (also called "normal")
};

struct RopeConfig {
  RopePairing pairing = RopePairing::halves;
  int dims = 0;  // even; channels of a head from here on stay as they are
  double theta_base = 10000.0;
  std::vector<double> frequency_factors;  // [dims / 2], or empty: what frequencies are divided by
  double magnitude = 1;                   // what cosines and sines are multiplied by
};

// The cosines and sines for a batch of positions: pair i of a token at position p is turned by
// p · theta_base^(-2i / dims) / frequency_factors[i], computed in double, and scaled by the
// magnitude. Filled once for a batch,
// used in every layer.
class RopeAngles {
 public:
  // Precondition: dims is even and positive, frequency_factors is empty or [dims / 2].
  explicit RopeAngles(const RopeConfig& config);

  // Takes memory for batches of so many positions. False: there is none.
  [[nodiscard]] bool reserve(int64_t positions);
  // Allocates only when the batch is larger than any before and than what was reserved.
  void assign(std::span<const int32_t> positions);

  [[nodiscard]] RopePairing pairing() const { return pairing_; }
  [[nodiscard]] int dims() const { return dims_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  // [table_width()] each for a row: as the kernels want them (kernels.h).
  [[nodiscard]] const float* cos(int64_t row) const { return cos_.data() + row * table_width(); }
  [[nodiscard]] const float* sin(int64_t row) const { return sin_.data() + row * table_width(); }
  [[nodiscard]] int table_width() const {
    return pairing_ == RopePairing::halves ? dims_ / 2 : dims_;
  }

 private:
  RopePairing pairing_;
  int dims_;
  int64_t rows_ = 0;
  double magnitude_;
  std::vector<double> frequencies_;  // [dims / 2]
  AlignedBuffer<float> cos_;
  AlignedBuffer<float> sin_;
};

// Turns x[rows][row_stride], whose rows begin with heads · head_dim channels, in place.
// Precondition: angles.dims() <= head_dim.
void rope(Isa isa, const RopeAngles& angles, float* x, int heads, int head_dim, int64_t row_stride);

}  // namespace kvart
