#pragma once
// Measures this machine for the planner, with the kernels and messages of a run.
//
// Short trainings of three blocks of a GPT, and of three convolutions, in both types, dense and
// at several densities, widths and numbers of tokens or pixels, give the times of all operations
// (kernels/operation_times.h). Under mpirun all ranks compute at once, so the times contain what
// ranks of one machine cost each other: calibrate with as many ranks as a run has on a machine.
// Each codec encodes and decodes a bucket. A short and a long message between ranks 0 and 1 give
// the link. Rank 0 writes a file and reads it from the disk again. Cost: about two minutes; with
// several rounds a minute each.
//
// Trainings repeat until `seconds` have passed, and at least `rounds` times. Each operation keeps
// the median of its times, so plans predict the machine with the load that it usually has.
#include <filesystem>
#include <functional>

#include "parallel/transport/communicator.h"
#include "src/planner/machine.h"

namespace espalier::planner {

struct CalibrationOptions {
  int threads = 1;       ///< of a rank
  bool quick = false;    ///< a few small measurements, for tests
  double seconds = 100;  ///< of all trainings: on a slow machine the largest are left out
  int rounds = 1;        ///< at least, however long they take
  std::filesystem::path directory = ".";  ///< whose disk is measured
  std::function<void(const std::string&)> on_progress;
};

/// Collective; the result is rank 0's.
Machine calibrate(parallel::Communicator& comm, const CalibrationOptions& options);

}  // namespace espalier::planner
