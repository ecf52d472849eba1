// Times the matrix product on the shapes of two small models: one row (decode) against the
// machine's read bandwidth, 512 rows (prefill) in multiply-adds per cycle and core.
//
// With --peers also against OpenBLAS and oneDNN, where they were built in, in rounds that
// alternate.
// `--help` lists the options.
#include "model/ops/matmul.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"
#include "kvart/cores.h"
#include "matmul_peers.h"
#include "results.h"

namespace {

using namespace kvart;  // NOLINT(google-build-using-namespace)

struct Shape {
  const char* what;
  WeightType type;
  int64_t rows;
  int64_t columns;
  bool prefill;  // a head is only asked for one row
};

constexpr Shape shapes[] = {
    {"SmolLM2 gate, up", WeightType::Q4_1, 1536, 576, true},
    {"SmolLM2 down", WeightType::Q4_1, 576, 1536, true},
    {"SmolLM2 q, o", WeightType::Q4_1, 576, 576, true},
    {"SmolLM2 k, v", WeightType::Q4_1, 192, 576, true},
    {"SmolLM2 head", WeightType::Q8_0, 49152, 576, false},
    {"Qwen2.5 gate, up", WeightType::Q5_0, 4864, 896, true},
    {"Qwen2.5 down", WeightType::Q4_K, 896, 4864, true},
    {"Qwen2.5 down", WeightType::Q6_K, 896, 4864, true},
    {"Qwen2.5 v", WeightType::Q8_0, 128, 896, true},
    {"Qwen2.5 head", WeightType::Q8_0, 151936, 896, false},
    {"4096 x 1024", WeightType::Q4_0, 4096, 1024, true},
    {"4096 x 1024", WeightType::Q5_1, 4096, 1024, true},
    {"4096 x 1024", WeightType::Q8_0, 4096, 1024, true},
    {"4096 x 1024", WeightType::Q4_K, 4096, 1024, true},
    {"4096 x 1024", WeightType::Q5_K, 4096, 1024, true},
    {"4096 x 1024", WeightType::Q6_K, 4096, 1024, true},
    {"4096 x 1024", WeightType::F16, 4096, 1024, true},
    {"4096 x 1024", WeightType::BF16, 4096, 1024, true},
    {"4096 x 1024", WeightType::F32, 4096, 1024, true},
};

// Weights of a model come from memory at every step: so many bytes of copies are gone through.
constexpr size_t footprint_bytes = size_t{160} << 20;
constexpr int64_t many_rows = 512;  // of a prefill

template <class Body>
double median_seconds(int threads, int runs, const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double begin = seconds_now(threads);
    body(i);
    seconds.push_back(seconds_now(threads) - begin);
  }
  return median(std::move(seconds));
}

double read_bytes_per_second(ThreadPool& pool, int runs) {
  constexpr int64_t parts = 16;
  const std::vector<uint64_t> data(footprint_bytes / 8, 1);
  std::vector<uint64_t> sums(parts * 16);
  const auto part_size = static_cast<int64_t>(data.size()) / parts;
  const double seconds = median_seconds(pool.threads(), runs, [&](int) {
    pool.run(parts, [&](int part, int) {
      uint64_t lanes[8] = {};
      for (int64_t i = part * part_size; i < (part + 1) * part_size; i += 8) {
        for (int64_t lane = 0; lane < 8; ++lane) {
          lanes[lane] += data[static_cast<size_t>(i + lane)];
        }
      }
      for (const uint64_t lane : lanes) sums[static_cast<size_t>(part) * 16] += lane;
    });
  });
  return static_cast<double>(footprint_bytes) / seconds;
}

std::vector<uint8_t> some_weights(WeightType type, size_t count) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(weight_bytes(type, count));
  const WeightTypeInfo info = weight_type_info(type);
  for (size_t i = 0; i < bytes.size(); ++i) {
    // No byte reaches 0x40, so that whatever is read as a scale is an ordinary number; plain
    // weights have the exponents of numbers about 1, for subnormal ones are slow.
    const bool exponent =
        info.block_values == 1 && (i + 1) % static_cast<size_t>(info.block_bytes) == 0;
    bytes[i] = static_cast<uint8_t>(exponent ? 0x3c | (random() & 3) : random() & 0x3f);
  }
  return bytes;
}

