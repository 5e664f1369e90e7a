#pragma once
// The command line of `espalier train`, which `supervise` and `plan` read, too, and its ranks.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "src/cli/shared/exit_code.h"

namespace espalier::cli {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::string> out;
  std::string resume;
  std::string init;
  std::vector<std::string> accepted;  ///< changes of a resumed run
  int64_t steps = 0;
  bool dry_run = false;
  int ranks = 0;      ///< of the listing; 0: one per stage
  bool json = false;  ///< of the listing
};

/// Adds the options to `command`; parsing it fills `arguments`, which must outlive it.
void add_options(CLI::App& command, TrainArguments& arguments);

/// The config file with the overrides of the command line. Throws Failure.
io::Config config_of(const TrainArguments& arguments);

/// On rank 0: notes that a config without [model] has the default network.
void note_default_network(const TrainArguments& arguments, const io::Config& config);

/// Calls `body` on this rank: alone, or under a launcher, where a failure of one rank ends all.
/// `body` may call `on_failure` with the exception in flight, before it destroys what may hang.
using RankBody =
    std::function<ExitCode(parallel::Communicator& comm, const std::function<void()>& on_failure)>;
int on_ranks(const io::Config& config, const RankBody& body);

}  // namespace espalier::cli
