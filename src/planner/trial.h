#pragma once
// Trains planned layouts on this machine, a few steps each: layouts whose predicted steps differ by
// less than the model's error are told apart by measuring them.
//
// Layouts run one after the other, in rounds, so that a machine whose speed changes is fair to all.
// The time of a layout is the first decile of its steps in all rounds, without the first ones of
// each training: as in calibration, the time without other load.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"

namespace espalier::planner {

struct TrialOptions {
  int rounds = 3;
  double seconds = 2;  ///< of a training, at least
  int64_t steps = 8;   ///< likewise, besides those that warm up
  std::function<void(const std::string&)> on_progress;
};

/// Seconds of a step of each layout, equal on all ranks; collective over the ranks of the layouts.
/// Trainings read the data of their config. They prune before the first step, by a method that
/// needs no training, and write to a temporary directory, which is removed.
std::vector<double> try_layouts(parallel::Communicator& comm, std::span<const io::Config> layouts,
                                const TrialOptions& options = {});

}  // namespace espalier::planner
