// Index encodings: bytes compared with the entropy, and times of encoding, decoding and reading by
// a kernel. One thread, matrices of 4096 x 4096. Every result is checked against the mask.
//
//   bytes/param    measured by the arena. H(f)/8 is the lower bound for encodings of random masks;
//                  bytes/H is the ratio to it
//   ns/kept, ns/elem   CPU time per kept element and per element of the matrix
//
//   encode   mask -> index
//   decode   index -> positions of the first half of the kept elements
//   view     index -> input of kernels: bitmap and prefix counts, unless kernels read the encoding
//   gather   packed = dense[positions], fp32, view included
//
// Arguments:
// - kind of mask: 0 random, 1 uneven (densities of rows and columns differ, as after magnitude
//   pruning), 2 at most 1 of m, 3 blocks of 16 x 16;
// - density in 1/1000;
// - encoding: its position in the registry.
#include <benchmark/benchmark.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <vector>

#include "sparse/index/index.h"
#include "src/core/error.h"
#include "tests/sparse/index_example.h"

namespace espalier::sparse {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kSize = kRows * kRows;

enum Kind : int64_t { kRandom, kUneven, kNm, kBlock };
constexpr const char* kKindNames[] = {"random", "uneven", "nm", "block"};

IndexShape shape_of(int64_t kind, double density) {
  IndexShape shape{.cols = kRows};
  if (kind == kNm) {
    shape.n = density == 0.5 ? 2 : 1;
    shape.m = static_cast<int>(std::lround(shape.n / density));
  } else if (kind == kBlock) {
    shape.height = shape.width = 16;
  }
  return shape;
}

const Mask& mask_of(int64_t kind, double density) {
  static std::map<std::pair<int64_t, double>, Mask> made;
  const auto found = made.find({kind, density});
  if (found != made.end()) {
    return found->second;
  }
  const IndexShape shape = shape_of(kind, density);
  Mask mask = kind == kRandom   ? random_mask(kSize, density, 1)
              : kind == kUneven ? uneven_mask(kRows, kRows, density, 0.4)
              : kind == kNm     ? nm_mask(kRows, shape, 0, 1)
                                : block_mask(kRows, shape, density, 1);
  return made[{kind, density}] = std::move(mask);
}

/// CPU seconds of this process, so far. Not wall time: machines are shared, the work is one thread.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Case {
  explicit Case(const benchmark::State& state)
      : kind(state.range(0)),
        density(static_cast<double>(state.range(1)) / 1000),
        encoding(*encodings()[static_cast<size_t>(state.range(2))]),
        mask(mask_of(kind, density)),
        kept(mask.kept()),
        index(arena, mask, encoding, shape_of(kind, density)),
        scratch(index.scratch_bytes() / 8 + 1) {}

  /// Runs `fn` as the benchmark; its shortest time goes to `seconds`.
  template <class Fn>
  void measure(benchmark::State& state, Fn&& fn) {
    for (auto _ : state) {
      const double begin = cpu_seconds();
      fn();
      benchmark::ClobberMemory();
      seconds = std::min(seconds, cpu_seconds() - begin);
    }
  }
  kernels::Positions view() {
    return index.view({reinterpret_cast<uint8_t*>(scratch.data()), index.scratch_bytes()});
  }
  void report(benchmark::State& state, size_t bytes, int64_t touched) const {
    const auto size = static_cast<double>(kSize);
    state.SetLabel(fmt::format("{} f={} {}", kKindNames[kind], density, encoding.name));
    state.counters["bytes/param"] = static_cast<double>(bytes) / size;
    state.counters["H(f)/8"] = entropy_bound_bytes(kSize, kept) / size;
    state.counters["bytes/H"] = static_cast<double>(bytes) / entropy_bound_bytes(kSize, kept);
    state.counters["ns/kept"] = 1e9 * seconds / static_cast<double>(touched);
    state.counters["ns/elem"] = 1e9 * seconds / size;
  }

  Arena arena;
  int64_t kind;
  double density;
  Encoding encoding;
  const Mask& mask;
  int64_t kept;
  Index index;
  std::vector<uint64_t> scratch;
  double seconds = std::numeric_limits<double>::max();
};

void encode(benchmark::State& state) {
  Case c(state);
  c.measure(state, [&c] {
    const Index index(c.arena, c.mask, c.encoding, c.index.shape());
    benchmark::DoNotOptimize(index.kept());
  });
  require(c.index.mask() == c.mask, "the index decodes the mask");
  c.report(state, c.index.bytes(), c.kept);
}

void decode(benchmark::State& state) {
  Case c(state);
  std::vector<int32_t> positions(static_cast<size_t>(c.kept / 2));
  c.measure(state, [&] {
    c.index.decode(0, positions);
    benchmark::DoNotOptimize(positions.data());
  });
  auto expected = c.mask.positions();
  expected.resize(positions.size());
  require(positions == expected, "the positions are those of the mask");
  c.report(state, c.index.bytes(), c.kept / 2);
}

void view(benchmark::State& state) {
  Case c(state);
  c.measure(state, [&] { benchmark::DoNotOptimize(c.view().bitmap); });
  const auto words = c.mask.words();
  require(c.view().bitmap == nullptr || std::equal(words.begin(), words.end(), c.view().bitmap),
          "the words are the mask's");
  c.report(state, c.index.bytes(), c.kept);
}

void gather(benchmark::State& state) {
  Case c(state);
  Stream stream(c.arena, 1);
  const auto& kernels = kernels::by_name("cpu");
  const Buffer dense = c.arena.allocate(Memory::scratch, "dense", DType::fp32, Shape{kSize});
  const Buffer packed = c.arena.allocate(Memory::scratch, "packed", DType::fp32, Shape{c.kept});
  for (int64_t i = 0; i < kSize; ++i) {
    dense.tensor().get<float>()[i] = static_cast<float>(i);
  }
  c.measure(state, [&] {
    kernels.gather(stream,
                   {.dense = dense.tensor(), .packed = packed.tensor(), .positions = c.view()});
  });
  const auto positions = c.mask.positions();
  for (size_t k = 0; k < positions.size(); ++k) {
    require(packed.tensor().get<float>()[k] == static_cast<float>(positions[k]), "gathered value",
            k);
  }
  c.report(state, c.index.bytes(), c.kept);
}

const std::vector<int64_t> kAny{number_of(Encoding::int32), number_of(Encoding::bitmap),
                                number_of(Encoding::golomb)};
const std::vector<int64_t> kDensities{500, 300, 200, 100, 50, 20, 10};

void every_mask(benchmark::internal::Benchmark* b) {
  b->ArgNames({"mask", "f", "code"})->Unit(benchmark::kMillisecond)->MinTime(0.05);
  b->ArgsProduct({{kRandom}, kDensities, kAny});
  b->ArgsProduct({{kUneven}, {100, 50}, kAny});
  for (const int64_t density : {500, 250, 125}) {
    b->Args({kNm, density, number_of(Encoding::nm)});
  }
  for (const int64_t density : {200, 100, 50}) {
    b->Args({kBlock, density, number_of(Encoding::block)});
  }
}

BENCHMARK(encode)->Apply(every_mask);
BENCHMARK(decode)->Apply(every_mask);
BENCHMARK(view)->Apply(every_mask);
BENCHMARK(gather)->Apply(every_mask);

}  // namespace
}  // namespace espalier::sparse
