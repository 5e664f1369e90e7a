#pragma once
// Searches the layouts of a run over a number of ranks: stages, micro-batches of every divisor
// of a replica's samples, ZeRO-1, reduction and order of ranks; schedule, recompute and storage
// of pruned weights where the config has "auto"; on request codecs of gradients, which change a
// run's results. Layers are divided among stages in three ways: by their computing time; by the
// sum of their times of computing, reduction and update; and by their computing time with
// messages below each size. At the end, boundaries between the stages of the fastest move while
// that shortens their step. Layouts that do not fit the device's memory are left out and counted.
//
// Branch and bound: layouts are visited in the order of a lower bound of their step,
//
//   micro-batches × max(time of all layers / ranks of the pipeline, slowest layer)
//
// and left out where it reaches the tenth best step and the best with as many stages. Before
// a layout is simulated, a lower bound of its memory must fit; before it counts, its memory is
// planned as runs plan it. Without divided_by_messages the results are those of an exhaustive
// search.
#include "src/planner/step.h"

namespace espalier::planner {

struct Candidate {
  io::Config config;  ///< the run's, with the choices of the search
  StepPrediction prediction;
};

struct SearchOptions {
  bool codecs = false;  ///< also tries gradients in 8 and 4 bits
  /// Also tries divisions with small messages, and moves the boundaries of the fastest layouts.
  bool divided_by_messages = true;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< fastest first, at most ten
  /// The fastest with each number of stages that has one.
  std::map<int64_t, Candidate> by_stages;
  size_t tried = 0;
  size_t slower = 0;  ///< than the ten, or as fast as one that differs in reduction
  std::map<std::string, size_t> refused;  ///< reasons, with the number of layouts
  /// Of each number of stages without a layout, the most frequent reason.
  std::map<int64_t, std::string> impossible;
  /// If no layout fits: the least bytes of a rank, among the 64 layouts with the smallest bounds,
  /// and that layout's choices.
  double least_memory = 0;
  std::string least_shape;
  std::optional<io::Config> least_config{};
};

/// With storage "auto" all that hold the run's masks.
std::vector<std::string> storages_of(const PlannedRun& run);

/// Throws Failure if no layout is possible: with the most frequent reason, and what would help.
SearchResult search_layouts(const PlannedRun& run, const Machine& machine, int ranks,
                            const SearchOptions& options = {});

}  // namespace espalier::planner
