// The tables of this CPU, with two, one and three threads.
#include "tests/kernels/kernel_memory.h"
#include "tests/kernels/tested_tables.h"

namespace espalier::kernels {

const std::vector<TestedTable>& tested_tables() {
  static const std::vector<TestedTable> tables = [] {
    std::vector<TestedTable> made;
    for (const Kernels* kernels : computing_tables()) {
      made.push_back({.kernels = kernels,
                      .variations = 3,
                      .varies_threads = true,
                      .with_stream = [](int variation, const auto& work) {
                        constexpr int kThreads[] = {2, 1, 3};
                        Arena arena;
                        Stream stream(arena, kThreads[variation]);
                        work(stream);
                      }});
    }
    return made;
  }();
  return tables;
}

std::string why_no_table() { return {}; }

}  // namespace espalier::kernels
