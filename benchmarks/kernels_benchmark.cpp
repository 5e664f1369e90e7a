// Kernels against their bounds, with 1 and 2 threads. The cases are those of the tests, at the
// shapes of a GPT of 6 layers, 384 wide, context 256, 8 sequences (2,048 rows), and of 4M-element
// parameters.
//
// The bound of a case is the larger of: its bytes (each operand once, as the dry table counts them)
// at the rate of a copy that moves as many bytes with as many threads; its flops at the rate of a
// large GEMM of its element type (fp32 but for GEMM and attention). Both are measured here, in the
// same run. Counters are of the fastest of all iterations, as the bounds are of the fastest of
// several runs: the machine may be shared.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "src/core/trace.h"
#include "tests/kernel_cases_states.h"

namespace espalier::kernels {
namespace {

using Build = std::function<Case()>;

/// A case in memory, ready to run.
struct Loaded {
  std::string name;
  Arena arena;
  Case one;
  std::vector<Buffer> buffers;
  Tensors tensors;
  DryCount work;

  void load(const std::string& called, const Build& build) {
    tensors.clear();
    buffers.clear();
    name = called;
    one = build();
    for (const Operand& operand : one.operands) {
      buffers.push_back(arena.allocate(Memory::scratch, called, operand.dtype, operand.shape));
      tensors.push_back(buffers.back().tensor());
      write_all(operand, tensors.back());
    }
    Stream stream(arena, 1);
    dry_count() = {};
    one.run(by_name("dry"), stream, tensors);
    work = dry_count();
  }

  /// What differs from the reference after one run; the naive reference is left out for large
  /// GEMMs.
  std::string verify(Stream& stream, const Kernels& kernels) {
    one.run(kernels, stream, tensors);
    if (work.flops > 6e8) {
      return "";
    }
    std::vector<Values> want;
    for (Operand& operand : one.operands) {
      want.push_back(std::move(operand.values));
    }
    one.reference(want);
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string wrong = mismatch(one.operands[i], tensors[i], want[i]);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }
};

/// The shortest of the runs that fit into `budget` seconds (at least 5), in seconds.
template <class Body>
double shortest(double budget, const Body& body) {
  double best = 1e9;
  const double begin = now_seconds();
  for (int i = 0; i < 5 || now_seconds() - begin < budget; ++i) {
    const double start = now_seconds();
    body();
    best = std::min(best, now_seconds() - start);
  }
  return best;
}

/// Seconds of a copy that reads bytes / 2 and writes bytes / 2.
double copy_seconds(double bytes, int threads) {
  const int64_t chunk = 32768;
  const auto chunks = static_cast<int64_t>(std::max(1.0, bytes / 2 / chunk));
  Arena arena;
  const Buffer from = arena.allocate(Memory::scratch, "from", DType::uint8, {chunks * chunk});
  const Buffer to = arena.allocate(Memory::scratch, "to", DType::uint8, {chunks * chunk});
  const auto* source = from.tensor().get<uint8_t>();
  auto* target = to.tensor().get<uint8_t>();
  const double seconds = shortest(0.1, [&] {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < chunks; ++i) {
      std::memcpy(target + i * chunk, source + i * chunk, static_cast<size_t>(chunk));
    }
    benchmark::DoNotOptimize(target[0]);
  });
  return seconds * bytes / (2.0 * static_cast<double>(chunks * chunk));
}

/// Flops a second of a GEMM of 1,024^3, measured once.
double peak_flops(DType dtype, int threads) {
  static std::map<std::pair<DType, int>, double> measured;
  double& peak = measured[{dtype, threads}];
  if (peak == 0) {
    const int64_t n = 1024;
    Arena arena;
    Stream stream(arena, threads);
    const Buffer a = arena.allocate(Memory::scratch, "a", dtype, {n, n});
    const Buffer b = arena.allocate(Memory::scratch, "b", dtype, {n, n});
    const Buffer c = arena.allocate(Memory::scratch, "c", dtype, {n, n});
    const Kernels& kernels = by_name("cpu");
    peak = 2.0 * n * n * n / shortest(0.5, [&] {
             kernels.gemm(stream, {.a = a.tensor(), .b = b.tensor(), .c = c.tensor()});
           });
  }
  return peak;
}

double bound_seconds(const Loaded& loaded, int threads) {
  // Products may run at the rate of their type; all else computes in fp32.
  const bool product = loaded.name.starts_with("gemm") || loaded.name.starts_with("attention");
  const DType dtype = product ? loaded.one.operands.front().dtype : DType::fp32;
  const double flops = peak_flops(dtype, threads);
  return std::max(copy_seconds(loaded.work.bytes, threads), loaded.work.flops / flops);
}

void measure(benchmark::State& state, const std::string& name, const Build& build) {
  // Google Benchmark calls this several times in a row to find the number of iterations.
  static Loaded loaded;
  static double bound = 0;
  const auto threads = static_cast<int>(state.range(0));
  const std::string key = fmt::format("{}/{}", name, threads);
  const Kernels& kernels = by_name("cpu");
  Stream stream(loaded.arena, threads);
  if (loaded.name != key) {
    loaded.load(key, build);
    bound = bound_seconds(loaded, threads);
    const std::string wrong = loaded.verify(stream, kernels);
    if (!wrong.empty()) {
      loaded.name.clear();
      state.SkipWithError(wrong.c_str());
      return;
    }
  }
  double fastest = 1e9;
  for (auto _ : state) {
    const double start = now_seconds();
    loaded.one.run(kernels, stream, loaded.tensors);
    const double seconds = now_seconds() - start;
    fastest = std::min(fastest, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["%bound"] = 100 * bound / fastest;
  state.counters["best_us"] = 1e6 * fastest;
  state.counters["GB/s"] = 1e-9 * loaded.work.bytes / fastest;
  state.counters["GFLOP/s"] = 1e-9 * loaded.work.flops / fastest;
}

void add(const std::string& name, const Build& build) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& s) { measure(s, name, build); })
      ->Arg(1)
      ->Arg(2)
      ->ArgName("threads")
      ->UseManualTime()
      ->MinTime(0.1)
      ->Unit(benchmark::kMicrosecond);
}

