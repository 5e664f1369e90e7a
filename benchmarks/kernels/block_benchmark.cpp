// Products with blocks compared with the dense GEMM of the same shape and precision, in the same
// process.
//
//   x_dense   time of the dense product / time of the product with blocks
//   %speed    100 x (flops per second over kept elements) / (flops per second of the dense product)
//   %bound    100 x (lower bound on the time) / (time). The bound is the larger of: its flops at
//             the rate of a large dense product; a copy of as many bytes, each operand once.
//             Both are measured in the same run (benchmarks/kernels/bounds.h).
//
// Dense and block runs alternate and the fastest of each counts, since the machine may be shared.
// Every result is compared with the dense product of the same weights, zeros where pruned.
// `--backend cuda` runs on a device and adds:
// - blocks of 64x64 in 4096x4096 with 8,192 tokens;
// - `ell_ms` of spmm: cuSPARSE's product of the same blocks as blocked-ELL, where supported.
//
// Names: product/type/block/rows x cols/tokens; the density is 0.1 unless named. One thread.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "benchmarks/kernels/block_ell.h"
#include "benchmarks/kernels/bounds.h"
#include "src/core/mirror.h"
#include "tests/kernels/kernel_cases_block.h"

namespace espalier::kernels {
namespace {

enum class Product : uint8_t { apply, transposed, gradient };
const char* name_of(Product product) {
  return product == Product::apply        ? "spmm"
         : product == Product::transposed ? "spmm_transposed"
                                          : "sddmm";
}

struct Setting {
  Product product;
  DType dtype;
  int64_t height, width, rows, cols, tokens;
  double density;
};

struct Loaded {
  Setting set;
  Backend backend;
  BlockPattern pattern;
  Buffer x, y, dense, values, y_dense;

  Buffer numbers(const Shape& shape, DType dtype) {
    static std::mt19937 random(1);
    Buffer made = backend.arena().allocate(Memory::scratch, "operand", dtype, shape);
    const Mirror mirror(backend.stream(), made.tensor());
    for (int64_t i = 0; i < shape.count(); ++i) {
      write(mirror.host(), i, static_cast<double>(random()) * 0x1p-31 - 1);
    }
    mirror.write();
    return made;
  }

  explicit Loaded(const Setting& s)
      : set(s),
        backend(bench::chosen(), 1),
        pattern({s.rows, s.cols}, {s.height, s.width}, s.density) {
    x = numbers({s.tokens, s.cols}, s.dtype);
    y = numbers({s.tokens, s.rows}, s.dtype);
    values = numbers({pattern.kept()}, s.dtype);
    Arena& arena = backend.arena();
    dense = arena.allocate(Memory::scratch, "dense", s.dtype, {s.rows, s.cols});
    const Mirror spread(backend.stream(), dense.tensor());
    const Mirror packed(backend.stream(), values.tensor());
    spread.read();
    packed.read();
    for (int64_t k = 0; k < pattern.kept(); ++k) {
      write(spread.host(), pattern.positions[static_cast<size_t>(k)], read(packed.host(), k));
    }
    spread.write();
    const Shape result = s.product == Product::apply        ? Shape{s.tokens, s.rows}
                         : s.product == Product::transposed ? Shape{s.tokens, s.cols}
                                                            : Shape{s.rows, s.cols};
    y_dense = arena.allocate(Memory::scratch, "y", s.dtype, result);
  }

  void run_dense() {
    const Kernels& kernels = backend.kernels();
    Stream& stream = backend.stream();
    switch (set.product) {
      case Product::apply:
        return kernels.gemm(
            stream,
            {.a = x.tensor(), .b = dense.tensor(), .c = y_dense.tensor(), .transpose_b = true});
      case Product::transposed:
        return kernels.gemm(stream, {.a = y.tensor(), .b = dense.tensor(), .c = y_dense.tensor()});
      case Product::gradient:
        return kernels.gemm(
            stream, {.a = y.tensor(), .b = x.tensor(), .c = y_dense.tensor(), .transpose_a = true});
    }
  }

  void run_blocks() {
    const Kernels& kernels = backend.kernels();
    Stream& stream = backend.stream();
    const BlockMatrix weight = pattern.view(stream, values.tensor());
    switch (set.product) {
      case Product::apply:
        return kernels.block_spmm(stream, {.weight = weight, .x = x.tensor(), .y = y.tensor()});
      case Product::transposed:
        return kernels.block_spmm_transposed(
            stream, {.weight = weight, .dy = y.tensor(), .dx = x.tensor()});
      case Product::gradient:
        return kernels.block_sddmm(stream, {.weight = weight, .dy = y.tensor(), .x = x.tensor()});
    }
  }

  double density() const {
    return static_cast<double>(pattern.kept()) / static_cast<double>(set.rows * set.cols);
  }
  double flops() const {
    return 2 * static_cast<double>(pattern.kept()) * static_cast<double>(set.tokens);
  }
  double bound_seconds() {
    const auto elements = set.tokens * (set.rows + set.cols) + pattern.kept();
    const double bytes = static_cast<double>(elements) * static_cast<double>(size_of(set.dtype));
    const double copy = bench::on_device() ? bench::device_copy_seconds(backend, bytes)
                                           : bench::copy_seconds(bytes, 1);
    return std::max(copy, flops() / bench::peak_flops(set.dtype, 1));
  }