struct Run {
  ThreadPool& pool;
  Isa isa;
  int runs;
  double clock;
  double bandwidth;
};

double time_rows(const Run& run, const std::vector<PackedMatrix>& copies, int64_t rows) {
  const int64_t columns = copies[0].columns();
  std::vector<float> x(static_cast<size_t>(rows * columns));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  std::vector<float> y(static_cast<size_t>(rows * copies[0].rows()));
  QuantizedRows quantized;
  const size_t per_run = rows == 1 ? copies.size() : 1;
  size_t next = 0;
  const double seconds = median_seconds(run.pool.threads(), run.runs, [&](int) {
    for (size_t i = 0; i < per_run; ++i) {
      quantized.assign(run.pool, run.isa, x.data(), rows, columns, columns);
      matmul(run.pool, run.isa, copies[next++ % copies.size()], quantized, nullptr, y.data(),
             copies[0].rows());
    }
  });
  return seconds / static_cast<double>(per_run);
}

void time_shape(const Run& run, const Shape& shape) {
  const auto count = static_cast<size_t>(shape.rows * shape.columns);
  const std::vector<uint8_t> bytes = some_weights(shape.type, count);
  std::vector<PackedMatrix> copies;
  do {
    copies.push_back(
        PackedMatrix::pack(shape.type, shape.rows, shape.columns, bytes, &run.pool).value());
  } while (copies.size() * copies[0].bytes() < footprint_bytes);
  const auto matrix_bytes = static_cast<double>(copies[0].bytes());
  const double decode = time_rows(run, copies, 1);
  std::printf("%-17s %-5s %6ld x %-5ld %5.3f -> %5.3f B  %9.1f us %6.2f GB/s %4.0f %%", shape.what,
              weight_type_info(shape.type).name.data(), static_cast<long>(shape.rows),
              static_cast<long>(shape.columns),
              static_cast<double>(bytes.size()) / static_cast<double>(count),
              matrix_bytes / static_cast<double>(count), decode * 1e6, matrix_bytes / decode * 1e-9,
              100.0 * matrix_bytes / decode / run.bandwidth);
  if (shape.prefill) {
    const double seconds = time_rows(run, copies, many_rows);
    std::printf("  %9.0f us %5.1f MAC/cycle/core", seconds * 1e6,
                many_rows * static_cast<double>(count) / seconds / run.clock / run.pool.threads());
  }
  std::printf("\n");
  std::fflush(stdout);
}

// What the comparison goes through: the largest matrices of two models, and one between them.
constexpr Shape compared_shapes[] = {
    {"SmolLM2 gate, up", WeightType::F32, 1536, 576, true},
    {"SmolLM2 down", WeightType::F32, 576, 1536, true},
    {"4096 x 1024", WeightType::F32, 4096, 1024, true},
    {"SmolLM2 head", WeightType::F32, 49152, 576, false},
};
constexpr WeightType compared_types[] = {WeightType::Q4_1, WeightType::Q8_0, WeightType::F16,
                                         WeightType::BF16, WeightType::F32};

// One way to multiply, in one comparison.
struct Contestant {
  std::string name;
  double bytes_per_weight;
  double prepare_seconds;  // of a copy, from the file's bytes or from f32
  size_t copies;           // that together exceed the caches
  std::function<void(size_t copy, float* y)> run;
  std::vector<double> seconds;  // of one product, of each round
};

