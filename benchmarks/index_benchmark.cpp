// Index encodings: encode, decode, and what a kernel pays to read each (gather, one thread), on a
// random mask of 2^24 elements. Every result is checked against the mask.
//
//   bytes/param    measured by the arena; H(f)/8 is the least that any encoding of random masks takes
//   %copy          100 x (time of a memcpy that moves the same bytes) / (time measured): bytes touched
//                  are the mask or index read and the index, positions or packed values written
//
// Arguments: encoding (1 int32, 2 delta, 3 bitmap), density in 1/1000.
#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "sparse/index.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr int64_t kSize = int64_t{1} << 24;

Mask random_mask(int64_t per_mille) {
  std::mt19937_64 random(1);
  const auto limit = static_cast<uint64_t>(static_cast<double>(per_mille) / 1000 * 0x1p64);
  Mask mask(kSize, false);
  for (int64_t i = 0; i < kSize; ++i) {
    mask.set(i, random() < limit);
  }
  return mask;
}

/// CPU seconds of this process, so far. Not wall time: machines are shared, the work is one thread.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Seconds in which memcpy reads and writes `bytes` together, on average over at least 50 ms.
double copy_seconds(size_t bytes) {
  const std::vector<char> from(bytes / 2, 1);
  std::vector<char> to(bytes / 2, 2);
  const double begin = cpu_seconds();
  int copies = 0;
  do {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
    ++copies;
  } while (cpu_seconds() - begin < 0.05);
  return (cpu_seconds() - begin) / copies;
}

struct Case {
  explicit Case(const benchmark::State& state)
      : encoding(static_cast<Encoding>(state.range(0))),
        mask(random_mask(state.range(1))),
        index(arena, mask, encoding) {}

  /// Runs `fn` as the benchmark; its time goes to `seconds`.
  template <class Fn>
  void measure(benchmark::State& state, Fn&& fn) {
    const double begin = cpu_seconds();
    for (auto _ : state) {
      fn();
      benchmark::ClobberMemory();
    }
    seconds = (cpu_seconds() - begin) / static_cast<double>(state.iterations());
  }
  void report(benchmark::State& state, size_t bytes_touched) const {
    const auto size = static_cast<double>(kSize);
    state.SetLabel(std::string(name_of(encoding)) +
                   " f=" + fmt::format("{}", static_cast<double>(state.range(1)) / 1000));
    state.counters["bytes/param"] = static_cast<double>(index.bytes()) / size;
    state.counters["H(f)/8"] = entropy_bound_bytes(kSize, index.kept()) / size;
    state.counters["ns/kept"] = 1e9 * seconds / static_cast<double>(index.kept());
    state.counters["%copy"] = 100 * copy_seconds(bytes_touched) / seconds;
  }
  size_t kept_bytes() const { return static_cast<size_t>(index.kept()) * 4; }

  Arena arena;
  Encoding encoding;
  Mask mask;
  Index index;
  double seconds = 0;
};

void encode(benchmark::State& state) {
  Case c(state);
  c.measure(state, [&c] {
    const Index index(c.arena, c.mask, c.encoding);
    benchmark::DoNotOptimize(index.kept());
  });
  require(c.index.mask() == c.mask, "the index decodes the mask");
  c.report(state, kSize / 8 + c.index.bytes());
}

void decode(benchmark::State& state) {
  Case c(state);
  std::vector<int32_t> positions(static_cast<size_t>(c.index.kept()));
  c.measure(state, [&] {
    c.index.decode(0, positions);
    benchmark::DoNotOptimize(positions.data());
  });
  require(positions == c.mask.positions(), "the positions are those of the mask");
  c.report(state, c.index.bytes() + c.kept_bytes());
}

/// packed = dense[positions], as after each backward: delta is decoded first, the others are read
/// as they are. The bound counts the whole dense array as read: at these densities most lines are.
void gather(benchmark::State& state) {
  Case c(state);
  Stream stream(c.arena, 1);
  const auto& kernels = kernels::by_name("cpu");
  const Buffer dense = c.arena.allocate(Memory::scratch, "dense", DType::fp32, Shape{kSize});
  const Buffer packed =
      c.arena.allocate(Memory::scratch, "packed", DType::fp32, Shape{c.index.kept()});
  for (int64_t i = 0; i < kSize; ++i) {
    dense.tensor().get<float>()[i] = static_cast<float>(i);
  }
  std::vector<int32_t> scratch(static_cast<size_t>(c.index.kept()));
  c.measure(state, [&] {
    kernels.gather(
        stream,
        {.dense = dense.tensor(), .packed = packed.tensor(), .positions = c.index.view(scratch)});
  });
  const auto positions = c.mask.positions();
  for (size_t k = 0; k < positions.size(); ++k) {
    require(packed.tensor().get<float>()[k] == static_cast<float>(positions[k]), "gathered value",
            k);
  }
  c.report(state, static_cast<size_t>(kSize) * 4 + c.index.bytes() + c.kept_bytes());
}

void cases(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgsProduct({{1, 2, 3}, {500, 200, 100, 50, 10}})
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.1);
}

BENCHMARK(encode)->Apply(cases);
BENCHMARK(decode)->Apply(cases);
BENCHMARK(gather)->Apply(cases);

}  // namespace
}  // namespace espalier::sparse
