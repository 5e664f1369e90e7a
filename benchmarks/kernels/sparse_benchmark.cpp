// The sparse products compared with the dense GEMM of the same shape and element type (oneDNN, the
// same table): one thread, alternating in one process. Ratio = dense time / sparse time, both the
// shortest of their runs, since the machine may be shared. The bound of a sparse product is its
// kept elements' flops at the rate of the dense product: ratio = % of bound / density.
//
// `--backend cuda` runs on a device and compares more implementations:
// - `sparse`: the one used in a run, cuSPARSE where it is found (see "libraries" in the context);
// - `own`: our kernels, also used where cuSPARSE refuses a product;
// - `expanded` (spmm): writes the kept elements to a dense scratch matrix and multiplies that.
// It adds the layers of SAMO's Figure 1 (square, 576 tokens, 90 % pruned); block_benchmark has
// blocks of these sizes.
//
// Each result is first compared with the dense product. Select with --benchmark_filter; names are
// op/density/form/dtype/N/K/tokens.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>

#include "benchmarks/kernels/backend.h"
#include "src/core/mirror.h"
#include "tests/kernels/kernel_case.h"

namespace espalier::kernels {
namespace {

enum class Product : uint8_t { spmm, spmm_transposed, sddmm };

struct Setting {
  Product product;
  double density;
  Form form;
  DType dtype;
  int64_t n, k, tokens;

  std::string text() const {
    const char* products[] = {"spmm", "spmm_transposed", "sddmm"};
    return fmt::format("{}/{}/{}/{}/{}/{}/{}", products[static_cast<int>(product)], density,
                       name_of(form), name_of(dtype), n, k, tokens);
  }
};

/// Operands of one setting, and the implementations to compare.
class Problem {
 public:
  explicit Problem(const Setting& s)
      : s_(s), backend_(bench::chosen(), 1), kept_(s.form, s.n * s.k, s.density) {
    x_ = make(s.dtype, {s.tokens, s.k}, true);
    dy_ = make(s.dtype, {s.tokens, s.n}, true);
    dense_ = make(s.dtype, {s.n, s.k}, false);
    values_ = make(s.dtype, {kept_.count()}, true);
    const Mirror dense(stream(), dense_);
    const Mirror values(stream(), values_);
    dense.read();
    values.read();
    for (int64_t i = 0; i < kept_.count(); ++i) {
      write(dense.host(), kept_.list[static_cast<size_t>(i)], read(values.host(), i));
    }
    dense.write();
    weight_ = {s.n, s.k, values_, kept_.positions(stream())};
    if (bench::on_device()) {
      listed_ = make_lists();
    }
    const Shape out = s.product == Product::spmm              ? Shape{s.tokens, s.n}
                      : s.product == Product::spmm_transposed ? Shape{s.tokens, s.k}
                                                              : Shape{s.n, s.k};
    want_ = make(s.dtype, out, false);
    got_ = make(s.dtype, s.product == Product::sddmm ? Shape{kept_.count()} : out, false);
    expanded_ = make(s.dtype, {s.n, s.k}, false);
  }

  Stream& stream() { return backend_.stream(); }

  /// The implementation used in a run.
  void sparse() { multiply(bench::on_device() ? listed_ : weight_); }
  /// On a device: without lists of kept elements our own kernel computes the product.
  void own() { multiply(weight_); }

  /// Only for `spmm`.
  void expanded() {
    const Kernels& kernels = backend_.kernels();
    kernels.scatter(stream(),
                    {.packed = values_, .dense = expanded_, .positions = weight_.positions});
    kernels.gemm(stream(), {.a = x_, .b = expanded_, .c = got_, .transpose_b = true});
  }

  void dense() {
    const Kernels& kernels = backend_.kernels();
    Stream& stream = backend_.stream();
    if (s_.product == Product::spmm) {
      kernels.gemm(stream, {.a = x_, .b = dense_, .c = want_, .transpose_b = true});
    } else if (s_.product == Product::spmm_transposed) {
      kernels.gemm(stream, {.a = dy_, .b = dense_, .c = want_});
    } else {
      kernels.gemm(stream, {.a = dy_, .b = x_, .c = want_, .transpose_a = true});
    }
  }

  /// The largest difference, in units of the permitted rounding of the sums.
  double error() {
    const Mirror want_on_host(stream(), want_);
    const Mirror got_on_host(stream(), got_);
    const Tensor& wanted = want_on_host.read().host();
    const Tensor& result = got_on_host.read().host();
    const bool sampled = s_.product == Product::sddmm;
    const double rounding = s_.dtype == DType::bf16 ? 0x1p-7 : 1e-6;
    const auto terms = static_cast<double>(sampled ? s_.tokens : std::max(s_.n, s_.k));
    double worst = 0;
    for (int64_t i = 0; i < got_.count(); ++i) {
      const int64_t at = sampled ? kept_.list[static_cast<size_t>(i)] : i;
      const double want = read(wanted, at);
      const double allowed = rounding * (std::fabs(want) + 1) + 2e-6 * std::sqrt(terms);
      worst = std::max(worst, std::fabs(read(result, i) - want) / allowed);
    }
    return worst;
  }

  double kept_flops() const {
    return 2.0 * static_cast<double>(kept_.count()) * static_cast<double>(s_.tokens);
  }
  double dense_flops() const {
    return 2.0 * static_cast<double>(s_.n * s_.k) * static_cast<double>(s_.tokens);
  }

