// Other libraries' matrix products, for bench_matmul to compare with: OpenBLAS and oneDNN, each
// where CMake found it. Their weights lie in memory as they want them: f32, or 8-bit integers with
// one scale for each output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#ifdef KVART_BENCH_OPENBLAS
#include <cblas.h>
#endif
#ifdef KVART_BENCH_ONEDNN
#include <dlfcn.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "clock.h"

namespace kvart {

// A product y = x * w^T: x [rows][k], w [n][k], y [rows][n], all f32 where the caller sees them.
struct Product {
  int64_t rows;
  int64_t n;
  int64_t k;
  const float* x;
  const float* w;
};

// One library's product with one type of weights.
class Peer {
 public:
  Peer(std::string name, double error_bound) : name_(std::move(name)), error_bound_(error_bound) {}
  virtual ~Peer() = default;

  // Takes the activations, and so many copies of the weights as the library wants them; what was
  // there before goes. False, after a line that says so: the library can't, on this processor.
  virtual bool prepare(const Product& product, size_t copies) = 0;
  // The product with one copy. The activations are in the library's type already.
  virtual void run(size_t copy, float* y) = 0;
  [[nodiscard]] virtual size_t bytes() const = 0;  // of a copy
  [[nodiscard]] virtual std::string implementation() const = 0;

  [[nodiscard]] const std::string& name() const { return name_; }
  // Seconds that turning the f32 weights into a copy took, the shortest.
  [[nodiscard]] double prepare_seconds() const { return prepare_seconds_; }
  // Of the norm of what is wrong over the norm of the product.
  [[nodiscard]] double error_bound() const { return error_bound_; }

 protected:
  template <class Work>
  void time_preparing(size_t copies, const Work& work) {
    prepare_seconds_ = copies == 0 ? 0 : 1e9;
    for (size_t i = 0; i < copies; ++i) {
      const double begin = seconds_now(2);
      work();
      prepare_seconds_ = std::min(prepare_seconds_, seconds_now(2) - begin);
    }
  }

 private:
  std::string name_;
  double error_bound_;
  double prepare_seconds_ = 0;
};

#ifdef KVART_BENCH_OPENBLAS
class OpenBlasPeer final : public Peer {
 public:
  explicit OpenBlasPeer(int threads) : Peer("OpenBLAS f32", 1e-5) {
    openblas_set_num_threads(threads);
  }

  bool prepare(const Product& product, size_t copies) override {
    rows_ = static_cast<blasint>(product.rows);
    n_ = static_cast<blasint>(product.n);
    k_ = static_cast<blasint>(product.k);
    x_.assign(product.x, product.x + product.rows * product.k);
    // The f32 weights are what it multiplies with: a copy is for the benchmark, not for the
    // library.
    copies_.assign(copies, std::vector<float>(product.w, product.w + product.n * product.k));
    return true;
  }
  void run(size_t copy, float* y) override {
    const float* w = copies_[copy].data();
    if (rows_ == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n_, k_, 1, w, k_, x_.data(), 1, 0, y, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows_, n_, k_, 1, x_.data(), k_, w, k_,
                  0, y, n_);
    }
  }
  [[nodiscard]] size_t bytes() const override { return copies_[0].size() * sizeof(float); }
  [[nodiscard]] std::string implementation() const override { return openblas_get_corename(); }

 private:
  blasint rows_ = 0, n_ = 0, k_ = 0;
  std::vector<std::vector<float>> copies_;
  std::vector<float> x_;
};
#endif

#ifdef KVART_BENCH_ONEDNN
class OneDnnPeer final : public Peer {
 public:
  using Type = dnnl::memory::data_type;
  using Dims = dnnl::memory::dims;

  OneDnnPeer(const std::string& name, Type x_type, Type w_type, double error_bound)
      : Peer(name, error_bound), x_type_(x_type), w_type_(w_type) {}

