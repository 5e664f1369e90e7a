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
  int rounds = 6;
  double seconds = 1;  ///< of a training, at least
  int64_t steps = 8;   ///< likewise, besides those that warm up
  std::function<void(const std::string&)> on_progress;
};

struct Tried {
  double seconds = 0;     ///< of a step; infinite if it failed
  std::string failure{};  ///< why it cannot run; empty: it can
};

/// The config of a training of so many steps that is timed only, with its pruned weights as they
/// are once it has pruned: drawn before the first step by a method that needs no training. It
/// evaluates once, at the end, and saves nothing.
io::Config trial_of(io::Config config, int64_t steps);

/// Of each layout, equal on all ranks; collective over the ranks of the layouts. Throws Failure for
/// one that ends some ranks alone; a failure of all ranks only leaves out their layout.
///
/// Trainings read the data of their config and write to a temporary directory, which is removed.
/// They prune before the first step, by a method that needs no training and with equal densities in
/// all layers: what learning the masks costs, and other densities, are not measured.
std::vector<Tried> try_layouts(parallel::Communicator& comm, std::span<const io::Config> layouts,
                               const TrialOptions& options = {});

}  // namespace espalier::planner
