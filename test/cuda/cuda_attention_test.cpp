// Attention on the GPU against the oracle: every pair of formats, group and head sizes, windows,
// soft-caps, lengths around the edges of blocks, batches, types of elements, graphs.
#include "cuda_fixture.h"

namespace kvart {
namespace {

class CudaAttentionTest : public CudaTest {};

// Results are rounded to f16 or bf16, and so are some figures of the faster kernels.
double bound(Element type) {
  if (type == Element::f32) return 1e-5;
  return type == Element::f16 ? 2e-3 : 4e-3;
}

// Takes half of the tokens in one step, most of the others in short ones, and the last alone.
double run_case(const AttentionCase& c, int64_t tokens, CudaKernels kernels, uint64_t seed,
                Element kv = Element::f32, Element q = Element::f16) {
  SequenceData data = cuda_sequence(c, tokens, seed);
  if (kv != Element::f32) {  // what the oracle is given is what the kernels are
    for (auto* side : {&data.k, &data.v}) {
      for (std::vector<float>& x : *side) from_elements(kv, to_elements(kv, x), x.data());
    }
  }
  CudaRunner device(c, static_cast<int>(tokens), kernels, kv, q);
  AttentionRunner& runner = *device.runner;
  runner.add(data);
  const auto prompt = static_cast<int>(std::max<int64_t>(1, tokens - 3));
  if (prompt > 1) runner.step({{0, prompt / 2}}, Durability::speculative);
  for (int at = prompt / 2; at < prompt; at += 20) {
    runner.step({{0, std::min(20, prompt - at)}}, Durability::speculative);
  }
  runner.finish(0, 1);
  std::vector<int64_t> positions = {0, tokens / 3, tokens / 2, prompt - 1, tokens - 1};
  for (const int64_t edge : {62, 63, 64, 65, 127, 128}) {
    if (edge < tokens) positions.push_back(edge);
  }
  return worst_error(c, data, runner.out(0), positions);
}

TEST_F(CudaAttentionTest, EveryPairOfFormats) {
  uint64_t seed = 1;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const FormatInfo* k : formats()) {
      for (const FormatInfo* v : formats()) {
        AttentionCase c = AttentionCase::uniform(1, 2, 64, 3, formats()[0]->name);
        c.formats[0] = {k, v};
        c.sink_blocks = static_cast<int>(seed % 2);
        EXPECT_LT(run_case(c, 210, kernels, ++seed), bound(Element::f16))
            << k->name << " " << v->name << (kernels == CudaKernels::plain ? " plain" : "");
      }
    }
  }
}

TEST_F(CudaAttentionTest, EveryPresetManyLengths) {
  uint64_t seed = 1000;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const Preset& preset : presets()) {
      const AttentionCase c = AttentionCase::uniform(2, 2, 128, 4, preset.name);
      for (const int tokens : {1, 2, 17, 63, 64, 65, 127, 128, 129, 700}) {
        EXPECT_LT(run_case(c, tokens, kernels, ++seed), bound(Element::f16))
            << preset.name << " " << tokens << (kernels == CudaKernels::plain ? " plain" : "");
      }
    }
  }
}

TEST_F(CudaAttentionTest, GroupAndHeadSizes) {
  uint64_t seed = 2000;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const std::string_view policy : {"f16", "fp8", "int8", "int4"}) {
      for (int group = 1; group <= 16; ++group) {
        const AttentionCase c = AttentionCase::uniform(1, 2, 128, group, policy);
        EXPECT_LT(run_case(c, 200, kernels, ++seed), bound(Element::f16))
            << policy << " group " << group;
      }
      for (const int head_dim : {16, 48, 64, 112, 128, 256}) {
        const AttentionCase c = AttentionCase::uniform(1, 2, head_dim, 4, policy);
        EXPECT_LT(run_case(c, 200, kernels, ++seed), bound(Element::f16))
            << policy << " head_dim " << head_dim;
      }
    }
  }
}

TEST_F(CudaAttentionTest, WindowsAndSoftCaps) {
  uint64_t seed = 3000;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const std::string_view policy : {"fp8", "int8", "int4", "f16"}) {
      AttentionCase c = AttentionCase::uniform(3, 2, 128, 2, policy);
      for (const int window : {1, 2, 63, 64, 65, 100, 300, 1024}) {
        c.layers[1].window = window;  // between two layers that see everything
        c.soft_cap = window % 2 == 0 ? 0.0f : 5.0f;
        EXPECT_LT(run_case(c, 420, kernels, ++seed), bound(Element::f16))
            << policy << " window " << window;
      }
    }
  }
}

