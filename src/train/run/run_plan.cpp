#include "src/train/run/run_plan.h"

#include <iterator>
#include <tuple>

#include "parallel/transport/collectives.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"
#include "src/train/exchange/replica_collectives.h"

namespace espalier::train {
namespace {

/// The partition of the checkpoint to resume: messages between stages may be lossy, so other stages
/// would change the run. Empty if the checkpoint's stages do not correspond to the config's.
std::vector<int64_t> saved_partition(const io::ParallelConfig& now,
                                     const std::filesystem::path& file) {
  const io::ParallelConfig before = progress_of(io::CheckpointReader(file)).config.parallel;
  const auto shape = [](const io::ParallelConfig& parallel) {
    return std::tuple(parallel.pipeline, parallel.schedule, parallel.virtual_stages);
  };
  return shape(before) == shape(now) ? before.partition : std::vector<int64_t>();
}

/// The config with the given partition, if the user or a checkpoint gives one.
io::Config with_known_partition(io::Config config, const PlanSources& sources) {
  io::ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline != 1 && parallel.partition.empty() && sources.resume) {
    parallel.partition = saved_partition(parallel, *sources.resume);
  }
  return config;
}

/// Collective. If stages are to be balanced, rank 0 measures for all ranks; else estimates.
LayerTimes times_of_layers(const io::Config& config, const PlanSources& sources,
                           parallel::Communicator& comm) {
  LayerTimes times = estimated_times(config, sources.problem);
  const io::ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline == 1) {
    return times;
  }
  const int64_t samples = config.train.micro_batch > 0 ? config.train.micro_batch : 1;
  if (parallel.partition.empty()) {
    if (comm.rank() == 0) {
      const Span span(Track::compute, "time layers");
      times = measured_times(config, sources.problem, sources.layers, sources.start.kept, samples,
                             sources.backend);
    }
    parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(times.layers)));
  }
  if (parallel.schedule == "message-driven" && parallel.in_flight == 0 && comm.size() > 1) {
    const DType dtype = dtype_by_name(config.train.dtype);
    times.latency = measured_latency(comm, sources.layers.front()->output(samples, dtype).bytes());
  }
  return times;
}

Owners owners_of(const RunPlan& plan, std::span<const std::unique_ptr<model::Layer>> layers) {
  const parallel::Grid& grid = plan.layout.grid;
  Owners owners{.replicas = grid.data,
                .replica_stride = grid.data > 1 ? grid.rank_of({.stage = 0, .replica = 1}) : 1};
  if (!plan.layout.pipelined()) {
    return owners;
  }
  owners.network = plan.specs;
  owners.ranks.assign(plan.specs.size(), 0);
  for (int rank = 0; rank < grid.pipeline; ++rank) {
    for (const size_t number : parameters_of(layers, plan.layout.parts(rank), false)) {
      owners.ranks[number] = grid.rank_of({.stage = rank, .replica = 0});
    }
  }
  return owners;
}

void check_stage_link(const RunPlan& plan, const std::function<void(const std::string&)>& note) {
  if (!plan.layout.pipelined()) {
    return;
  }
  if (!plan.stage_link.obstacle.empty()) {
    throw SharedFailure(fmt::format("parallel.device_link = \"{}\" is not available: {}",
                                    plan.config.parallel.device_link, plan.stage_link.obstacle));
  }
  if (!plan.stage_link.note.empty()) {
    note(plan.stage_link.note);
  }
}

}  // namespace

RunPlan plan_run(const io::Config& given, const PlanSources& sources, parallel::Communicator& comm,
                 const std::function<void(const std::string&)>& note) {
  const io::Config config = with_known_partition(given, sources);
  const LayerTimes times = times_of_layers(config, sources, comm);
  Stream& stream = sources.backend.stream();
  RunPlan plan;
  plan.config = config;
  plan.problem = sources.problem;
  if (config.parallel.pipeline != 1) {  // "auto" may need stages
    plan.stage_link = choose_stage_link(config, comm, stream);
  }
  const bool on_device = comm.size() > 1 && stream.arena().on_device() &&
                         device_obstacle(config, comm, stream).empty();
  on_first_rank_first(comm, [&] {
    static_cast<Plan&>(plan) = make_plan({.config = config,
                                          .problem = sources.problem,
                                          .layers = sources.layers,
                                          .start = sources.start,
                                          .times = times,
                                          .ranks = comm.size(),
                                          .rank = comm.rank(),
                                          .threads = stream.threads(),
                                          .place = kernels::planning(sources.backend.kernels()),
                                          .carrier = plan.stage_link.carrier,
                                          .reduces_on_device = on_device,
                                          .available = stream.arena().available()});
    std::ranges::for_each(plan.notes, note);
    plan.config.parallel.pipeline = plan.pipeline;
    if (plan.layout.pipelined()) {
      plan.config.parallel.partition = plan.layout.partition();
    }
  });
  check_stage_link(plan, note);
  plan.specs = model::parameters_of(sources.layers);
  const parallel::GridPlace place = plan.layout.grid.place_of(comm.rank());
  plan.parts = plan.layout.parts(place.stage);
  plan.parameters = parameters_of(sources.layers, plan.parts);
  plan.first_sample = place.replica * share_of(config, plan.layout.grid.data);
  plan.owners = owners_of(plan, sources.layers);
  return plan;
}

}  // namespace espalier::train
