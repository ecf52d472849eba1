// Attention on the GPU: the card's read bandwidth, then for each policy and shape the time of one
// layer's decode attention, the cache bytes that it reads (codes, scales and open blocks), TB/s and
// the share of the bandwidth; then sealing and prefill. One graph holds as many layers as make the
// data larger than the cache of the device several times over; medians of its runs.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_cache.h"
#include "cuda/read_ceiling.h"
#include "kvart/format.h"
#include "results.h"

namespace kvart {
namespace {

constexpr int runs = 60;
constexpr size_t working_set_bytes = size_t{1} << 30;

// Microseconds of what `work` puts into a stream, as a graph: the median.
double graph_us(const std::function<void(cudaStream_t)>& work) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda_or_exit(cudaStreamCreate(&stream));
  cuda_or_exit(cudaEventCreate(&begin));
  cuda_or_exit(cudaEventCreate(&end));
  cuda_or_exit(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work(stream);
  cuda_or_exit(cudaStreamEndCapture(stream, &graph));
  cuda_or_exit(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times_us;
  for (int i = 0; i < runs + 5; ++i) {
    cuda_or_exit(cudaEventRecord(begin, stream));
    cuda_or_exit(cudaGraphLaunch(exec, stream));
    cuda_or_exit(cudaEventRecord(end, stream));
    cuda_or_exit(cudaStreamSynchronize(stream));
    float ms = 0;
    cuda_or_exit(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times_us.push_back(1e3 * ms);
  }
  cuda_or_exit(cudaGraphExecDestroy(exec));
  cuda_or_exit(cudaGraphDestroy(graph));
  cuda_or_exit(cudaEventDestroy(begin));
  cuda_or_exit(cudaEventDestroy(end));
  cuda_or_exit(cudaStreamDestroy(stream));
  return median(times_us);
}

// TB/s of the best of some grids.
double read_ceiling(int multiprocessors) {
  double best = 0;
  for (const size_t bytes : {size_t{1} << 30, size_t{4} << 30}) {
    const DeviceBytes data(bytes);
    const DeviceBytes out(sizeof(unsigned));
    cuda_or_exit(cudaMemset(data.data(), 1, bytes));
    for (const int blocks : {2, 4, 8, 16}) {
      const double us = graph_us([&](cudaStream_t stream) {
        cuda_or_exit(launch_read(data.data(), bytes, reinterpret_cast<unsigned*>(out.data()),
                                 blocks * multiprocessors, stream));
      });
      best = std::max(best, 1e-6 * static_cast<double>(bytes) / us);
    }
  }
  return best;
}

struct BenchShape {
  std::string name;
  std::vector<int64_t> tokens;
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
};

std::vector<BenchShape> bench_shapes() {
  const auto batch = [](int count, int64_t tokens) { return std::vector<int64_t>(count, tokens); };
  std::vector<int64_t> skewed = batch(63, 1024);
  skewed.push_back(131072);
  return {{"32 x 8k", batch(32, 8192)},
          {"13 x 32k", batch(13, 32768)},
          {"64 x 4k", batch(64, 4096)},
          {"128 x 1k", batch(128, 1024)},
          {"1 x 32k", batch(1, 32768)},
          {"1 x 128k", batch(1, 131072)},
          {"1 x 128k + 63 x 1k", skewed},
          {"64/8 heads 128 x 2k", batch(128, 2048), 64, 8, 128},
          {"9/3 heads d 64, 128 x 4k", batch(128, 4096), 9, 3, 64},
          {"14/2 heads d 64, 128 x 4k", batch(128, 4096), 14, 2, 64}};
}

// What a layer's attention reads of the cache.
double cache_bytes(const BenchShape& shape, const LayerFormats& formats, int sink_blocks) {
  double bytes = 0;
  const double open_token = 4.0 * shape.head_dim;
  for (const int64_t tokens : shape.tokens) {
    const int64_t own = (tokens - 1) / block_tokens;
    const int64_t sinks = std::min<int64_t>(sink_blocks, own);
    bytes += static_cast<double>(own - sinks) *
             static_cast<double>(formats.k->side_bytes(shape.head_dim) +
                                 formats.v->side_bytes(shape.head_dim));
    bytes += open_token * static_cast<double>(sinks * block_tokens + tokens - own * block_tokens);
  }
  return bytes * shape.kv_heads;
}

struct Measured {
  double us;
  double bytes;
};

// Layers with one policy, and attention on them. K and V are random; so are queries, halves of
// either sign between 2^-7 and 2.
class Layers {
 public:
  Layers(const BenchShape& shape, const Policy& policy, int layers, int max_rows,
         CudaKernels kernels, const CudaDevice& device, bool slots_everywhere = false)
      : shape_(shape),
        formats_(or_exit(policy.resolve(1))[0]),
        cache_(std::vector<LayerShape>(layers, {shape.kv_heads, shape.head_dim, 0}),
               std::vector<LayerFormats>(layers, formats_), policy.sink_blocks, shape.tokens,
               slots_everywhere),
        layers_(layers),
        limits_(limits(shape, max_rows)),
        workspace_(CudaAttention::workspace_bytes(cache_.page_layout(), limits_, device)),
        attention_(or_exit(CudaAttention::create(&cache_, limits_, workspace_.data(), kernels))),
        kv_(sizeof(uint16_t) * values(max_rows, shape.kv_heads)),
        q_(sizeof(uint16_t) * values(max_rows, shape.q_heads)),
        out_(sizeof(uint16_t) * values(max_rows, shape.q_heads)) {
    random_halves(kv_, values(max_rows, shape.kv_heads));
    random_halves(q_, values(max_rows, shape.q_heads));
    params_.q_heads = shape.q_heads;
    params_.scale = 0.088f;
  }

  // A sealed block of every layer, then all like it.
  void fill() {
    const auto longest = static_cast<SequenceId>(
        std::max_element(shape_.tokens.begin(), shape_.tokens.end()) - shape_.tokens.begin());
    const auto last = static_cast<int64_t>(cache_.blocks(longest, 0).size()) - 1;
    plan({{longest, last * block_tokens, block_tokens}});
    append(nullptr);
    cache_.repeat(cache_.blocks(longest, 0)[last]);
  }
  void plan(const std::vector<SequenceStep>& steps) {
    or_exit(attention_->plan(steps, nullptr));
    cuda_or_exit(cudaDeviceSynchronize());
  }
  void append(cudaStream_t stream) {
    for (int layer = 0; layer < layers_; ++layer) {
      or_exit(attention_->append(layer, Element::f16, kv_.data(), kv_.data(), stream));
    }
  }
  void attend(cudaStream_t stream) {
    for (int layer = 0; layer < layers_; ++layer) {
      or_exit(attention_->attend(layer, params_, Element::f16, q_.data(), out_.data(), stream));
    }
  }
  [[nodiscard]] const LayerFormats& formats() const { return formats_; }
  [[nodiscard]] int count() const { return layers_; }

 private:
  static CudaLimits limits(const BenchShape& shape, int max_rows) {
    CudaLimits limits{static_cast<int>(shape.tokens.size()), max_rows, 0, shape.q_heads};
    for (const int64_t tokens : shape.tokens) limits.max_blocks += tokens / block_tokens + 1;
    return limits;
  }
  [[nodiscard]] size_t values(int rows, int heads) const {
    return static_cast<size_t>(rows) * heads * shape_.head_dim;
  }
  static void random_halves(const DeviceBytes& to, size_t count) {
    std::vector<uint16_t> halves(count);
    std::mt19937 random(3);
    for (uint16_t& x : halves) x = static_cast<uint16_t>((random() & 0x9fff) | 0x2000);
    cuda_or_exit(
        cudaMemcpy(to.data(), halves.data(), sizeof(uint16_t) * count, cudaMemcpyHostToDevice));
  }

  BenchShape shape_;
  LayerFormats formats_;
  DeviceCache cache_;
  int layers_;
  CudaLimits limits_;
  DeviceBytes workspace_;
  std::unique_ptr<CudaAttention> attention_;
  DeviceBytes kv_;
  DeviceBytes q_;
  DeviceBytes out_;
  AttentionParams params_;
};

Measured measure(const BenchShape& shape, const Policy& policy, CudaKernels kernels,
                 const CudaDevice& device) {
  const double bytes = cache_bytes(shape, or_exit(policy.resolve(1))[0], policy.sink_blocks);
  const int count =
      std::clamp(static_cast<int>(static_cast<double>(working_set_bytes) / bytes) + 1, 1, 32);
  const int max_rows = std::max<int>(block_tokens, static_cast<int>(shape.tokens.size()));
  Layers layers(shape, policy, count, max_rows, kernels, device);
  layers.fill();
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < shape.tokens.size(); ++i) {
    steps.push_back({static_cast<SequenceId>(i), shape.tokens[i] - 1, 1});
  }
  layers.plan(steps);
  return {graph_us([&](cudaStream_t stream) { layers.attend(stream); }) / count, bytes};
}

// Sealing a block of each of many sequences, and the bytes that it reads and writes: what appending
// 64 tokens takes longer than appending 63, which fill nothing.
Measured measure_seal(const Policy& policy, const CudaDevice& device) {
  constexpr int sequences = 256;
  const BenchShape shape{"", std::vector<int64_t>(sequences, 2 * block_tokens)};
  Layers layers(shape, policy, 4, sequences * block_tokens, CudaKernels::fastest, device);
  const auto append_us = [&](int tokens) {
    std::vector<SequenceStep> steps(sequences);
    for (int i = 0; i < sequences; ++i) steps[i] = {i, block_tokens, tokens};
    layers.plan(steps);
    return graph_us([&](cudaStream_t stream) { layers.append(stream); }) / layers.count();
  };
  const double us = append_us(block_tokens) - append_us(block_tokens - 1);
  const double block_bytes = 4.0 * block_tokens * shape.head_dim +
                             static_cast<double>(layers.formats().k->side_bytes(shape.head_dim) +
                                                 layers.formats().v->side_bytes(shape.head_dim));
  return {us, block_bytes * sequences * shape.kv_heads};
}

// Microseconds of a prompt's attention, all of it in one step.
double measure_prefill(const BenchShape& shape, const Policy& policy, const CudaDevice& device) {
  const auto tokens = static_cast<int>(shape.tokens[0]);
  Layers layers(shape, policy, 1, tokens, CudaKernels::fastest, device, true);
  layers.plan({{0, 0, tokens}});
  layers.append(nullptr);
  return graph_us([&](cudaStream_t stream) { layers.attend(stream); });
}

void print_seal(const std::vector<std::string>& policies, const CudaDevice& device) {
  std::printf("%-26s %-8s %9s %9s %7s\n", "256 blocks, 8 heads", "policy", "us", "GB", "TB/s");
  for (const std::string& name : policies) {
    const Measured m = measure_seal(or_exit(parse_policy(name)).policy, device);
    std::printf("%-26s %-8s %9.1f %9.4f %7.2f\n", "seal", name.c_str(), m.us, 1e-9 * m.bytes,
                1e-6 * m.bytes / m.us);
    std::fflush(stdout);
  }
}

void print_prefill(const std::vector<std::string>& policies, const CudaDevice& device) {
  std::printf("%-26s %-8s %9s %9s\n", "32/8 heads, causal", "policy", "us", "TFLOP/s");
  for (const int64_t tokens : {2048, 16384}) {
    const BenchShape shape{"", {tokens}};
    for (const std::string& name : policies) {
      const double us = measure_prefill(shape, or_exit(parse_policy(name)).policy, device);
      const double flop =
          2.0 * static_cast<double>(tokens * (tokens + 1)) * shape.q_heads * shape.head_dim;
      std::printf("prefill %-18lld %-8s %9.1f %9.1f\n", static_cast<long long>(tokens),
                  name.c_str(), us, 1e-6 * flop / us);
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  CLI::App app("Attention on the GPU, beside the card's read bandwidth");
  std::vector<std::string> policies = preset_names();
  std::vector<size_t> chosen;
  bool plain = false;
  bool seal = false;
  bool prefill = false;
  app.add_option("--policies", policies, "presets or formats");
  app.add_option("--shapes", chosen, "numbers of shapes, the first is 0; all");
  app.add_flag("--plain", plain, "the obvious kernel");
  app.add_flag("--seal", seal, "sealing instead of decode attention");
  app.add_flag("--prefill", prefill, "prefill attention instead");
  CLI11_PARSE(app, argc, argv);
  const CudaDevice device = or_exit(cuda_device());
  if (seal) print_seal(policies, device);
  if (prefill) print_prefill(policies, device);
  if (seal || prefill) return 0;
  const std::vector<BenchShape> shapes = bench_shapes();
  if (chosen.empty()) {
    for (size_t i = 0; i < shapes.size(); ++i) chosen.push_back(i);
  }
  const double ceiling = read_ceiling(device.multiprocessors);
  std::printf("%s, %d multiprocessors, reads %.2f TB/s\n", device.name.c_str(),
              device.multiprocessors, ceiling);
  std::printf("%-26s %-8s %9s %9s %7s %9s\n", "shape", "policy", "us", "GB", "TB/s", "of reads");
  for (const size_t index : chosen) {
    if (index >= shapes.size()) continue;
    const BenchShape& shape = shapes[index];
    for (const std::string& name : policies) {
      const Policy policy = or_exit(parse_policy(name)).policy;
      const Measured m =
          measure(shape, policy, plain ? CudaKernels::plain : CudaKernels::fastest, device);
      const double rate = 1e-6 * m.bytes / m.us;
      std::printf("%-26s %-8s %9.1f %9.4f %7.2f %8.1f%%\n", shape.name.c_str(), name.c_str(), m.us,
                  1e-9 * m.bytes, rate, 100 * rate / ceiling);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvart

int main(int argc, char** argv) {
  return kvart::run(argc, argv);
}