TEST_F(CudaAttentionTest, TypesOfElements) {
  uint64_t seed = 4000;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const std::string_view policy : {"int8", "int4"}) {
      const AttentionCase c = AttentionCase::uniform(2, 2, 128, 4, policy);
      for (const Element kv : {Element::f32, Element::f16, Element::bf16}) {
        for (const Element q : {Element::f32, Element::f16, Element::bf16}) {
          EXPECT_LT(run_case(c, 270, kernels, ++seed, kv, q), bound(q))
              << policy << " " << static_cast<int>(kv) << static_cast<int>(q);
        }
      }
    }
  }
}

// One long sequence, and many of unequal lengths, so that work is split and merged.
TEST_F(CudaAttentionTest, BatchesOfUnequalLengths) {
  uint64_t seed = 5000;
  for (const CudaKernels kernels : {CudaKernels::plain, CudaKernels::fastest}) {
    for (const std::string_view policy : {"f16", "fp8", "int8", "int4"}) {
      const AttentionCase c = AttentionCase::uniform(1, 2, 128, 8, policy);
      std::vector<SequenceData> sequences;
      for (const int tokens : {1, 64, 65, 3000, 200, 129, 16, 80}) {
        sequences.push_back(cuda_sequence(c, tokens + 2, ++seed));
      }
      CudaRunner device(c, 3100, kernels);
      AttentionRunner& runner = *device.runner;
      std::vector<AttentionRunner::Part> all;
      for (const SequenceData& data : sequences) {
        const int index = runner.add(data);
        runner.step({{index, static_cast<int>(data.tokens) - 2}}, Durability::speculative);
        all.push_back({index, 1});
      }
      runner.step(all);
      runner.step(all);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const std::vector<int64_t> positions = {sequences[i].tokens - 2, sequences[i].tokens - 1};
        EXPECT_LT(worst_error(c, sequences[i], runner.out(static_cast<int>(i)), positions),
                  bound(Element::f16))
            << policy << " " << sequences[i].tokens;
      }
    }
  }
}

// Enough work that the blocks of threads share the last of it as they come. Who does what differs
// from run to run, but not the result.
TEST_F(CudaAttentionTest, WorkIsSharedTheResultsAreTheSame) {
  uint64_t seed = 5400;
  for (const std::string_view policy : {"f16", "fp8", "int4", "k6v4", "kivi2"}) {
    constexpr int rows = 31;
    constexpr int64_t tokens = 8192 + rows;
    const AttentionCase c = AttentionCase::uniform(1, 4, 128, 2, policy);
    const SequenceData data = cuda_sequence(c, tokens, ++seed);
    CudaRunner device(c, 1024, CudaKernels::fastest);
    device.runner->add(data);
    for (int chunk = 0; chunk < 8; ++chunk) {
      device.runner->step({{0, 1024}}, Durability::speculative);
    }
    device.runner->step({{0, rows}}, Durability::speculative);
    const std::vector<int64_t> positions = {63, 1023, 4500, 8191, 8192, 8205, tokens - 1};
    EXPECT_LT(worst_error(c, data, device.runner->out(0), positions), bound(Element::f16))
        << policy;
    const size_t q_row = size_t{8} * 128;
    const std::vector<uint8_t> q =
        to_elements(Element::f16, std::span(data.q[0]).subspan((tokens - rows) * q_row));
    const DeviceArray<uint8_t> device_q{std::span(q)};
    std::vector<uint8_t> first;
    for (int run = 0; run < 20; ++run) {
      const DeviceArray<uint8_t> out(q.size());
      ASSERT_TRUE(device.attention->cuda().attend(0, c.params(0), Element::f16, device_q.data(),
                                                  out.data(), nullptr));
      const std::vector<uint8_t> bytes = out.read();
      if (run == 0) first = bytes;
      EXPECT_TRUE(bytes == first) << policy << " run " << run;
    }
  }
}

