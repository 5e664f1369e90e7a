// Linked to a test of whole runs: they compute on a GPU. Without a GPU the program exits at once
// with ctest's code for "skipped".
#include <cstdio>
#include <cstdlib>

#include "tests/cuda/place.h"
#include "tests/support/support.h"

namespace {

[[maybe_unused]] const bool kSet = [] {
  if (espalier::testing::device_table() == nullptr) {
    std::printf("skipped: %s\n", espalier::testing::why_no_device().c_str());
    std::exit(77);
  }
  espalier::testing::kernels_of_runs() = espalier::testing::device_table();
  return true;
}();

}  // namespace
