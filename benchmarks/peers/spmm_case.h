#pragma once
// The product on which libraries of sparse products are timed: Y [N, R] = W [N, K] X [K, R], fp32.
// X and Y have the library's preferred layout; preparing it is not timed.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

namespace peers {

struct SpmmCase {
  int64_t n, k, r;
  std::vector<float> w;  ///< dense, row-major, zeros where pruned
  std::vector<float> x;  ///< [K, R] row-major
  int64_t kept = 0;

  /// Arguments of the benchmark: N, K, R, density in percent.
  explicit SpmmCase(const benchmark::State& state)
      : n(state.range(0)), k(state.range(1)), r(state.range(2)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    std::bernoulli_distribution keep(static_cast<double>(state.range(3)) / 100);
    w.resize(static_cast<size_t>(n * k));
    for (float& value : w) {
      value = keep(random) ? uniform(random) : 0.0F;
      kept += value != 0 ? 1 : 0;
    }
    x.resize(static_cast<size_t>(k * r));
    for (float& value : x) {
      value = uniform(random);
    }
  }

  /// Compares some elements of a result, at(row, token), with sums in double.
  template <class At>
  void verify(const At& at) const {
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = i * 7919 % n;
      const int64_t token = i * 104729 % r;
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) {
        sum += static_cast<double>(w[static_cast<size_t>(row * k + j)]) *
               static_cast<double>(x[static_cast<size_t>(j * r + token)]);
      }
      if (std::abs(sum - static_cast<double>(at(row, token))) >
          1e-3 * std::max(1.0, std::abs(sum))) {
        throw std::runtime_error("a product is wrong");
      }
    }
  }

  void report(benchmark::State& state) const {
    const double flops = 2.0 * static_cast<double>(kept) * static_cast<double>(r);
    state.counters["useful_GF/s"] =
        benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  }
};

inline void spmm_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "K", "R", "density%"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const int64_t density : {20, 10, 5}) {
    for (const auto& [n, k] : {std::pair{768, 768}, {768, 3072}, {3072, 768}, {2048, 2048}}) {
      bench->Args({n, k, 2048, density});
    }
  }
}

}  // namespace peers