// In one step: prompts, their next parts from within a block on, a few tokens, and one.
TEST_F(CudaAttentionTest, StepsOfAllSizesTogether) {
  uint64_t seed = 5500;
  for (const std::string_view policy : {"f16", "fp8", "int4", "k6v4", "kivi4"}) {
    const AttentionCase c = AttentionCase::uniform(2, 2, 128, 3, policy);
    CudaRunner device(c, 1000, CudaKernels::fastest);
    AttentionRunner& runner = *device.runner;
    std::vector<SequenceData> sequences;
    for (const int tokens : {300, 250, 90, 200, 31}) {
      sequences.push_back(cuda_sequence(c, tokens, ++seed));
    }
    for (const SequenceData& data : sequences) runner.add(data);
    runner.step({{1, 100}, {2, 84}, {3, 199}}, Durability::speculative);
    runner.step({{0, 300}, {1, 150}, {2, 6}, {3, 1}, {4, 31}}, Durability::speculative);
    for (size_t i = 0; i < sequences.size(); ++i) {
      std::vector<int64_t> positions;
      for (const int64_t back : {1, 2, 6, 31, 65, 149}) {
        if (back <= sequences[i].tokens) positions.push_back(sequences[i].tokens - back);
      }
      EXPECT_LT(worst_error(c, sequences[i], runner.out(static_cast<int>(i)), positions),
                bound(Element::f16))
          << policy << " " << sequences[i].tokens;
    }
  }
}

// Steps that begin and end within blocks, so that one block is there sealed for some of a step's
// queries and in full precision for others.
double run_prompt(const AttentionCase& c, uint64_t seed, Element q = Element::f16) {
  constexpr int tokens = 520;
  const SequenceData data = cuda_sequence(c, tokens, seed);
  CudaRunner device(c, tokens, CudaKernels::fastest, Element::f16, q);
  AttentionRunner& runner = *device.runner;
  runner.add(data);
  for (const int count : {37, 300, 64, 119}) runner.step({{0, count}}, Durability::speculative);
  std::vector<int64_t> positions;
  for (int64_t at = 0; at < tokens; at += 9) positions.push_back(at);
  for (const int64_t edge : {63, 64, 127, 128, 336, 337, 400, 401, 511, 512, 519}) {
    positions.push_back(edge);
  }
  return worst_error(c, data, runner.out(0), positions);
}

TEST_F(CudaAttentionTest, PromptsOfEveryPreset) {
  uint64_t seed = 8000;
  for (const Preset& preset : presets()) {
    for (const int head_dim : {64, 128}) {
      for (const int group : {1, 4}) {
        const AttentionCase c = AttentionCase::uniform(1, 2, head_dim, group, preset.name);
        EXPECT_LT(run_prompt(c, ++seed), bound(Element::f16))
            << preset.name << " head_dim " << head_dim << " group " << group;
      }
    }
  }
}

TEST_F(CudaAttentionTest, PromptsOfEveryGroup) {
  uint64_t seed = 9000;
  for (const std::string_view policy : {"fp8", "int4"}) {
    for (const int group : {1, 2, 3, 5, 6, 7, 8, 16}) {
      AttentionCase c = AttentionCase::uniform(1, 2, 128, group, policy);
      c.sink_blocks = group % 3;
      EXPECT_LT(run_prompt(c, ++seed), bound(Element::f16)) << policy << " group " << group;
      EXPECT_LT(run_prompt(c, seed, Element::bf16), bound(Element::bf16)) << policy << " " << group;
    }
  }
}

TEST_F(CudaAttentionTest, PromptsWithWindowsAndSoftCaps) {
  uint64_t seed = 10000;
  for (const std::string_view policy : {"f16", "int8", "int4"}) {
    for (const int window : {1, 63, 64, 65, 200, 1024}) {
      for (const int group : {1, 4}) {
        AttentionCase c = AttentionCase::uniform(2, 2, 128, group, policy);
        c.layers[1].window = window;
        c.soft_cap = window % 2 == 0 ? 0.0f : 5.0f;
        EXPECT_LT(run_prompt(c, ++seed), bound(Element::f16))
            << policy << " window " << window << " group " << group;
      }
    }
  }
}

TEST_F(CudaAttentionTest, ValuesBeyondF16AreTold) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 64, 1, "int8");
  for (const float bad : {NAN, INFINITY, 65520.0f, 1e9f}) {
    SequenceData good = cuda_sequence(c, 3, 6000);
    SequenceData data = cuda_sequence(c, 3, 6001);
    data.v[0][70] = bad;
    CudaRunner device(c, 8, CudaKernels::plain);
    device.runner->add(good);
    device.runner->add(data);
    device.runner->step({{0, 3}, {1, 3}});
    EXPECT_EQ(device.runner->failed(), (std::vector<uint8_t>{0, 1})) << bad;
    const std::vector<int64_t> positions = {2};
    EXPECT_LT(worst_error(c, good, device.runner->out(0), positions), bound(Element::f16));
  }
}

