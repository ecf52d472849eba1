// Times the matrix product on the shapes of two small models: one row (decode) against the
// machine's read bandwidth, 512 rows (prefill) in multiply-adds per cycle and core.
//
//   bench_matmul [--threads N] [--runs N]      prints one line a shape; medians
#include "model/ops/matmul.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "clock.h"

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

template <class Body>
double median_seconds(int threads, int runs, const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double begin = seconds_now(threads);
    body(i);
    seconds.push_back(seconds_now(threads) - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<size_t>(runs / 2)];
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
    const double seconds = time_rows(run, copies, 512);
    std::printf("  %9.0f us %5.1f MAC/cycle/core", seconds * 1e6,
                512.0 * static_cast<double>(count) / seconds / run.clock / run.pool.threads());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 2;
  int runs = 7;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--threads")
      threads = std::max(1, static_cast<int>(std::strtol(argv[i + 1], nullptr, 10)));
    if (std::string_view(argv[i]) == "--runs")
      runs = std::max(1, static_cast<int>(std::strtol(argv[i + 1], nullptr, 10)));
  }
  const Result<Isa> isa = chosen_isa();
  if (!isa.ok()) {
    std::fprintf(stderr, "%s\n", isa.error().message.c_str());
    return 1;
  }
  ThreadPool pool(threads);
  const Run run{pool, *isa, runs, cycles_per_second(), read_bytes_per_second(pool, runs)};
  std::printf("%s, %d threads, %.2f GHz, reads %.1f GB/s; medians of %d\n", isa_name(*isa).data(),
              threads, run.clock * 1e-9, run.bandwidth * 1e-9, runs);
  std::printf("%-23s %14s  bytes a weight  one row: time, rate, share of reads  512 rows\n", "",
              "");
  for (const Shape& shape : shapes) time_shape(run, shape);
  return 0;
}