constexpr int64_t kRows = 2048;
constexpr int64_t kWidth = 384;

void add_gemms() {
  struct Product {
    const char* name;
    int64_t outputs, inputs;
  };
  for (const Product& p :
       {Product{"qkv", 3 * kWidth, kWidth}, Product{"proj", kWidth, kWidth},
        Product{"up", 4 * kWidth, kWidth}, Product{"down", kWidth, 4 * kWidth}}) {
    for (const DType dtype : {kFp32, kBf16}) {
      const auto name = [&](const char* verb) {
        return fmt::format("gemm/{}/{}/{}", p.name, verb, text(dtype));
      };
      add(name("forward"), [=] {
        return gemm_case({.transpose_b = true}, kRows, p.outputs, p.inputs, dtype, dtype, true);
      });
      add(name("dx"),
          [=] { return gemm_case({}, kRows, p.inputs, p.outputs, dtype, dtype, false); });
      add(name("dw"), [=] {
        return gemm_case({.transpose_a = true}, p.outputs, p.inputs, kRows, dtype, kFp32, false);
      });
    }
  }
}

void add_math() {
  const reference::Attention attention{8, 256, 6, 64};
  for (const DType dtype : {kFp32, kBf16}) {
    const std::string type = text(dtype);
    const int64_t hidden = kRows * 4 * kWidth;
    add("column_sum/" + type, [=] { return column_sum_case(kRows, 4 * kWidth, dtype, false); });
    add("layernorm/" + type, [=] { return layernorm_case(kRows, kWidth, dtype, kFp32); });
    add("layernorm_backward/" + type,
        [=] { return layernorm_backward_case(kRows, kWidth, dtype, true); });
    add("gelu/" + type, [=] { return activation_case(Activation::gelu, hidden, dtype, 8); });
    add("gelu_backward/" + type,
        [=] { return activation_backward_case(Activation::gelu, hidden, dtype, 8); });
    add("attention/" + type, [=] { return attention_case(attention, dtype); });
    add("attention_backward/" + type, [=] { return attention_backward_case(attention, dtype); });
    add("embedding/" + type, [=] { return embedding_case({8, 256, kWidth}, 256, dtype); });
    add("cross_entropy/256/" + type,
        [=] { return cross_entropy_case(kRows, 256, dtype, Gradient::in_place); });
    add("cross_entropy/50257/" + type,
        [=] { return cross_entropy_case(64, 50257, dtype, Gradient::in_place); });
    add("dropout/" + type, [=] { return dropout_case(hidden, 0, 0.1F, dtype); });
    add("cast/fp32_to_" + type, [=] { return cast_case(hidden, kFp32, dtype, false); });
    add("fill/" + type, [=] { return fill_case(hidden, dtype); });
  }
  add("embedding_backward", [] { return embedding_backward_case({8, 256, kWidth}, 256); });
  for (const DType dtype : {kFp32, kBf16}) {
    add("sum_squares/" + text(dtype), [=] { return sum_squares_case(4 << 20, dtype); });
  }
  for (const DynamicMap map : {DynamicMap::with_sign, DynamicMap::without_sign}) {
    add("quantize/" + name_of(map), [=] { return quantize_case(4 << 20, map); });
    add("dequantize/" + name_of(map), [=] { return dequantize_case(4 << 20, map); });
  }
}

