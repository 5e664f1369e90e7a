#pragma once
// What a run is, before it starts: parameters, memory by category, ranks.
#include <string>

#include "io/config.h"
#include "parallel/communicator.h"
#include "src/train/trainer.h"

namespace espalier::cli {

/// A few lines: network, parameters, ranks, threads, kernels, predicted activation memory.
std::string describe_run(const io::Config& config, train::Trainer& trainer,
                         const parallel::Communicator& comm);

/// Prints parameter count and memory of a config that need not fit this machine, dense and pruned, from a
/// dry pass: nothing is allocated, no data is read.
void print_listing(const io::Config& config);

}  // namespace espalier::cli
