// Kernels compared with their bounds, with 1 and 2 threads, or with `--backend cuda` on a device.
// The cases are those of the tests, in these shapes:
// - CPU: a GPT of 6 layers, 384 wide, context 256, 8 sequences (2,048 rows); parameters of 4M
//   elements;
// - device: 1,024 wide, context 1,024, 16 sequences; parameters of 32M elements, more than its
//   caches hold;
// - operations of Llama-class blocks: add_transformer.
//
// The bound of a case is the larger of two times, both measured in the same run:
// - its bytes (each operand once, as the dry table counts them) at the rate of a copy that moves as
//   many bytes with as many threads (on a device: within its memory);
// - its flops at the rate of a large GEMM of its element type (fp32 except for GEMM and attention).
// Counters are those of the fastest iteration, and bounds those of the fastest run, since the
// machine may be shared.
//
// On a device also attention of GPT-2 124M and 1.5B, for benchmarks/peers/gpu_attention.py: our own
// kernels, and cuDNN where supported, its gradient also with atomics.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "benchmarks/kernels/bounds.h"
#include "src/core/mirror.h"
#include "tests/kernels/cudnn_way.h"
#include "tests/kernels/kernel_cases_states.h"
#include "tests/kernels/kernel_cases_transformer.h"

namespace espalier::kernels {
namespace {

using Build = std::function<Case()>;

/// A case in the backend's memory, ready to run.
struct Loaded {
  std::string name;
  Backend backend;
  Case one;
  std::vector<Buffer> buffers;
  Tensors tensors;
  DryCount work;

  Loaded(const std::string& called, const Build& build, int threads)
      : name(called), backend(bench::chosen(), threads), one(build()) {
    for (const Operand& operand : one.operands) {
      buffers.push_back(
          backend.arena().allocate(Memory::scratch, called, operand.dtype, operand.shape));
      tensors.push_back(buffers.back().tensor());
      const Mirror mirror(backend.stream(), tensors.back());
      write_all(operand, mirror.host());
      mirror.write();
    }
    dry_count() = {};
    one.run(by_name("dry"), backend.stream(), tensors);
    work = dry_count();
  }
  void run() { one.run(backend.kernels(), backend.stream(), tensors); }