// All ways to multiply the same activations with a matrix of one shape.
class Comparison {
 public:
  Comparison(const Run& run, const Shape& shape, int64_t rows)
      : run_(run), shape_(shape), rows_(rows), x_(rows * shape.columns), y_(rows * shape.rows) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& value : x_) value = normal(random);
    const std::vector<uint8_t> bytes = some_weights(WeightType::F32, weights());
    w_.resize(weights());
    std::memcpy(w_.data(), bytes.data(), bytes.size());
  }

  void add_own(WeightType type) {
    const std::vector<uint8_t> bytes = some_weights(type, weights());
    std::vector<PackedMatrix> copies;
    double shortest = 1e9;
    do {
      const double begin = seconds_now(2);
      copies.push_back(
          PackedMatrix::pack(type, shape_.rows, shape_.columns, bytes, &run_.pool).value());
      shortest = std::min(shortest, seconds_now(2) - begin);
    } while (copies.size() < copies_of(copies[0].bytes()));
    const double size = static_cast<double>(copies[0].bytes()) / static_cast<double>(weights());
    own_.push_back(std::move(copies));
    const std::vector<PackedMatrix>& own = own_.back();
    all_.push_back({std::string("Kvart ") + weight_type_info(type).name.data(),
                    size,
                    shortest,
                    own.size(),
                    [this, &own](size_t copy, float* y) {
                      quantized_.assign(run_.pool, run_.isa, x_.data(), rows_, shape_.columns,
                                        shape_.columns);
                      matmul(run_.pool, run_.isa, own[copy], quantized_, nullptr, y, shape_.rows);
                    },
                    {}});
  }

  // False: the library can't.
  bool add_peer(Peer& peer) {
    const Product product{rows_, shape_.rows, shape_.columns, x_.data(), w_.data()};
    if (!peer.prepare(product, 1)) return false;
    const size_t copies = copies_of(peer.bytes());
    if (copies > 1 && !peer.prepare(product, copies)) return false;
    all_.push_back({peer.name(),
                    static_cast<double>(peer.bytes()) / static_cast<double>(weights()),
                    peer.prepare_seconds(),
                    copies,
                    [&peer](size_t copy, float* y) { peer.run(copy, y); },
                    {}});
    check(peer);
    return true;
  }

  void run_rounds() {
    for (int round = 0; round < run_.runs; ++round) {
      clocks_.push_back(cycles_per_second());
      for (Contestant& one : all_) {
        // The libraries' threads spin for a while after their work.
        if (run_.pool.threads() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
        const size_t products = rows_ == 1 ? one.copies : 1;
        one.run(0, y_.data());
        const double begin = seconds_now(run_.pool.threads());
        for (size_t i = 0; i < products; ++i) one.run(i, y_.data());
        one.seconds.push_back((seconds_now(run_.pool.threads()) - begin) /
                              static_cast<double>(products));
      }
    }
  }

  void print() const {
    const size_t own = std::size(compared_types);
    std::printf("%-17s %ld x %ld, %ld row%s, %d thread%s\n", shape_.what,
                static_cast<long>(shape_.rows), static_cast<long>(shape_.columns),
                static_cast<long>(rows_), rows_ == 1 ? "" : "s", run_.pool.threads(),
                run_.pool.threads() == 1 ? "" : "s");
    std::printf("  %-13s %8s %9s %11s %9s   time as a multiple of Kvart's:", "", "B/weight",
                "making ms", "us", rows_ == 1 ? "GB/s" : "MAC/cycle");
    for (size_t i = 0; i < own; ++i) std::printf(" %5s", all_[i].name.c_str() + 6);
    std::printf("\n");
    for (const Contestant& one : all_) {
      const double seconds = median(one.seconds);
      const double rate = rows_ == 1 ? one.bytes_per_weight * static_cast<double>(weights()) * 1e-9
                                     : static_cast<double>(rows_) * static_cast<double>(weights()) /
                                           median(clocks_) / run_.pool.threads();
      std::printf("  %-13s %8.3f %9.2f %11.1f %9.2f %33s", one.name.c_str(), one.bytes_per_weight,
                  1e3 * one.prepare_seconds, 1e6 * seconds, rate / seconds, "");
      for (size_t i = 0; i < own; ++i) std::printf(" %5.2f", seconds / median(all_[i].seconds));
      std::printf("\n");
    }
    if (rows_ == 1) {
      std::printf("  f32 from the packed %s: %.2f ms\n", all_[0].name.c_str() + 6,
                  1e3 * expanding_seconds(own_.front()[0]));
    }
    std::fflush(stdout);
  }

 private:
  // What a library that takes f32 needs before it can begin, with one thread.
  double expanding_seconds(const PackedMatrix& packed) const {
    std::vector<float> out(weights());
    return median_seconds(1, run_.runs, [&](int) {
      for (int64_t row = 0; row < packed.rows(); ++row) {
        packed.decode_row(row, out.data() + row * packed.columns());
      }
    });
  }
  [[nodiscard]] size_t weights() const {
    return static_cast<size_t>(shape_.rows) * static_cast<size_t>(shape_.columns);
  }
  [[nodiscard]] size_t copies_of(size_t bytes) const {
    return rows_ == 1 ? footprint_bytes / bytes + 1 : 1;
  }

  // The peer multiplies what Kvart's f32 matrix, the last of its own, multiplies.
  void check(const Peer& peer) {
    std::vector<float> right(y_.size());
    all_[own_.size() - 1].run(0, right.data());
    all_.back().run(0, y_.data());
    double wrong = 0;
    double norm = 0;
    for (size_t i = 0; i < y_.size(); ++i) {
      const double difference = double{y_[i]} - double{right[i]};
      wrong += difference * difference;
      norm += double{right[i]} * double{right[i]};
    }
    const double error = std::sqrt(wrong / norm);
    if (rows_ > 1) {
      std::printf("%s: %s, error %.1e\n", peer.name().c_str(), peer.implementation().c_str(),
                  error);
    }
    if (error <= peer.error_bound()) return;
    std::fprintf(stderr, "%s: the product is wrong (error %.1e)\n", peer.name().c_str(), error);
    std::exit(1);
  }

  const Run& run_;
  const Shape& shape_;
  int64_t rows_;
  std::vector<float> x_, w_, y_;
  QuantizedRows quantized_;
  std::list<std::vector<PackedMatrix>> own_;
  std::vector<Contestant> all_;
  std::vector<double> clocks_;  // of each round: others' load changes it
};