  /// cuSPARSE's product of `apply`, written to our products' result; null if unsupported.
  std::unique_ptr<bench::BlockEll> make_rival() {
    if (set.product != Product::apply || !bench::on_device()) {
      return nullptr;
    }
    return bench::make_block_ell(
        backend, {.pattern = pattern, .values = values.tensor(), .x = x.tensor(), .y = y.tensor()});
  }

  /// The largest difference between the two results, relative to the largest value.
  double difference() {
    const Tensor& made = set.product == Product::apply        ? y.tensor()
                         : set.product == Product::transposed ? x.tensor()
                                                              : values.tensor();
    const Mirror got(backend.stream(), made);
    const Mirror want(backend.stream(), y_dense.tensor());
    got.read();
    want.read();
    double most = 0;
    double wrong = 0;
    for (int64_t i = 0; i < made.count(); ++i) {
      const double right =
          read(want.host(),
               set.product == Product::gradient ? pattern.positions[static_cast<size_t>(i)] : i);
      most = std::max(most, std::fabs(right));
      const double off = std::fabs(read(got.host(), i) - right);
      wrong = off <= wrong ? wrong : off;  // also true for NaN
    }
    return wrong / most;
  }
};

/// CPU seconds of one call: one thread, and the machine may be shared. On a device wall seconds.
template <class Body>
double seconds_of(Stream& stream, const Body& body) {
  if (stream.queue() != nullptr) {
    return bench::seconds_of(stream, body);
  }
  const auto start = std::clock();
  body();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

void measure(benchmark::State& state, const Setting& set) {
  Loaded loaded(set);
  Stream& stream = loaded.backend.stream();
  loaded.run_dense();
  loaded.run_blocks();
  const double allowed = set.dtype == DType::fp32 ? 1e-5 : 1e-2;
  const double difference = loaded.difference();
  if (!(difference <= allowed)) {
    state.SkipWithError(fmt::format("differs from the dense product by {}", difference).c_str());
    return;
  }
  auto rival = loaded.make_rival();
  if (rival != nullptr && !(loaded.difference() <= allowed)) {
    state.SetLabel(fmt::format("cuSPARSE's differs by {}", loaded.difference()));
    rival.reset();
  }
  double ell = 1e9;
  double dense = 1e9;
  double blocks = 1e9;
  for (auto _ : state) {
    double total = 0;
    for (int i = 0; i < 5; ++i) {
      const double once = seconds_of(stream, [&] { loaded.run_blocks(); });
      blocks = std::min(blocks, once);
      total += once;
    }
    if (rival != nullptr) {
      ell = std::min(ell, seconds_of(stream, [&] { rival->run(); }));
    }
    dense = std::min(dense, seconds_of(stream, [&] { loaded.run_dense(); }));
    state.SetIterationTime(total / 5);
  }
  const double density = loaded.density();
  state.counters["density"] = density;
  state.counters["dense_GF/s"] = 1e-9 * loaded.flops() / density / dense;
  state.counters["GF/s"] = 1e-9 * loaded.flops() / blocks;
  state.counters["%speed"] = 100 * density * dense / blocks;
  state.counters["%bound"] = 100 * loaded.bound_seconds() / blocks;
  state.counters["x_dense"] = dense / blocks;
  state.counters["dense_ms"] = 1e3 * dense;
  state.counters["block_ms"] = 1e3 * blocks;
  if (rival != nullptr) {
    state.counters["ell_ms"] = 1e3 * ell;
  }
}

void add(const Setting& set) {
  const std::string name =
      fmt::format("{}/{}/{}x{}/{}x{}/{}tokens{}", name_of(set.product), text(set.dtype), set.height,
                  set.width, set.rows, set.cols, set.tokens,
                  set.density == 0.1 ? "" : fmt::format("/density{}", set.density));
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& s) { measure(s, set); })
      ->UseManualTime()
      ->Iterations(8)
      ->Unit(benchmark::kMicrosecond);
}

void add_all() {
  if (bench::on_device()) {
    for (const Product product : {Product::apply, Product::transposed, Product::gradient}) {
      add({product, kBf16, 64, 64, 4096, 4096, 8192, 0.1});
    }
    for (const int64_t n : {1024, 2048, 4096}) {
      add({Product::apply, kBf16, 64, 64, n, n, 576, 0.1});
    }
  }
  for (const Product product : {Product::apply, Product::transposed, Product::gradient}) {
    for (const DType dtype : {kFp32, kBf16}) {
      for (const auto& [rows, cols, tokens] :
           std::vector<std::array<int64_t, 3>>{{768, 768, 512},
                                               {768, 768, 4096},
                                               {3072, 768, 2048},
                                               {768, 3072, 2048},
                                               {2048, 2048, 1024},
                                               {4096, 4096, 512},
                                               {4096, 4096, 4096}}) {
        add({product, dtype, 32, 32, rows, cols, tokens, 0.1});
      }
      for (const auto& [height, width] : std::vector<std::array<int64_t, 2>>{
               {64, 64}, {16, 16}, {8, 8}, {4, 4}, {1, 16}, {16, 1}, {4, 1}, {1, 8}}) {
        add({product, dtype, height, width, 768, 768, 2048, 0.1});
        add({product, dtype, height, width, 4096, 1024, 2048, 0.1});
      }
      add({product, dtype, 32, 32, 1536, 1536, 2048, 0.05});
      add({product, dtype, 32, 32, 1536, 1536, 2048, 0.2});
    }
  }
}

}  // namespace
}  // namespace espalier::kernels

int main(int argc, char** argv) {
  return espalier::bench::main(argc, argv, espalier::kernels::add_all);
}
