#pragma once
// Lower bounds on a kernel's time, measured in the same run as the kernel: a copy of as many bytes,
// and a large GEMM. All times are the shortest of several runs.
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "benchmarks/kernels/backend.h"
#include "src/core/mirror.h"
#include "tests/kernels/kernel_case.h"

namespace espalier::bench {

/// The shortest of the runs that fit into `budget` seconds (at least 5), in seconds.
template <class Body>
double shortest(double budget, Stream& stream, const Body& body) {
  double best = 1e9;
  const double begin = now_seconds();
  for (int i = 0; i < 5 || now_seconds() - begin < budget; ++i) {
    best = std::min(best, seconds_of(stream, body));
  }
  return best;
}

/// Seconds of a copy within a device's memory.
inline double device_copy_seconds(kernels::Backend& backend, double bytes) {
  const auto half = static_cast<int64_t>(std::max(1.0, bytes / 2));
  const Buffer from = backend.arena().allocate(Memory::scratch, "from", DType::uint8, {half});
  const Buffer to = backend.arena().allocate(Memory::scratch, "to", DType::uint8, {half});
  return shortest(0.1, backend.stream(),
                  [&] { backend.stream().copy(from.tensor(), to.tensor()); });
}

/// Seconds of a copy that reads bytes / 2 and writes bytes / 2.
inline double copy_seconds(double bytes, int threads) {
  const int64_t chunk = 32768;
  const auto chunks = static_cast<int64_t>(std::max(1.0, bytes / 2 / chunk));
  Arena arena;
  const Buffer from = arena.allocate(Memory::scratch, "from", DType::uint8, {chunks * chunk});
  const Buffer to = arena.allocate(Memory::scratch, "to", DType::uint8, {chunks * chunk});
  const auto* source = from.tensor().get<uint8_t>();
  auto* target = to.tensor().get<uint8_t>();
  Stream stream(arena, threads);
  const double seconds = shortest(0.1, stream, [&] {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < chunks; ++i) {
      std::memcpy(target + i * chunk, source + i * chunk, static_cast<size_t>(chunk));
    }
    benchmark::DoNotOptimize(target[0]);
  });
  return seconds * bytes / (2.0 * static_cast<double>(chunks * chunk));
}

/// Flops per second of a GEMM of 1,024^3 (on a device 8,192^3) on nonzero numbers, measured once.
inline double peak_flops(DType dtype, int threads) {
  static std::map<std::pair<DType, int>, double> measured;
  double& peak = measured[{dtype, threads}];
  if (peak == 0) {
    const int64_t n = on_device() ? 8192 : 1024;
    kernels::Backend backend(chosen(), threads);
    Arena& arena = backend.arena();
    const Buffer a = arena.allocate(Memory::scratch, "a", dtype, {n, n});
    const Buffer b = arena.allocate(Memory::scratch, "b", dtype, {n, n});
    const Buffer c = arena.allocate(Memory::scratch, "c", dtype, {n, n});
    for (const Buffer* operand : {&a, &b}) {
      const Mirror mirror(backend.stream(), operand->tensor());
      for (int64_t i = 0; i < n * n; ++i) {
        kernels::write(mirror.host(), i, uniform(philox(1, 2, static_cast<uint64_t>(i))[0]) - 0.5);
      }
      mirror.write();
    }
    const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
    peak = flops / shortest(0.5, backend.stream(), [&] {
             backend.kernels().gemm(backend.stream(),
                                    {.a = a.tensor(), .b = b.tensor(), .c = c.tensor()});
           });
  }
  return peak;
}

}  // namespace espalier::bench
