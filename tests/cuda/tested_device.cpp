// The device under test in this folder (place.h), as a table for the tests of tests/kernels.
#include "tests/cuda/place.h"
#include "tests/kernels/tested_tables.h"

namespace espalier::kernels {

const std::vector<TestedTable>& tested_tables() {
  static const std::vector<TestedTable> tables = [] {
    std::vector<TestedTable> made;
    if (const Kernels* const kernels = testing::device_table(); kernels != nullptr) {
      // Never closed: cases keep arrays in its memory, and CUDA ends before static objects.
      auto* const backend = new Backend(*kernels, 1);
      made.push_back(
          {.kernels = kernels,
           .random_seeds = 20,
           .plans = false,
           .with_stream = [backend](int, const auto& work) { work(backend->stream()); }});
    }
    return made;
  }();
  return tables;
}

std::string why_no_table() {
  return testing::device_table() == nullptr ? testing::why_no_device() : std::string();
}

}  // namespace espalier::kernels