  /// Errors of one run: its failure, or its differences from the reference.
  std::string verified() {
    try {
      return verify();
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  /// Differences from the reference after one run. Large GEMMs are not compared with the naive
  /// reference.
  std::string verify() {
    run();
    if (work.flops > (bench::on_device() ? 6e9 : 6e8)) {
      return "";
    }
    std::vector<Values> want;
    for (Operand& operand : one.operands) {
      want.push_back(std::move(operand.values));
    }
    one.reference(want);
    for (size_t i = 0; i < want.size(); ++i) {
      const Mirror got(backend.stream(), tensors[i]);
      const std::string wrong = mismatch(one.operands[i], got.read().host(), want[i]);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }
};

double bound_seconds(Loaded& loaded, int threads) {
  // Products may reach the rate of their type; all other kernels compute in fp32.
  const bool product = loaded.name.starts_with("gemm") || loaded.name.starts_with("attention");
  const DType dtype = product ? loaded.one.operands.front().dtype : DType::fp32;
  const double flops = bench::peak_flops(dtype, threads);
  const double copy = bench::on_device()
                          ? bench::device_copy_seconds(loaded.backend, loaded.work.bytes)
                          : bench::copy_seconds(loaded.work.bytes, threads);
  return std::max(copy, loaded.work.flops / flops);
}

/// `products`: flops of the products alone, reported separately in TFLOP/s; 0: not reported.
void measure(benchmark::State& state, const std::string& name, const Build& build,
             double products) {
  // Google Benchmark calls this several times in a row to find the number of iterations.
  static std::unique_ptr<Loaded> loaded;
  static double bound = 0;
  const auto threads = static_cast<int>(state.range(0));
  const std::string key = fmt::format("{}/{}", name, threads);
  if (loaded == nullptr || loaded->name != key) {
    loaded.reset();
    loaded = std::make_unique<Loaded>(key, build, threads);
    bound = bound_seconds(*loaded, threads);
    const std::string wrong = loaded->verified();
    if (!wrong.empty()) {
      loaded.reset();
      state.SkipWithError(wrong.c_str());
      return;
    }
  }
  double fastest = 1e9;
  for (auto _ : state) {
    const double seconds = bench::seconds_of(loaded->backend.stream(), [&] { loaded->run(); });
    fastest = std::min(fastest, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["%bound"] = 100 * bound / fastest;
  state.counters["best_us"] = 1e6 * fastest;
  state.counters["GB/s"] = 1e-9 * loaded->work.bytes / fastest;
  state.counters["GFLOP/s"] = 1e-9 * loaded->work.flops / fastest;
  if (products > 0) {
    state.counters["TFLOP/s"] = 1e-12 * products / fastest;
  }
}

void add(const std::string& name, const Build& build, double products = 0) {
  auto* const made = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& s) { measure(s, name, build, products); });
  made->Arg(1)
      ->ArgName("threads")
      ->UseManualTime()
      ->MinTime(bench::on_device() ? 0.005 : 0.1)
      ->Unit(benchmark::kMicrosecond);
  if (!bench::on_device()) {
    made->Arg(2);
  }
}

/// Sizes of a training step, and of large parameters.
struct Sizes {
  int64_t sequences, context, width, heads, classes_rows, elements;
  int64_t rows() const { return sequences * context; }
};
Sizes sizes() {
  return bench::on_device() ? Sizes{16, 1024, 1024, 16, 1024, 32 << 20}
                            : Sizes{8, 256, 384, 6, 64, 4 << 20};
}

void add_gemms() {
  const int64_t rows = sizes().rows();
  const int64_t width = sizes().width;
  struct Product {
    const char* name;
    int64_t outputs, inputs;
  };
  for (const Product& p : {Product{"qkv", 3 * width, width}, Product{"proj", width, width},
                           Product{"up", 4 * width, width}, Product{"down", width, 4 * width}}) {
    for (const DType dtype : {kFp32, kBf16}) {
      const auto name = [&](const char* verb) {
        return fmt::format("gemm/{}/{}/{}", p.name, verb, text(dtype));
      };
      add(name("forward"), [=] {
        return gemm_case({.transpose_b = true}, rows, p.outputs, p.inputs, dtype, dtype, true);
      });
      add(name("dx"),
          [=] { return gemm_case({}, rows, p.inputs, p.outputs, dtype, dtype, false); });
      add(name("dw"), [=] {
        return gemm_case({.transpose_a = true}, p.outputs, p.inputs, rows, dtype, kFp32, false);
      });
    }
  }
  // With fused operations: compare with the products above plus the separate passes.
  for (const DType dtype : {kFp32, kBf16}) {
    add("gemm/up/forward_gelu/" + text(dtype), [=] {
      return gemm_activated_case({rows, 4 * width, width, dtype, dtype}, Activation::gelu, false);
    });
    add("gemm/down/dx_slope/" + text(dtype), [=] {
      return gemm_slope_case({rows, 4 * width, width, dtype, dtype}, Activation::gelu);
    });
    add("gemm/up/dw_sums/" + text(dtype), [=] {
      return gemm_sums_case({4 * width, width, rows, dtype, kFp32}, dtype, false);
    });
  }
}

void add_math() {
  const Sizes size = sizes();
  const int64_t rows = size.rows();
  const int64_t width = size.width;
  const reference::Attention attention{static_cast<int>(size.sequences),
                                       static_cast<int>(size.context), static_cast<int>(size.heads),
                                       64};
  for (const DType dtype : {kFp32, kBf16}) {
    const std::string type = text(dtype);
    const int64_t hidden = rows * 4 * width;
    add("column_sum/" + type, [=] { return column_sum_case(rows, 4 * width, dtype, false); });
    add("layernorm/" + type, [=] { return layernorm_case(rows, width, dtype, kFp32); });
    add("layernorm_backward/" + type,
        [=] { return layernorm_backward_case(rows, width, dtype, true); });
    add("gelu/" + type, [=] { return activation_case(Activation::gelu, hidden, dtype, 8); });
    add("gelu_backward/" + type,
        [=] { return activation_backward_case(Activation::gelu, hidden, dtype, 8); });
    add("attention/" + type, [=] { return attention_case(attention, dtype); });
    add("attention_backward/" + type, [=] { return attention_backward_case(attention, dtype); });
    add("embedding/" + type, [=] {
      return embedding_case({size.sequences, size.context, width}, 256, dtype);
    });
    add("cross_entropy/256/" + type,
        [=] { return cross_entropy_case(rows, 256, dtype, Gradient::in_place); });
    add("cross_entropy/50257/" + type,
        [=] { return cross_entropy_case(size.classes_rows, 50257, dtype, Gradient::in_place); });
    add("dropout/" + type, [=] { return dropout_case(hidden, 0, 0.1F, dtype); });
    add("cast/fp32_to_" + type, [=] { return cast_case(hidden, kFp32, dtype, false); });
    add("fill/" + type, [=] { return fill_case(hidden, dtype); });
  }
  add("embedding_backward", [=] {
    return embedding_backward_case({size.sequences, size.context, width}, 256);
  });
  for (const DType dtype : {kFp32, kBf16}) {
    add("sum_squares/" + text(dtype), [=] { return sum_squares_case(size.elements, dtype); });
  }
  for (const DynamicMap map : {DynamicMap::with_sign, DynamicMap::without_sign}) {
    add("quantize/" + name_of(map), [=] { return quantize_case(size.elements, map); });
    add("dequantize/" + name_of(map), [=] { return dequantize_case(size.elements, map); });
  }
}

/// Operations of Llama-class blocks, beyond the caches: 4,096 rows (on a device 16,384), 2,048
/// wide, 16 heads of 128 columns and 4 of keys, hidden width 2,816.
void add_transformer() {
  const int64_t sequences = bench::on_device() ? 16 : 4;
  const int64_t tokens = 1024, width = 2048, hidden = 2816, heads = 16 + 4, head_width = 128;
  const int64_t rows = sequences * tokens;
  for (const DType dtype : {kFp32, kBf16}) {
    const std::string type = text(dtype);
    add("rotary/" + type, [=] {
      return rotary_case(
          {sequences, tokens, heads, head_width, head_width, false, false, 0, 4 * head_width},
          dtype);
    });
    add("head_norm/" + type, [=] {
      return head_norm_case({rows, heads, head_width, 4 * head_width}, dtype, kFp32, true);
    });
    add("head_norm_backward/" + type, [=] {
      return head_norm_backward_case({rows, heads, head_width, 4 * head_width}, dtype, kFp32, true,
                                     true);
    });
    for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_erf}) {
      const GateCase shape{kind, rows, hidden, 0};
      add(fmt::format("gated_{}/{}", name_of(kind), type),
          [=] { return gated_case(shape, dtype); });
      add(fmt::format("gated_{}_backward/{}", name_of(kind), type),
          [=] { return gated_backward_case(shape, dtype, false); });
    }
    add("rmsnorm/" + type, [=] { return rmsnorm_case(rows, width, dtype, kFp32); });
    add("rmsnorm_backward/" + type,
        [=] { return rmsnorm_backward_case(rows, width, dtype, true, kFp32, true); });
  }
}

/// GPT-2's shapes, with flops counted as for FlashAttention: 2 products of T (T + 1) / 2 scores by
/// D columns forward, 5 backward, none for the softmax. lse gets values of realistic size, since
/// the reference would take minutes.
void add_attention(const std::string& shape, const reference::Attention& s) {
  const auto scores = static_cast<double>(s.sequences * s.heads * s.tokens * (s.tokens + 1)) / 2;
  const double product = 2 * scores * static_cast<double>(s.width);
  const auto forward = [=] { return attention_case(s, kBf16); };
  const auto backward = [=] {
    Case made = attention_case(s, kBf16);
    const Shape out = made.operands[1].shape;
    made.operands[1] = input(kBf16, out);
    made.operands[2] = input(kFp32, made.operands[2].shape, 7, 9);
    made.operands.push_back(input(kBf16, out));
    made.operands.push_back(output(kBf16, made.operands[0].shape, {}));
    made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
      kernels.attention_backward(stream, {t[0], t[1], t[2], t[3], t[4], static_cast<int>(s.heads)});
    };
    return made;
  };
  const auto by = [](const std::string& way, bool deterministic, const Build& build) {
    return [=] {
      Case made = build();
      made.run = [=, run = made.run](const Kernels& kernels, Stream& stream, const Tensors& t) {
        const testing::AttentionWay demanded(way);
        stream.set_deterministic(deterministic);
        run(kernels, stream, t);
      };
      return made;
    };
  };
  const std::string name = "attention/" + shape;
  for (const std::string way : {"own", "cudnn"}) {
    add(name + "/" + way + "/forward", by(way, true, forward), 2 * product);
    add(name + "/" + way + "/backward", by(way, true, backward), 5 * product);
  }
  add(name + "/cudnn-atomics/backward", by("cudnn", false, backward), 5 * product);
}

void add_index() {
  for (const Form form : {Form::all, Form::list, Form::bitmap}) {
    const auto kept = [=] { return std::make_shared<const Kept>(form, sizes().elements, 0.1); };
    for (const DType dtype : {kFp32, kBf16}) {
      const std::string suffix_text = fmt::format("/{}/{}", name_of(form), text(dtype));
      const StateForm state{.copy = dtype == kFp32 ? Copy::fp32 : Copy::bf16};
      add("gather" + suffix_text, [=] { return gather_case(kept(), dtype, false); });
      add("scatter" + suffix_text, [=] { return scatter_case(kept(), dtype); });
      for (const RuleCase& rule : rule_cases()) {
        add(rule.name + suffix_text, [=] { return update_case(rule, kept(), state); });
      }
    }
    const std::string packed = fmt::format("/{}/bf16_packed", name_of(form));
    add("gather" + packed, [=] { return gather_case(kept(), kBf16, false, kBf16); });
    add("gather_fp32" + packed, [=] { return gather_case(kept(), kFp32, false, kBf16); });
    add("scatter" + packed, [=] { return scatter_case(kept(), kBf16, kBf16); });
  }
}

/// All elements kept. Bytes per element by form: 16, 14, 10 and 8 (fp32 gradient), 6 (bf16); values
/// alone 14 and, coded with a gradient in bf16, 6.
void add_states() {
  const auto kept = [] { return std::make_shared<const Kept>(Form::all, sizes().elements, 1.0); };
  for (const StateForm& form :
       {StateForm{}, StateForm{.split = true}, StateForm{.coded = true},
        StateForm{.split = true, .coded = true},
        StateForm{.gradient = kBf16, .split = true, .coded = true}, StateForm{.at_random = true},
        StateForm{.gradient = kBf16, .coded = true, .at_random = true}}) {
    const std::string name =
        fmt::format("/states/{}_{}_coded{:d}", text(form.gradient),
                    form.at_random ? "random" : fmt::format("split{:d}", form.split), form.coded);
    for (const RuleCase& rule : rule_cases()) {
      add(rule.name + name, [=] { return update_case(rule, kept(), form); });
    }
    add("predict" + name, [=] {
      return predict_case(sizes().elements,
                          {.split = form.split, .coded = form.coded, .alone = form.at_random});
    });
  }
}

/// The matrix of one layer, expanded while it stays in cache: 768 x 3,072 in bf16, 4.7 MB.
void add_expand() {
  const auto kept = [] { return std::make_shared<const Kept>(Form::bitmap, 768 * 3072, 0.1); };
  add("scatter/layer/bf16_packed", [=] { return scatter_case(kept(), kBf16, kBf16); });
  add("gather/layer/bf16_packed", [=] { return gather_case(kept(), kBf16, false, kBf16); });
  add("gather_fp32/layer/bf16_packed", [=] { return gather_case(kept(), kFp32, false, kBf16); });
}

void add_all() {
  add_gemms();
  add_math();
  add_transformer();
  if (bench::on_device()) {
    add_attention("124m", {16, 1024, 12, 64});
    add_attention("1.5b", {4, 1024, 25, 64});
  }
  add_index();
  add_states();
  add_expand();
}

}  // namespace
}  // namespace espalier::kernels

int main(int argc, char** argv) {
  return espalier::bench::main(argc, argv, espalier::kernels::add_all);
}
