#pragma once
// Describes a run before it starts: parameters, memory by category, ranks.
#include <string>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "src/train/masks/initial_masks.h"
#include "src/train/run/trainer.h"

namespace espalier::cli {

/// Extents that depend on the data; assumed if the config does not state them.
struct AssumedProblem {
  train::ProblemShape shape;
  std::string note;  ///< empty: no assumption was made
};
/// Reads no data. A teacher (null: none) predicts the classes of the data.
AssumedProblem assume_problem(const io::Config& config, const train::TeacherFile* teacher);

/// A few lines: network, parameters, ranks, threads, kernels, memory.
std::string describe_run(const io::Config& config, train::Trainer& trainer,
                         const parallel::Communicator& comm);

/// Prints the requirements of a run with one rank as text; with `json`, as one object. The run
/// starts from the masks of `files`, if any. Then, over
/// `ranks` ranks (0: one per stage), those of each stage, and its idle share by counted operations
/// (LayerTimes). They come from a dry run without memory (memory/budget.h): no data is read, and
/// the run need not fit this machine. Bytes by category: dense, after pruning, and at the peak of
/// the run; flops of a whole step. With train.memory_budget, micro_batch and recompute are those
/// that fit it, or the note states why none does.
void print_listing(const io::Config& config, const train::WeightSource& files, int ranks,
                   bool json);

}  // namespace espalier::cli
