#include "src/train/run/run_plan.h"

#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <thread>
#include <tuple>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/transport/collectives.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"
#include "src/train/exchange/replica_route.h"
#include "src/train/memory/host_memory.h"

namespace espalier::train {
namespace {

/// The config with the choices of the run's earlier part, by timing or to fit the memory budget:
/// masks have changed since, so a new choice may differ. Other micro-batches change the order of
/// sums; other stages change the run if messages between them are lossy.
io::Config with_earlier_choices(io::Config config, const RunProgress* resumed, int ranks) {
  if (resumed == nullptr) {
    return config;
  }
  io::ParallelConfig before = resumed->config.parallel;
  const parallel::ScheduleEntry& schedule = parallel::schedule_entry(before.schedule);
  if (before.pipeline > 1) {
    before.schedule = schedule.name;  // "auto" in files of earlier versions is 1f1b
  }
  io::ParallelConfig& parallel = config.parallel;
  const bool same_budget = resumed->config.train.memory_budget == config.train.memory_budget;
  const bool same_memory = same_budget && resumed->manifest && resumed->manifest->ranks == ranks;
  if (same_memory && parallel.pipeline == 0) {
    parallel.pipeline = before.pipeline;
  }
  const bool may_keep_parts =
      parallel.partition.empty() || parallel.partition.size() == before.partition.size();
  if (same_budget && parallel.schedule == "auto" && schedule.automatic && before.pipeline > 1 &&
      parallel.pipeline == before.pipeline && may_keep_parts) {
    parallel.schedule = before.schedule;
  }
  const auto shape = [](const io::ParallelConfig& of) {
    return std::tuple(of.pipeline, of.schedule, of.virtual_stages);
  };
  const bool same_stages = shape(before) == shape(parallel);
  if (parallel.pipeline != 1 && parallel.partition.empty() && same_stages) {
    parallel.partition = before.partition;
  }
  io::TrainConfig& train = config.train;
  if (same_memory && train.micro_batch == 0 && resumed->config.train.micro_batch == 0 &&
      resumed->config.train.global_batch == train.global_batch && same_stages &&
      resumed->manifest->micro_batch > 0) {
    train.micro_batch = resumed->manifest->micro_batch;
  }
  return config;
}

/// Collective. If stages are to be balanced, rank 0 measures for all ranks; else estimates.
LayerTimes times_of_layers(const io::Config& config, const PlanSources& sources,
                           parallel::Communicator& comm) {
  LayerTimes times = estimated_times(config, sources.problem, sources.teacher);
  const io::ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline == 1) {
    return times;
  }
  const int64_t samples = config.train.micro_batch > 0 ? config.train.micro_batch : 1;
  if (parallel.partition.empty()) {
    if (comm.rank() == 0) {
      const Span span(Track::compute, "time layers");
      times = measured_times(config, sources.problem, sources.layers, sources.start.kept, samples,
                             sources.backend, sources.teacher);
    }
    times.samples = samples;
    parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(times.layers)));
  }
  const bool by_arrival = parallel::schedule_entry(parallel.schedule).by_arrival();
  if (by_arrival && comm.size() > 1) {
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

/// Collective. Plans depend on threads and on a device's free memory, which may differ.
void compare_plans(const RunPlan& plan, parallel::Communicator& comm) {
  const Fact fact{
      .name = "plans",
      .value = fmt::format("{} stages, schedule {}, partition [{}], micro_batch {}, recompute {}",
                           plan.pipeline, plan.layout.schedule.name,
                           fmt::join(plan.layout.partition(), ", "), plan.micro_batch(),
                           model::name_of(plan.fit.choice.recompute)),
      .fix = "set parallel.schedule, train.micro_batch, train.recompute and run.threads"};
  compare_facts({&fact, 1}, comm);
}

/// Collective. The least of all ranks, so that their plans are equal.
size_t least_of(size_t bytes, parallel::Communicator& comm) {
  std::array<double, 1> least{-static_cast<double>(bytes)};
  parallel::all_reduce_small(comm, least, parallel::Combine::max);
  return -least[0] < 0x1p63 ? static_cast<size_t>(-least[0]) : std::numeric_limits<size_t>::max();
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
  const io::Config config = with_earlier_choices(given, sources.resumed, comm.size());
  const LayerTimes times = times_of_layers(config, sources, comm);
  const bool chooses = config.parallel.pipeline == 0 ||
                       (config.parallel.pipeline > 1 && config.parallel.schedule == "auto");
  const cost::Link link = chooses && comm.size() > 1 ? measured_link(comm) : cost::Link{};
  Stream& stream = sources.backend.stream();
  const size_t available = least_of(stream.arena().available(), comm);
  const size_t host = least_of(
      host_limit(sources.system_root).bytes / static_cast<size_t>(comm.local_size()), comm);
  const size_t cpus = least_of(std::thread::hardware_concurrency(), comm);
  const bool shares_cpus =
      !stream.arena().on_device() && static_cast<size_t>(comm.local_size()) > cpus;
  RunPlan plan;
  plan.config = config;
  plan.config.train.micro_batch = given.train.micro_batch;
  plan.problem = sources.problem;
  if (config.parallel.pipeline != 1) {  // "auto" may need stages
    plan.stage_link = choose_stage_link(config, comm, stream);
  }
  const bool on_device = comm.size() > 1 && stream.arena().on_device() &&
                         device_obstacle(config, comm, stream).empty();
  const auto input = [sources, link, problem = sources.problem, ranks = comm.size(),
                      rank = comm.rank(), machines = comm.members().node, shares_cpus, on_device,
                      available, host, carrier = plan.stage_link.carrier](
                         const io::Config& of, const LayerTimes& by_layer) {
    Stream& planned = sources.backend.stream();
    return PlanInput{.config = of,
                     .problem = problem,
                     .layers = sources.layers,
                     .start = sources.start,
                     .times = by_layer,
                     .link = link,
                     .ranks = ranks,
                     .rank = rank,
                     .threads = planned.threads(),
                     .machines = machines,
                     .shares_cpus = shares_cpus,
                     .place = kernels::planning(sources.backend.kernels()),
                     .carrier = carrier,
                     .reduces_on_device = on_device,
                     .teacher = sources.teacher,
                     .available = available,
                     .host = host};
  };
  on_first_rank_first(comm, [&] {
    static_cast<Plan&>(plan) = make_plan(input(config, times));
    check(plan.micro_batch() * plan.problem.rows <= INT32_MAX,
          "a micro-batch of {} sequences has {} tokens, more than 2^31 - 1; set a smaller "
          "train.micro_batch",
          plan.micro_batch(), plan.micro_batch() * plan.problem.rows);
    std::ranges::for_each(plan.notes, note);
    plan.config.parallel.pipeline = plan.pipeline;
    if (plan.layout.pipelined()) {
      if (config.parallel.schedule == "auto") {
        plan.config.parallel.schedule = plan.layout.schedule.name;
      }
      plan.config.parallel.partition = plan.layout.partition();
    }
  });
  plan.with_storages = [input, config, times, chosen = static_cast<const Plan&>(plan)](
                           const std::map<std::string, std::string>& storages) {
    return plan_with_storages(input(config, times), chosen, storages);
  };
  compare_plans(plan, comm);
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