  // Through the symbol, so that whichever OpenMP oneDNN was linked with is set. False: there is
  // none.
  static bool set_threads(int threads) {
    using Set = void (*)(int);
    const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set != nullptr) set(threads);
    return set != nullptr;
  }

  bool prepare(const Product& product, size_t copies) override try {
    copies_.clear();
    make_primitive(product);
    take_activations(product);
    time_preparing(copies, [&] { copies_.push_back(packed(product)); });
    y_ = dnnl::memory(primitive_.dst_desc(), engine_, DNNL_MEMORY_NONE);
    return true;
  } catch (const dnnl::error& error) {
    std::printf("%s: not on this processor (%s)\n", name().c_str(), error.what());
    return false;
  }
  void run(size_t copy, float* y) override {
    y_.set_data_handle(y);
    matmul_.execute(stream_,
                    {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, copies_[copy]}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }
  [[nodiscard]] size_t bytes() const override {
    return copies_[0].get_desc().get_size() + (integers() ? scales_.size() * sizeof(float) : 0);
  }
  [[nodiscard]] std::string implementation() const override { return primitive_.impl_info_str(); }

 private:
  [[nodiscard]] bool integers() const { return w_type_ == Type::s8; }
  [[nodiscard]] int zero_point() const { return x_type_ == Type::u8 ? 128 : 0; }

  // oneDNN adds pairs of 8-bit products in 16 bits where the processor has no instruction that adds
  // them in 32, so that weights of 8 bits overflow; its documentation wants them in 7.
  static constexpr float weight_steps = 63;

  // One scale for all activations, one for each output's weights.
  void make_primitive(const Product& product) {
    const auto [rows, n, k, x, w] = product;
    dnnl::primitive_attr attributes;
    if (integers()) {
      x_scale_ = largest(x, rows * k) / 127;
      scales_.resize(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) scales_[i] = x_scale_ * largest(w + i * k, k) / weight_steps;
      attributes.set_output_scales(1 << 1, scales_);
      if (zero_point() != 0) attributes.set_zero_points(DNNL_ARG_SRC, 0, {zero_point()});
    }
    const dnnl::matmul::desc description(
        dnnl::memory::desc(Dims{rows, k}, x_type_, Dims{k, 1}),
        dnnl::memory::desc(Dims{k, n}, w_type_, dnnl::memory::format_tag::any),
        dnnl::memory::desc(Dims{rows, n}, Type::f32, Dims{n, 1}));
    primitive_ = dnnl::matmul::primitive_desc(description, attributes, engine_);
    matmul_ = dnnl::matmul(primitive_);
  }

  void take_activations(const Product& product) {
    const auto count = static_cast<size_t>(product.rows * product.k);
    std::vector<float> values(product.x, product.x + count);
    if (integers()) {
      for (float& value : values) {
        value = std::nearbyint(value / x_scale_) + static_cast<float>(zero_point());
      }
    }
    x_ = reordered({product.rows, product.k}, {product.k, 1}, values.data(), primitive_.src_desc());
  }

  dnnl::memory packed(const Product& product) {
    const auto [rows, n, k, x, w] = product;
    std::vector<float> codes;
    if (integers()) {
      codes.resize(static_cast<size_t>(n * k));
      for (int64_t i = 0; i < n; ++i) {
        const float inverse = x_scale_ / scales_[i];
        for (int64_t j = 0; j < k; ++j) codes[i * k + j] = std::nearbyint(w[i * k + j] * inverse);
      }
    }
    return reordered({k, n}, {1, k}, integers() ? codes.data() : w, primitive_.weights_desc());
  }

  dnnl::memory reordered(const Dims& sizes, const Dims& strides, const float* values,
                         const dnnl::memory::desc& wanted) {
    const dnnl::memory::desc plain(sizes, Type::f32, strides);
    // It is only read.
    dnnl::memory from(plain, engine_, const_cast<float*>(values));
    dnnl::memory to(wanted, engine_);
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
    return to;
  }

  static float largest(const float* values, int64_t count) {
    float found = 1e-30f;
    for (int64_t i = 0; i < count; ++i) found = std::max(found, std::fabs(values[i]));
    return found;
  }

  Type x_type_, w_type_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul::primitive_desc primitive_;
  dnnl::matmul matmul_;
  float x_scale_ = 1;
  std::vector<float> scales_;
  std::vector<dnnl::memory> copies_;
  dnnl::memory x_, y_;
};
#endif

// Those that were built in, set to `threads` threads; says on stdout what is missing.
inline std::vector<std::unique_ptr<Peer>> all_peers([[maybe_unused]] int threads) {
  std::vector<std::unique_ptr<Peer>> peers;
#ifdef KVART_BENCH_OPENBLAS
  peers.push_back(std::make_unique<OpenBlasPeer>(threads));
#else
  std::printf("OpenBLAS: not built in (Debian package libopenblas-dev)\n");
#endif
#ifdef KVART_BENCH_ONEDNN
  if (OneDnnPeer::set_threads(threads)) {
    using Type = dnnl::memory::data_type;
    peers.push_back(std::make_unique<OneDnnPeer>("oneDNN f32", Type::f32, Type::f32, 1e-5));
    peers.push_back(std::make_unique<OneDnnPeer>("oneDNN bf16", Type::bf16, Type::bf16, 0.01));
    peers.push_back(std::make_unique<OneDnnPeer>("oneDNN u8 s8", Type::u8, Type::s8, 0.05));
    peers.push_back(std::make_unique<OneDnnPeer>("oneDNN s8 s8", Type::s8, Type::s8, 0.05));
  } else {
    std::printf("oneDNN: without OpenMP, whose threads are what can be set here\n");
  }
#else
  std::printf("oneDNN: not built in (Debian package libdnnl-dev)\n");
#endif
  return peers;
}

}  // namespace kvart
