#pragma once
// Runs benchmarks on any backend: `--backend NAME` (default "cpu"). Provides the backend
// (kernels::Backend) and times of calls. Device calls are asynchronous, so one measurement on a
// device is many calls and one wait. Benchmarks are registered after the backend is known:
//
//   int main(int argc, char** argv) { return espalier::bench::main(argc, argv, add_all); }
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "src/core/error.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"

namespace espalier::bench {

/// The backend named on the command line.
inline std::string& backend_name() {
  static std::string name = "cpu";
  return name;
}

inline const kernels::Kernels& chosen() { return kernels::by_name(backend_name()); }
inline bool on_device() { return chosen().open != nullptr; }

/// Removes `--backend NAME` from the arguments.
inline void take_backend(int& argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--backend") == 0) {
      backend_name() = argv[i + 1];
      std::copy(argv + i + 2, argv + argc, argv + i);
      argc -= 2;
      return;
    }
  }
}

template <class Add>
int main(int argc, char** argv, const Add& add) {
  try {
    take_backend(argc, argv);
    benchmark::AddCustomContext("backend", std::string(chosen().name));
    for (const std::string& library : kernels::libraries()) {
      benchmark::AddCustomContext("libraries", library);
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
      return 1;
    }
    add();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

/// Seconds of one call. On a device: the mean of `kTogether` calls with one wait, so that launch
/// and wait overheads are negligible.
template <class Body>
double seconds_of(Stream& stream, const Body& body) {
  constexpr int kTogether = 20;
  const int calls = stream.queue() != nullptr ? kTogether : 1;
  stream.synchronize();
  const double start = now_seconds();
  for (int i = 0; i < calls; ++i) {
    body();
  }
  stream.synchronize();
  return (now_seconds() - start) / calls;
}

}  // namespace espalier::bench
