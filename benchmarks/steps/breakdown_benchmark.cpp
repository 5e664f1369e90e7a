// Time of a training step by operation. One process; fp32 and bf16; 1 and 2 threads; GPTs of
// benchmarks/steps/step.sh; dense and 90 % pruned (with a dense copy, "masked", and with sparse
// products, "sparse").
//
// A clock wraps every operation of the kernel table. Counters: milliseconds per step by operation,
// tokens/s, and the step's flop rate as a share of the peak. The peak is a 1,024³ GEMM of the same
// type and thread count, measured in the same run. Operations fused with a dense product
// (activations, slopes, gradients of biases) count as gemm.
//
// With `--backend cuda` on a device: the clock waits for each operation, so a step takes longer
// than in `espalier train`. The GPT has GPT-2 small's 12 layers, context 1,024, batch 8.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <vector>

#include "benchmarks/kernels/bounds.h"
#include "pruning/work.h"
#include "src/core/rng.h"
#include "src/train/masks/pruner.h"
#include "src/train/stage/stage.h"

namespace espalier {
namespace {

using kernels::Kernels;

const Kernels* g_inner = nullptr;                 // the table that the clocks wrap
std::map<std::string, double, std::less<>> g_ms;  // by operation

/// Calls an entry of the inner table and adds its time.
template <auto Row, class Args>
void timed(Stream& stream, const Args& args, const char* name) {
  const double begin = now_seconds();
  (g_inner->*Row)(stream, args);
  stream.synchronize();
  g_ms[name] += (now_seconds() - begin) * 1e3;
}

constexpr Kernels make_timed() {
  using namespace kernels;  // for the types of arguments
  return {
      .name = "timed",
#define ESPALIER_OPERATION(row, Args, on_cpu) \
  .row = [](Stream& stream, const Args& args) { timed<&Kernels::row>(stream, args, #row); },
#include "src/kernels/operations.def"
  };
}
constexpr Kernels kTimed = make_timed();

struct Case {
  const char* name;
  int64_t layers, heads, width, context, batch;
};
constexpr Case kCases[] = {
    {"A", 4, 4, 128, 64, 12}, {"B", 6, 6, 384, 256, 8}, {"C", 12, 12, 768, 512, 4}};
constexpr Case kOnDevice{"G", 12, 12, 768, 1024, 8};

struct Form {
  const char* name;
  double sparsity;
  const char* storage;
};
constexpr Form kForms[] = {
    {"dense", 0, "dense"}, {"masked", 0.9, "dense"}, {"sparse", 0.9, "sparse"}};

io::Config config_of(const Case& shape, const char* dtype) {
  io::Config config;
  config.model.layers = shape.layers;
  config.model.heads = shape.heads;
  config.model.width = shape.width;
  config.model.context = shape.context;
  config.train.dtype = dtype;
  return config;
}

void step(benchmark::State& state, const Case& shape, const char* dtype, const Form& form,
          int threads) {
  g_inner = &bench::chosen();
  const double peak = bench::peak_flops(dtype_by_name(dtype), threads);
  kernels::Backend backend(*g_inner, threads);
  io::Config config = config_of(shape, dtype);
  config.sparse.storage.fallback = form.storage;
  train::Stage stage(config, {.classes = 65, .features = shape.context, .rows = shape.context},
                     backend.stream(), kTimed, {.micro_batch = shape.batch});
  stage.store().initialise(1);
  if (form.sparsity > 0) {
    const auto prunable = train::prunable_of(stage.store(), config.pruning);
    stage.store().set_masks(pruning::prune({.store = stage.store(), .prunable = prunable},
                                           {.method = "magnitude", .sparsity = form.sparsity})
                                .masks);
  }
  const int64_t tokens = shape.batch * shape.context;
  std::vector<int32_t> inputs, targets;
  for (int64_t i = 0; i < tokens; ++i) {
    const Philox bits = philox(1, 0, static_cast<uint64_t>(i));
    inputs.push_back(static_cast<int32_t>(bits[0] % 65));
    targets.push_back(static_cast<int32_t>(bits[1] % 65));
  }
  auto one_step = [&](int64_t number) {
    std::ranges::copy(inputs, stage.inputs(shape.batch).get<int32_t>());
    std::ranges::copy(targets, stage.targets(shape.batch).get<int32_t>());
    stage.forward_backward(
        {.samples = shape.batch, .step = number, .loss_scale = 1.0 / static_cast<double>(tokens)});
    stage.result(stage.update(number, 1e-3));
  };
  one_step(0);  // primitives are created here
  one_step(1);
  g_ms.clear();
  int64_t steps = 0;
  const double begin = now_seconds();
  for (auto _ : state) {
    one_step(2 + steps++);
  }
  backend.stream().synchronize();
  const double seconds = (now_seconds() - begin) / static_cast<double>(steps);
  for (const auto& [name, ms] : g_ms) {
    state.counters[name] = ms / static_cast<double>(steps);
  }
  state.counters["tokens/s"] = static_cast<double>(tokens) / seconds;
  state.counters["%peak"] = 100 * stage.cost().flops / seconds / peak;
  state.counters["peak_GF/s"] = peak / 1e9;
}

void add_all() {
  const bool device = bench::on_device();
  const std::vector<Case> cases = device ? std::vector<Case>{kOnDevice}
                                         : std::vector<Case>(std::begin(kCases), std::end(kCases));
  for (const Case& shape : cases) {
    for (const char* dtype : {"fp32", "bf16"}) {
      for (const Form& form : kForms) {
        for (const int threads : device ? std::vector<int>{1} : std::vector<int>{1, 2}) {
          benchmark::RegisterBenchmark(
              fmt::format("step/{}/{}/{}/threads:{}", shape.name, dtype, form.name, threads)
                  .c_str(),
              [=](benchmark::State& state) { step(state, shape, dtype, form, threads); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond)
              ->MinTime(1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::bench::main(argc, argv, espalier::add_all); }