TEST_F(CudaAttentionTest, CopiedBlocksAreTheSame) {
  std::mt19937_64 random(test_seed());
  constexpr size_t bytes = 40000 / 16 * 16;
  std::vector<uint8_t> values(3 * bytes);
  for (uint8_t& x : values) x = static_cast<uint8_t>(random());
  const DeviceArray<uint8_t> from{std::span<const uint8_t>(values)};
  const DeviceArray<uint8_t> to(4 * bytes);
  uint8_t* host = nullptr;
  cuda_ok(cudaHostAlloc(reinterpret_cast<void**>(&host), bytes, cudaHostAllocDefault));
  const std::vector<BlockCopy> copies = {{from.data(), to.data() + bytes},
                                         {from.data() + 2 * bytes, to.data() + 3 * bytes},
                                         {from.data() + bytes, host}};
  const DeviceArray<BlockCopy> list{std::span(copies)};
  ASSERT_TRUE(cuda_copy_blocks(list.data(), 3, bytes, nullptr));
  const std::vector<uint8_t> result = to.read();
  const auto same = [&](size_t block, const uint8_t* got) {
    return std::memcmp(values.data() + block * bytes, got, bytes) == 0;
  };
  EXPECT_TRUE(same(0, result.data() + bytes));
  EXPECT_TRUE(same(2, result.data() + 3 * bytes));
  EXPECT_TRUE(same(1, host));
  EXPECT_EQ(result[0], 0xff);
  EXPECT_EQ(result[2 * bytes], 0xff);
  cuda_ok(cudaFreeHost(host));
}

// More than a grid's second size can be.
TEST_F(CudaAttentionTest, ManyBlocksAreCopied) {
  constexpr size_t count = 70000;
  constexpr size_t bytes = 16;
  std::vector<uint8_t> values(count * bytes);
  std::mt19937_64 random(test_seed());
  for (uint8_t& x : values) x = static_cast<uint8_t>(random());
  const DeviceArray<uint8_t> from{std::span<const uint8_t>(values)};
  const DeviceArray<uint8_t> to(values.size());
  std::vector<BlockCopy> copies;
  for (size_t i = 0; i < count; ++i) {
    copies.push_back({from.data() + i * bytes, to.data() + i * bytes});
  }
  const DeviceArray<BlockCopy> list{std::span<const BlockCopy>(copies)};
  const Status copied = cuda_copy_blocks(list.data(), count, bytes, nullptr);
  ASSERT_TRUE(copied.ok()) << (copied.ok() ? "" : copied.error().message);
  EXPECT_TRUE(to.read() == values);
}

// append and attend of layer 0 as a graph.
cudaGraphExec_t captured(CudaAttention& cuda, const AttentionCase& c, const float* k,
                         const float* v, const uint16_t* q, uint16_t* out, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(cuda.append(0, Element::f32, k, v, stream));
  EXPECT_TRUE(cuda.attend(0, c.params(0), Element::f16, q, out, stream));
  cuda_ok(cudaStreamEndCapture(stream, &graph));
  cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
  cuda_ok(cudaGraphDestroy(graph));
  return exec;
}

// A graph holds append and attend of a decode step, and runs again with the plan of the next one.
TEST_F(CudaAttentionTest, GraphsServeLaterPlans) {
  for (const std::string_view policy : {"int8", "int4", "kivi4"}) {
    const AttentionCase c = AttentionCase::uniform(1, 2, 128, 4, policy);
    const SequenceData data = cuda_sequence(c, 200, 7000);
    CudaRunner device(c, 200, CudaKernels::fastest);
    AttentionRunner& runner = *device.runner;
    runner.add(data);
    runner.step({{0, 120}}, Durability::speculative);
    CudaAttention& cuda = device.attention->cuda();
    const size_t kv_row = 2 * 128;
    const size_t q_row = 8 * 128;
    const DeviceArray<float> k(kv_row), v(kv_row);
    const DeviceArray<uint16_t> q(q_row), out(q_row);
    cudaStream_t stream = nullptr;
    cuda_ok(cudaStreamCreate(&stream));
    cudaGraphExec_t exec = nullptr;
    for (int64_t at = 120; at < 200; ++at) {
      const auto token = std::vector<int32_t>{static_cast<int32_t>(at)};
      ASSERT_TRUE(runner.cache().reserve(runner.id(0), token, Durability::final));
      const std::vector<SequenceStep> steps = {{runner.id(0), at, 1}};
      ASSERT_TRUE(cuda.plan(steps, stream));
      const auto half = to_elements(Element::f16, std::span(data.q[0]).subspan(at * q_row, q_row));
      cuda_ok(cudaMemcpy(q.data(), half.data(), half.size(), cudaMemcpyHostToDevice));
      cuda_ok(cudaMemcpy(k.data(), &data.k[0][at * kv_row], 4 * kv_row, cudaMemcpyHostToDevice));
      cuda_ok(cudaMemcpy(v.data(), &data.v[0][at * kv_row], 4 * kv_row, cudaMemcpyHostToDevice));
      if (exec == nullptr) {
        exec = captured(cuda, c, k.data(), v.data(), q.data(), out.data(), stream);
      }
      cuda_ok(cudaGraphLaunch(exec, stream));
      cuda_ok(cudaStreamSynchronize(stream));
      runner.cache().commit(runner.id(0), at + 1);
      std::vector<std::vector<float>> result = {std::vector<float>(200 * q_row)};
      const std::vector<uint16_t> bits = out.read();
      from_elements(Element::f16, {reinterpret_cast<const uint8_t*>(bits.data()), 2 * bits.size()},
                    &result[0][at * q_row]);
      const std::vector<int64_t> positions = {at};
      EXPECT_LT(worst_error(c, data, result, positions), bound(Element::f16))
          << policy << " " << at;
    }
    cuda_ok(cudaGraphExecDestroy(exec));
    cuda_ok(cudaStreamDestroy(stream));
  }
}