void add_index() {
  for (const Form form : {Form::all, Form::list, Form::bitmap}) {
    const auto kept = [=] { return std::make_shared<const Kept>(form, 4 << 20, 0.1); };
    for (const DType dtype : {kFp32, kBf16}) {
      const std::string suffix_text = fmt::format("/{}/{}", name_of(form), text(dtype));
      const StateForm state{.copy = dtype == kFp32 ? Copy::fp32 : Copy::bf16};
      add("gather" + suffix_text, [=] { return gather_case(kept(), dtype, false); });
      add("scatter" + suffix_text, [=] { return scatter_case(kept(), dtype); });
      add("adamw" + suffix_text, [=] { return adamw_case(kept(), state); });
      add("sgd" + suffix_text, [=] { return sgd_case(kept(), state); });
    }
    const std::string packed = fmt::format("/{}/bf16_packed", name_of(form));
    add("gather" + packed, [=] { return gather_case(kept(), kBf16, false, kBf16); });
    add("gather_fp32" + packed, [=] { return gather_case(kept(), kFp32, false, kBf16); });
    add("scatter" + packed, [=] { return scatter_case(kept(), kBf16, kBf16); });
  }
}

/// 4M kept elements; memory they take by form: 16, 14, 10 and 8 bytes (fp32 gradient), 6 (bf16).
void add_states() {
  const auto kept = [] { return std::make_shared<const Kept>(Form::all, 4 << 20, 1.0); };
  for (const StateForm& form : {StateForm{}, StateForm{.split = true}, StateForm{.coded = true},
                                StateForm{.split = true, .coded = true},
                                StateForm{.gradient = kBf16, .split = true, .coded = true}}) {
    const std::string name =
        fmt::format("/states/{}_split{:d}_coded{:d}", text(form.gradient), form.split, form.coded);
    add("adamw" + name, [=] { return adamw_case(kept(), form); });
    add("sgd" + name, [=] { return sgd_case(kept(), form); });
    add("predict" + name,
        [=] { return predict_case(4 << 20, {.split = form.split, .coded = form.coded}); });
  }
}

/// The matrix of one layer, rebuilt while it stays in cache: 768 x 3,072 in bf16, 4.7 MB.
void add_expand() {
  const auto kept = [] { return std::make_shared<const Kept>(Form::bitmap, 768 * 3072, 0.1); };
  add("scatter/layer/bf16_packed", [=] { return scatter_case(kept(), kBf16, kBf16); });
  add("gather/layer/bf16_packed", [=] { return gather_case(kept(), kBf16, false, kBf16); });
  add("gather_fp32/layer/bf16_packed", [=] { return gather_case(kept(), kFp32, false, kBf16); });
}

[[maybe_unused]] const bool registered = [] {
  add_gemms();
  add_math();
  add_index();
  add_states();
  add_expand();
  return true;
}();

}  // namespace
}  // namespace espalier::kernels