 private:
  void multiply(SparseMatrix weight) {
    const Kernels& kernels = backend_.kernels();
    if (s_.product == Product::spmm) {
      kernels.spmm(stream(), {.weight = weight, .x = x_, .y = got_});
    } else if (s_.product == Product::spmm_transposed) {
      kernels.spmm_transposed(stream(), {.weight = weight, .dy = dy_, .dx = got_});
    } else {
      weight.values = got_;
      kernels.sddmm(stream(), {.weight = weight, .dy = dy_, .x = x_});
    }
  }

  SparseMatrix make_lists() {
    const auto list = [&](int64_t count) { return make(DType::int32, {count}, false); };
    const CsrArgs args{.rows = s_.n,
                       .cols = s_.k,
                       .positions = weight_.positions,
                       .row_begin = list(s_.n + 1),
                       .column = list(kept_.count()),
                       .column_begin = list(s_.k + 1),
                       .row = list(kept_.count()),
                       .order = list(kept_.count())};
    backend_.kernels().csr(stream(), args);
    const auto first = [](const Tensor& t) { return static_cast<const int32_t*>(t.data); };
    SparseMatrix listed = weight_;
    listed.csr = {.row_begin = first(args.row_begin),
                  .column = first(args.column),
                  .column_begin = first(args.column_begin),
                  .row = first(args.row),
                  .order = first(args.order),
                  .prepared = &prepared_};
    return listed;
  }

  Tensor make(DType dtype, const Shape& shape, bool random) {
    buffers_.push_back(backend_.arena().allocate(Memory::scratch, "benchmark", dtype, shape));
    const Mirror mirror(stream(), buffers_.back().tensor());
    static uint64_t seed = 0;
    ++seed;
    for (int64_t i = 0; i < mirror.host().count(); ++i) {
      const double u = uniform(philox(seed, 1, static_cast<uint64_t>(i))[0]);
      write(mirror.host(), i, random ? 2 * u - 1 : 0);
    }
    mirror.write();
    return buffers_.back().tensor();
  }

  Setting s_;
  Backend backend_;
  Kept kept_;
  std::vector<Buffer> buffers_;
  Tensor x_, dy_, dense_, values_, want_, got_, expanded_;
  SparseMatrix weight_;  ///< by positions
  SparseMatrix listed_;  ///< with lists as well
  std::unique_ptr<Prepared> prepared_;
};

void run(benchmark::State& state, const Setting& setting) {
  static std::string last;
  static std::unique_ptr<Problem> problem;
  if (last != setting.text()) {
    problem.reset();
    problem = std::make_unique<Problem>(setting);
    last = setting.text();
  }
  Stream& stream = problem->stream();
  struct Way {
    const char* name;
    void (Problem::*run)();
    double best = 1e9;
  };
  std::vector<Way> ways{{"sparse_ms", &Problem::sparse}};
  if (bench::on_device()) {
    ways.push_back({"own_ms", &Problem::own});
  }
  if (bench::on_device() && setting.product == Product::spmm) {
    ways.push_back({"expanded_ms", &Problem::expanded});
  }
  problem->dense();
  for (const Way& way : ways) {
    (*problem.*way.run)();
    if (const double error = problem->error(); !(error <= 1)) {
      state.SkipWithError(
          fmt::format("{} differs from the dense product: {} x allowed", way.name, error).c_str());
      return;
    }
  }
  double dense = 1e9;
  for (auto _ : state) {
    for (Way& way : ways) {
      const double seconds = bench::seconds_of(stream, [&] { (*problem.*way.run)(); });
      way.best = std::min(way.best, seconds);
      if (&way == ways.data()) {
        state.SetIterationTime(seconds);
      }
    }
    dense = std::min(dense, bench::seconds_of(stream, [&] { problem->dense(); }));
  }
  const double sparse = ways.front().best;
  for (const Way& way : ways) {
    state.counters[way.name] = 1e3 * way.best;
  }
  state.counters["dense_ms"] = 1e3 * dense;
  state.counters["ratio"] = dense / sparse;
  state.counters["GF/s"] = problem->kept_flops() / sparse * 1e-9;
  state.counters["dense_GF/s"] = problem->dense_flops() / dense * 1e-9;
  state.counters["bound_%"] =
      100 * (problem->kept_flops() / sparse) / (problem->dense_flops() / dense);
}

void add(const Setting& setting) {
  benchmark::RegisterBenchmark(setting.text().c_str(),
                               [setting](benchmark::State& s) { run(s, setting); })
      ->UseManualTime()
      ->MinTime(bench::on_device() ? 0.01 : 0.2)
      ->Unit(benchmark::kMillisecond);
}

void add_all() {
  if (bench::on_device()) {
    for (const int64_t n : {128, 256, 512, 1024, 2048, 4096}) {
      add({Product::spmm, 0.1, Form::bitmap, DType::bf16, n, n, 576});
    }
    // Gradients of bf16 on both sides of the density from which slabs are used. The time of slabs
    // does not depend on the density (src/kernels/cuda/sparse/sddmm.cu): both methods cost the same
    // there.
    for (const double density : {0.0005, 0.0009, 0.0011, 0.002}) {
      add({Product::sddmm, density, Form::bitmap, DType::bf16, 4096, 4096, 8192});
    }
  }
  const std::pair<int64_t, int64_t> shapes[] = {
      {768, 768}, {3072, 768}, {768, 3072}, {2048, 2048}, {4096, 4096}};
  for (const Product product : {Product::spmm, Product::spmm_transposed, Product::sddmm}) {
    for (const double density : {0.1, 0.2, 0.05}) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        for (const auto& [n, k] : shapes) {
          for (const int64_t tokens : {512, 2048, 4096}) {
            add({product, density, Form::bitmap, dtype, n, k, tokens});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::kernels

int main(int argc, char** argv) {
  return espalier::bench::main(argc, argv, espalier::kernels::add_all);
}