// Of a batch with as many rows as steps; in a later one that has, all rows are of one step.
TEST_F(CudaAttentionTest, GraphsServePlansOfStepsWithoutRows) {
  constexpr int rows = 40;
  const AttentionCase c = AttentionCase::uniform(1, 2, 128, 4, "int8");
  const SequenceData data = cuda_sequence(c, rows + 1, 7500);
  CudaRunner device(c, rows, CudaKernels::fastest);
  KvCache& cache = device.runner->cache();
  CudaAttention& cuda = device.attention->cuda();
  const size_t kv_row = 2 * 128;
  const size_t q_row = 8 * 128;
  std::vector<SequenceStep> one_each, all_of_one;
  std::vector<float> k, v;
  for (int i = 0; i < rows; ++i) {
    const SequenceId id = device.runner->id(device.runner->add(data));
    ASSERT_TRUE(cache.reserve(id, std::vector<int32_t>{0}, Durability::final));
    one_each.push_back({id, 0, 1});
    all_of_one.push_back({id, 1, i == 0 ? rows : 0});
    k.insert(k.end(), data.k[0].begin(), data.k[0].begin() + kv_row);
    v.insert(v.end(), data.v[0].begin(), data.v[0].begin() + kv_row);
  }
  const DeviceArray<float> device_k{std::span<const float>(k)};
  const DeviceArray<float> device_v{std::span<const float>(v)};
  const auto halves = to_elements(Element::f16, std::span(data.q[0]).subspan(q_row));
  const DeviceArray<uint16_t> q(rows * q_row), out(rows * q_row);
  cuda_ok(cudaMemcpy(q.data(), halves.data(), halves.size(), cudaMemcpyHostToDevice));
  cudaStream_t stream = nullptr;
  cuda_ok(cudaStreamCreate(&stream));
  ASSERT_TRUE(cuda.plan(one_each, stream));
  const cudaGraphExec_t exec =
      captured(cuda, c, device_k.data(), device_v.data(), q.data(), out.data(), stream);
  cuda_ok(cudaGraphLaunch(exec, stream));
  cuda_ok(cudaStreamSynchronize(stream));
  cache.commit(one_each[0].sequence, 1);
  ASSERT_TRUE(cache.reserve(one_each[0].sequence, std::vector<int32_t>(rows), Durability::final));
  ASSERT_TRUE(cuda.plan(all_of_one, stream));
  const size_t bytes = sizeof(float) * rows * kv_row;
  cuda_ok(cudaMemcpy(device_k.data(), &data.k[0][kv_row], bytes, cudaMemcpyHostToDevice));
  cuda_ok(cudaMemcpy(device_v.data(), &data.v[0][kv_row], bytes, cudaMemcpyHostToDevice));
  cuda_ok(cudaMemset(out.data(), 0xff, 2 * rows * q_row));
  cuda_ok(cudaDeviceSynchronize());
  cuda_ok(cudaGraphLaunch(exec, stream));
  cuda_ok(cudaStreamSynchronize(stream));
  std::vector<std::vector<float>> result = {std::vector<float>((rows + 1) * q_row)};
  const std::vector<uint16_t> bits = out.read();
  from_elements(Element::f16, {reinterpret_cast<const uint8_t*>(bits.data()), 2 * bits.size()},
                &result[0][q_row]);
  const std::vector<int64_t> positions = {1, 2, 20, rows};
  EXPECT_LT(worst_error(c, data, result, positions), bound(Element::f16));
  cuda_ok(cudaGraphExecDestroy(exec));
  cuda_ok(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace kvart
