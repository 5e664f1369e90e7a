#pragma once
// The tables that a program of tests covers, and how their calls run. These sources of this folder
// are compiled for each such program: kernels_test.cpp, random_kernels_test.cpp and
// wire_tables_test.cpp.
//   kernels_tests    the tables of this CPU (cpu_tables.cpp)
//   simt_tests       "cuda-simt" (tests/simt/simt_table.cpp)
//   cuda_tests       a GPU, if there is one; cuda_late_tests: a simulated device
//                    (tests/cuda/tested_device.cpp)
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels {

struct TestedTable {
  const Kernels* kernels = nullptr;
  /// Ways to run a call that give the same bits: numbers of threads, orders of threads, or the same
  /// again.
  int variations = 2;
  bool varies_threads = false;  ///< then only cases with `any_thread_count` have the same bits
  /// Cases with larger operands are only compared with the reference.
  int64_t most_elements = std::numeric_limits<int64_t>::max();
  uint64_t random_seeds = 40;  ///< of random cases
  bool delays = false;         ///< a call changes host memory only when the host waits
  bool plans = true;           ///< a stream's arena is new: its workspace is that of the call
  bool plans_exactly = false;  ///< plans have that workspace, not more
  /// Calls work(stream), and waits for the stream.
  std::function<void(int variation, const std::function<void(Stream&)>& work)> with_stream;
};

/// Each program defines both.
const std::vector<TestedTable>& tested_tables();
/// The reason why there is no table to test; empty if there is one.
std::string why_no_table();

}  // namespace espalier::kernels
