#pragma once
// How messages between the stages of a pipeline get from GPU to GPU: by NCCL where each rank has a
// GPU of its own, by an MPI that takes their addresses, or through the host. Decided before
// anything is planned, for all ranks alike: it says where the buffers lie.
#include <string>

#include "io/config/config.h"
#include "parallel/pipeline/carrier.h"
#include "parallel/transport/communicator.h"
#include "src/core/stream.h"

namespace espalier::train {

struct StageLink {
  parallel::CarrierKind carrier = parallel::CarrierKind::host;
  std::string way;  ///< for people; empty: the host's memory is all there is
  std::string why;  ///< `parallel.device_link` asks for what cannot be had; empty: it does not
};

/// Collective over all ranks of a run that may have stages.
StageLink choose_stage_link(const io::Config& config, parallel::Communicator& world,
                            Stream& stream);

/// What a plan for other machines counts with.
parallel::CarrierKind planned_carrier(const io::Config& config, bool device);

}  // namespace espalier::train