void compare(const Run& run) {
  std::vector<std::unique_ptr<Peer>> peers = all_peers(run.pool.threads());
  for (const Shape& shape : compared_shapes) {
    for (const int64_t rows : {int64_t{1}, many_rows}) {
      if (rows > 1 && !shape.prefill) continue;
      Comparison comparison(run, shape, rows);
      for (const WeightType type : compared_types) comparison.add_own(type);
      std::erase_if(peers, [&](const auto& peer) { return !comparison.add_peer(*peer); });
      comparison.run_rounds();
      comparison.print();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 2;
  int runs = 7;
  bool peers = false;
  CLI::App app("Times matrix products with packed weights");
  app.option_defaults()->always_capture_default();
  app.add_option("--threads", threads, "Threads; 0: all cores");
  app.add_option("--runs", runs, "Runs of which the median counts")->check(CLI::PositiveNumber);
  app.add_flag("--peers", peers,
               "Compare with OpenBLAS and oneDNN instead, those of the two that CMake found "
               "(Debian packages libopenblas-dev, libdnnl-dev)");
  CLI11_PARSE(app, argc, argv);
  if (threads <= 0) threads = usable_cores();
  const Result<Isa> isa = chosen_isa();
  if (!isa.ok()) {
    std::fprintf(stderr, "%s\n", isa.error().message.c_str());
    return 1;
  }
  ThreadPool pool(threads);
  const Run run{pool, *isa, runs, cycles_per_second(), read_bytes_per_second(pool, runs)};
  std::printf("%s, %d threads, %.2f GHz, reads %.1f GB/s; medians of %d\n", isa_name(*isa).data(),
              threads, run.clock * 1e-9, run.bandwidth * 1e-9, runs);
  if (peers) {
    compare(run);
    return 0;
  }
  std::printf("%-23s %14s  bytes a weight  one row: time, rate, share of reads  512 rows\n", "",
              "");
  for (const Shape& shape : shapes) time_shape(run, shape);
  return 0;
}
