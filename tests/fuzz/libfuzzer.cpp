// The entry point of libFuzzer, of a program with one target.
#include "tests/fuzz/fuzz.h"

// NOLINTNEXTLINE: libFuzzer's own name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::run(espalier::fuzz::targets().front(), {data, size});
  return 0;
}
