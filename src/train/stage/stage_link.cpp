#include "src/train/stage/stage_link.h"

#include <array>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_link.h"

namespace espalier::train {
namespace {

using parallel::CarrierKind;

/// Why MPI may not be given addresses of GPUs, the same on all ranks; empty: it may. What does not
/// tell is believed to, where it is asked for.
std::string mpi_obstacle(parallel::Communicator& world, bool wanted) {
  const std::string takes = world.takes_device_memory();
  std::array<double, 1> takers{takes == "yes" || (takes == "unknown" && wanted) ? 1.0 : 0.0};
  parallel::all_reduce_small(world, takers, parallel::Combine::sum);
  return takers[0] == world.size()
             ? ""
             : fmt::format(
                   "MPI takes addresses of GPUs on {} of {} ranks (espalier info: mpi_cuda)",
                   takers[0], world.size());
}

}  // namespace

StageLink choose_stage_link(const io::Config& config, parallel::Communicator& world,
                            Stream& stream) {
  const std::string& wanted = config.parallel.device_link;
  const bool forced = wanted == "nccl" || wanted == "mpi";
  const bool on_device = stream.arena().on_device();
  if (world.size() == 1 || (!on_device && !forced)) {
    return {};
  }
  std::string why = wanted == "host" ? "parallel.device_link = \"host\"" : "";
  if (wanted == "auto" || wanted == "nccl") {
    why = parallel::NcclLink::obstacle(world, stream);
    if (why.empty()) {
      return {.carrier = CarrierKind::nccl,
              .way = fmt::format("messages between stages go from GPU to GPU by NCCL {}",
                                 parallel::nccl::description()),
              .why = {}};
    }
  }
  if (wanted == "auto" || wanted == "mpi") {
    const std::string obstacle =
        on_device ? mpi_obstacle(world, wanted == "mpi") : "a rank computes on no GPU";
    if (obstacle.empty()) {
      return {.carrier = CarrierKind::mpi,
              .way = "messages between stages go from GPU to GPU by MPI",
              .why = {}};
    }
    why += why.empty() ? obstacle : "; " + obstacle;
  }
  return {.carrier = CarrierKind::host,
          .way = fmt::format("messages between stages go through the host: {}", why),
          .why = forced ? why : ""};
}

CarrierKind planned_carrier(const io::Config& config, bool device) {
  return device && config.parallel.device_link != "host" ? CarrierKind::nccl : CarrierKind::host;
}

}  // namespace espalier::train
