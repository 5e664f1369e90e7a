#pragma once
// Cost of layers, for balancing stages: seconds per micro-batch, measured on one layer of each kind
// (layers with equal parameters cost the same), or estimated from dry counts.
#include <vector>

#include "io/config/config.h"
#include "parallel/pipeline/schedule/simulate.h"
#include "parallel/transport/communicator.h"
#include "src/communication_cost/link.h"
#include "src/kernels/backend.h"
#include "src/train/stage/part.h"
#include "src/train/stage/teacher.h"

namespace espalier::train {

struct LayerTimes {
  std::vector<parallel::StageTimes> layers;  ///< in forward order
  double latency = 0;                        ///< of a message between stages
  int64_t samples = 1;                       ///< of the micro-batch
};

/// Of each layer, the number of the first one that is of the same kind: parameters of equal shapes
/// with as many kept elements. The first and the last layer are kinds of their own.
/// `kept`: elements of each parameter of the network.
std::vector<size_t> first_of_kind(std::span<const std::unique_ptr<model::Layer>> layers,
                                  const std::vector<int64_t>& kept);

/// From the counts of "dry" kernels, for a machine of 2e11 operations and 2e10 bytes a second. The
/// last layer includes a `teacher`, if there is one.
LayerTimes estimated_times(const io::Config& config, const ProblemShape& problem,
                           const TeacherFile* teacher = nullptr);

/// Runs each kind of layer alone, with masks of `kept` elements of each parameter of the network
/// (example_mask): once to warm up, then the faster of two. Memory: one layer and its tape. Cost:
/// about four forward and backward passes of one layer of each kind.
LayerTimes measured_times(const io::Config& config, const ProblemShape& problem,
                          std::span<const std::unique_ptr<model::Layer>> layers,
                          const std::vector<int64_t>& kept, int64_t samples,
                          kernels::Backend& backend, const TeacherFile* teacher = nullptr);

/// Collective over two or more ranks: half the time of a message of `bytes` from rank 0 to rank
/// `other` and back, the fastest of five, in seconds; equal on all ranks.
double measured_latency(parallel::Communicator& comm, size_t bytes, int other = 1);

/// Collective over two or more ranks, equal on all: the slower of the links from rank 0 to rank 1
/// and to the last one, by messages of 64 bytes and 1 MiB.
cost::Link measured_link(parallel::Communicator& comm);

}  // namespace espalier::train
