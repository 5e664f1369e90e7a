#pragma once
// What a run is, before it starts: parameters, memory by category, ranks.
#include <nlohmann/json.hpp>
#include <string>

#include "io/config.h"
#include "parallel/communicator.h"
#include "src/train/trainer.h"

namespace espalier::cli {

/// A few lines: network, parameters, ranks, threads, kernels, memory.
std::string describe_run(const io::Config& config, train::Trainer& trainer,
                         const parallel::Communicator& comm);

/// What a rank of a config needs, dense and pruned, from dry passes: nothing is allocated, no data
/// is read, so it need not fit this machine. Bytes are for one rank that sees a micro-batch at a
/// time; flops for the whole step of all ranks.
nlohmann::ordered_json listing(const io::Config& config);

/// `listing` for people; with `json`, as one object.
void print_listing(const io::Config& config, bool json = false);

}  // namespace espalier::cli
