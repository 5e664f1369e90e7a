#include "src/planner/step.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "pruning/plan.h"
#include "src/core/error.h"
#include "src/kernels/wire_codec.h"
#include "src/train/run/pipeline.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::planner {
namespace {

/// Calls visit(layer) for the layers of a stage.
template <class Visit>
void for_layers(const train::Layout& layout, int stage, const Visit& visit) {
  for (size_t i = layout.first_layer(stage); i < layout.ends[static_cast<size_t>(stage)]; ++i) {
    visit(i);
  }
}

train::PassChoice choice_of(const train::Plan& plan) { return plan.fit.choice; }

/// ZeRO-1 has no sums by levels: runs then sum by sra over all ranks.
std::string reduction_of(const io::Config& config) {
  const std::string& wanted = config.parallel.reduction;
  const bool by_levels = wanted == "hierarchical" || wanted == "auto";
  return config.parallel.zero > 0 && by_levels ? "sra" : wanted;
}

DType gradient_of(const io::Config& config, const train::Layout& layout) {
  return train::gradient_type(config, int64_t{layout.micro_batches()} * layout.grid.data);
}

double busiest(const parallel::Timeline& timeline) {
  double most = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    most = std::max(most, timeline.busy(rank));
  }
  return most;
}

}  // namespace

std::vector<int64_t> kept_at_last(const PlannedRun& run) {
  const std::vector<int64_t> steps = pruning::pruning_steps(run.config.pruning);
  return steps.empty() ? run.start.kept
                       : train::kept_after(run.config.pruning, model::parameters_of(run.layers),
                                           steps.back(), run.start.kept);
}

bool defers_weights(const parallel::Schedule& schedule) {
  const auto defers = [](const parallel::Action& action) {
    return action.kind == parallel::ActionKind::backward_weight;
  };
  return std::ranges::any_of(schedule.programs, [&](const std::vector<parallel::Action>& program) {
    return std::ranges::any_of(program, defers);
  });
}

StepPredictor::StepPredictor(const PlannedRun& run, const Machine& machine, int devices)
    : run_(run),
      machine_(machine),
      ways_(run.tensor.ways),
      devices_(devices),
      dtype_(dtype_by_name(run.config.train.dtype)),
      kept_(kept_at_last(run)) {
  check(devices == 1 || devices <= machine.levels.back().ranks,
        "{} ranks need as many devices, and machine \"{}\" has {}: ask for fewer ranks, or raise "
        "the ranks of its last [[level]]",
        devices, machine.name, machine.levels.back().ranks);
  check(devices % ways_ == 0, "{} ranks cannot be divided into groups of {}: change --tensor",
        devices, ways_);
}

StepPrediction StepPredictor::predict(const io::Config& config) {
  // The micro-batch decides the times, and the times balance the stages.
  train::LayerTimes times = train::estimated_times(config, run_.problem);
  train::Plan plan = train::make_plan(input_of(config, times));
  const NetworkTimes* counted =
      &network(config, choice_of(plan), defers_weights(plan.layout.schedule));
  if (plan.layout.pipelined() && config.parallel.partition.empty()) {
    times.layers = counted->passes;
    plan = train::make_plan(input_of(config, times));
    counted = &network(config, choice_of(plan), defers_weights(plan.layout.schedule));
  }
  StepPrediction found{.ranks = devices_, .micro_batch = plan.fit.choice.micro_batch};
  PipelineTimes pipes = pipeline(config, plan.layout, *counted);
  found.micro_batches = train::share_of(config, plan.layout.grid.data) / found.micro_batch;
  add_step(config, plan.layout, *counted, pipes, found);
  const auto passes = static_cast<double>(found.micro_batches);
  add_operations(*counted, 0, counted->operations.size(), passes, found.by_operation);
  found.flops = flops_of(*counted, passes) * plan.layout.grid.data;
  found.timeline = std::move(pipes.timeline);
  found.plan = std::move(plan);
  return found;
}

train::PlanInput StepPredictor::input_of(const io::Config& config,
                                         const train::LayerTimes& times) const {
  return {.config = config,
          .problem = run_.problem,
          .layers = run_.layers,
          .start = run_.start,
          .times = times,
          .link = devices_ == 1 ? cost::Link{}
                                : machine_.levels[machine_.level_between(0, devices_ - 1)].link,
          .ranks = ranks(),
          .threads = static_cast<int>(machine_.threads),
          .machines = machines_of(ranks(), machine_, run_.tensor),
          .place = kernels::planning(config.run.backend),
          .carrier = train::planned_carrier(config, config.run.backend == "cuda")};
}

std::string StepPredictor::ways_to_fit(const io::Config& config, const train::Plan& plan,
                                       double bytes) const {
  const train::LayerTimes times = train::estimated_times(config, run_.problem);
  return train::ways_to_fit(input_of(config, times), plan, static_cast<size_t>(bytes));
}

double StepPredictor::seconds(const kernels::OperationRow& row) const {
  return static_cast<double>(row.calls) * seconds_of(machine_, run_.tensor, row, dtype_);
}

double StepPredictor::seconds_of_all(const Operations& operations) const {
  return std::accumulate(
      operations.begin(), operations.end(), 0.0,
      [this](double sum, const kernels::OperationRow& row) { return sum + seconds(row); });
}

const NetworkTimes& StepPredictor::network(const io::Config& config,
                                           const train::PassChoice& choice, bool deferred) {
  const std::string key =
      fmt::format("{} {} {} {}", config.sparse.storage.fallback, choice.micro_batch,
                  model::name_of(choice.recompute), deferred);
  const auto known = networks_.find(key);
  if (known != networks_.end()) {
    return known->second;
  }
  NetworkTimes found{.operations = count_operations(config, run_.problem, kept_, choice.micro_batch,
                                                    choice.recompute, deferred)};
  const bool recomputed = choice.recompute == model::Recompute::full;
  for (size_t i = 0; i < found.operations.size(); ++i) {
    const LayerOperations& layer = found.operations[i];
    const double third = seconds_of_all({layer.other}) / 3;
    const bool last = i > 0 && i + 1 == found.operations.size();
    const auto values = static_cast<double>(found.operations[last ? i - 1 : i].output_values);
    const TensorExchanges exchanges = exchanges_of(
        machine_, run_.tensor, layer, values * static_cast<double>(size_of(dtype_)), recomputed);
    found.passes.push_back(
        {.forward = third + exchanges.forward + seconds_of_all(layer.forward),
         .backward_input = third + exchanges.backward + seconds_of_all(layer.backward_input),
         .backward_weight = third + seconds_of_all(layer.backward_weight)});
    found.updates.push_back(seconds_of_all(layer.update));
  }
  return networks_.emplace(key, std::move(found)).first->second;
}

Links StepPredictor::links_of(const train::Layout& layout) const {
  std::set<std::pair<int, int>> messages;  // forward, between ranks of the pipeline
  for (int stage = 0; stage + 1 < layout.stages(); ++stage) {
    messages.emplace(layout.schedule.rank_of(stage), layout.schedule.rank_of(stage + 1));
  }
  return {machine_, layout.grid, ways_, {messages.begin(), messages.end()}};
}

parallel::Costs StepPredictor::costs_of(const io::Config& config, const train::Layout& layout,
                                        const NetworkTimes& network) const {
  parallel::Costs costs = train::stage_costs(layout.ends, {.layers = network.passes});
  const kernels::WireFormat wire = train::activation_format(config);
  const Links links = links_of(layout);
  for (int stage = 0; stage + 1 < layout.stages(); ++stage) {
    const int from = layout.schedule.rank_of(stage);
    const int to = layout.schedule.rank_of(stage + 1);
    if (from == to) {
      continue;
    }
    const LayerOperations& last = network.operations[layout.ends[static_cast<size_t>(stage)] - 1];
    const int64_t values = last.output_values / ways_;
    const double bytes = wire == kernels::WireFormat{}
                             ? static_cast<double>(last.output_bytes) / ways_
                             : static_cast<double>(kernels::wire_bytes(wire, values));
    const cost::Link link = links.between_stages(from, to);
    costs.latency = std::max(costs.latency, link.latency_s);
    costs.transfer = std::max(costs.transfer, bytes / link.bytes_per_s);
    if (wire != kernels::WireFormat{}) {
      // The sender encodes activations after forward, and gradients after backward.
      const auto coding = [&](std::string_view verb) {
        return seconds(codec_operation(verb, wire, values, DType::fp32));
      };
      const double encode = coding("encode");
      const double decode = coding("decode");
      costs.stages[static_cast<size_t>(stage)].forward += encode;
      costs.stages[static_cast<size_t>(stage)].backward_input += decode;
      costs.stages[static_cast<size_t>(stage) + 1].forward += decode;
      costs.stages[static_cast<size_t>(stage) + 1].backward_input += encode;
    }
  }
  return costs;
}

PipelineTimes StepPredictor::pipeline(const io::Config& config, const train::Layout& layout,
                                      const NetworkTimes& network) const {
  PipelineTimes found{.costs = costs_of(config, layout, network)};
  if (layout.asynchronous()) {
    return asynchronous(config, layout, network, std::move(found.costs));
  }
  found.timeline = layout.policy ? parallel::simulate(*layout.policy, found.costs).second
                                 : parallel::simulate(layout.schedule, found.costs);
  found.end = found.timeline.makespan();
  found.compute = busiest(found.timeline);
  return found;
}

PipelineTimes StepPredictor::asynchronous(const io::Config& config, const train::Layout& layout,
                                          const NetworkTimes& network,
                                          parallel::Costs costs) const {
  // Each stage sums and updates after a backward.
  PipelineTimes found{.costs = costs};
  const double every = layout.micro_batches();
  const Links links = links_of(layout);
  double most = 0;
  double beside = 0;  // sums and updates of the rank that computes longest
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    const train::ReplicaTimes times = exchange(config, layout, network, links, costs, rank, 0);
    const double mine = times.reduction + times.update;
    double computes = 0;
    for (int chunk = 0; chunk < layout.schedule.chunks; ++chunk) {
      const auto stage = static_cast<size_t>(layout.schedule.stage_of(rank, chunk));
      computes += every * (costs.stages[stage].forward + costs.stages[stage].backward());
      found.costs.stages[stage].backward_weight += mine / layout.schedule.chunks / every;
    }
    if (computes + mine > most) {
      most = computes + mine;
      beside = mine;
    }
  }
  const int64_t steps = std::max<int64_t>(4, 2L * layout.stages());
  const parallel::Timeline once = parallel::simulate(layout.segment(steps), found.costs);
  found.timeline = parallel::simulate(layout.segment(2 * steps), found.costs);
  const auto count = static_cast<double>(steps);
  const double step = (found.timeline.makespan() - once.makespan()) / count;
  const double drain =
      std::max(0.0, once.makespan() - count * step) / static_cast<double>(train::kDrainEvery);
  found.end = step + drain - beside;
  found.compute = most - beside;
  return found;
}

train::ReplicaTimes StepPredictor::exchange(const io::Config& config, const train::Layout& layout,
                                            const NetworkTimes& network, const Links& links,
                                            const parallel::Costs& costs, int rank,
                                            double end) const {
  train::ReplicaWork work{.replicas = layout.grid.data, .gradient = gradient_of(config, layout)};
  for (int chunk = 0; chunk < layout.schedule.chunks; ++chunk) {
    const int stage = layout.schedule.stage_of(rank, chunk);
    work.backward_s += costs.stages[static_cast<size_t>(stage)].backward();
    for_layers(layout, stage, [&](size_t i) {
      work.kept += network.operations[i].kept;
      work.update_s += network.updates[i];
    });
  }
  work.kept /= ways_;
  work.before_s = end - work.backward_s;
  if (layout.asynchronous()) {  // nothing overlaps
    work.before_s = work.backward_s;
    work.backward_s = 0;
  }
  if (work.replicas == 1) {
    return {.update = work.update_s};
  }
  const cost::Link between = links.of_replicas(rank, reduction_of(config));
  return train::replica_times(config, work, rates_between(config, machine_, between));
}

std::vector<double> StepPredictor::layer_seconds(const io::Config& config,
                                                 const train::Layout& layout,
                                                 const NetworkTimes& network) const {
  train::ReplicaWork all{.replicas = layout.grid.data,
                         .gradient = gradient_of(config, layout),
                         .before_s = 1};  // before: nothing overlaps
  for (const LayerOperations& layer : network.operations) {
    all.kept += layer.kept / ways_;
  }
  double of_element = 0;
  if (all.replicas > 1 && all.kept > 0) {
    const cost::Link between = links_of(layout).of_replicas(0, reduction_of(config));
    const auto times = train::replica_times(config, all, rates_between(config, machine_, between));
    of_element = times.reduction / static_cast<double>(all.kept);
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < network.passes.size(); ++i) {
    const parallel::StageTimes& pass = network.passes[i];
    seconds.push_back(layout.micro_batches() * (pass.forward + pass.backward()) +
                      static_cast<double>(network.operations[i].kept / ways_) * of_element +
                      network.updates[i]);
  }
  return seconds;
}

void StepPredictor::add_step(const io::Config& config, const train::Layout& layout,
                             const NetworkTimes& network, const PipelineTimes& pipeline,
                             StepPrediction& found) const {
  found.compute = pipeline.compute;
  found.waiting = pipeline.end - pipeline.compute;
  const Links links = links_of(layout);
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    const train::ReplicaTimes times =
        exchange(config, layout, network, links, pipeline.costs, rank, pipeline.end);
    found.reduction = std::max(found.reduction, times.reduction);
    found.update = std::max(found.update, times.update);
    found.bytes_reduced = std::max(found.bytes_reduced, times.bytes);
  }
  found.step = pipeline.end + found.reduction + found.update;
  found.samples_per_s = static_cast<double>(config.train.global_batch) / found.step;
}

double StepPredictor::least_memory(const io::Config& config, const train::Layout& layout,
                                   const NetworkTimes& network) const {
  const double owners = config.parallel.zero > 0 ? layout.grid.data : 1;
  double most = 0;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    double bytes = 0;
    for (const train::PartShape& part : layout.parts(rank)) {
      double tape = 0;
      double once = 0;
      double deferred = 0;
      for (size_t i = part.first; i < part.end; ++i) {
        const LayerOperations& layer = network.operations[i];
        for (size_t kind = 0; kind <= static_cast<size_t>(Memory::index); ++kind) {
          const bool divided = kind == static_cast<size_t>(Memory::master) ||
                               kind == static_cast<size_t>(Memory::moment);
          bytes += static_cast<double>(layer.state.at(kind)) / (divided ? owners : 1);
        }
        tape += static_cast<double>(layer.tape_added);
        once = std::max(once, static_cast<double>(layer.tape_alone -
                                                  std::min(layer.tape_alone, layer.tape_added)));
        deferred += static_cast<double>(layer.deferred);
      }
      bytes += part.tapes * (tape + once) + part.deferred * deferred;
    }
    most = std::max(most, bytes);
  }
  return most;
}

void StepPredictor::add_operations(const NetworkTimes& network, size_t first, size_t end,
                                   double passes, std::map<std::string, double>& sums) const {
  const auto add = [&](const Operations& operations, double times) {
    for (const kernels::OperationRow& row : operations) {
      sums[row.name] += seconds(row) * times;
    }
  };
  for (size_t i = first; i < end; ++i) {
    const LayerOperations& layer = network.operations[i];
    add(layer.forward, passes);
    add(layer.backward_input, passes);
    add(layer.backward_weight, passes);
    add({layer.other}, passes);
    add(layer.update, 1);
  }
}

double StepPredictor::flops_of(const NetworkTimes& network, double passes) {
  double sum = 0;
  const auto add = [&](const Operations& operations, double times) {
    for (const kernels::OperationRow& row : operations) {
      sum += static_cast<double>(row.calls) * times * row.cost.flops;
    }
  };
  for (const LayerOperations& layer : network.operations) {
    add(layer.forward, passes);
    add(layer.backward_input, passes);
    add(layer.backward_weight, passes);
    add(layer.update, 1);
  }
  return sum;
}

StepPrediction predict_step(const PlannedRun& run, const Machine& machine, int devices) {
  return StepPredictor(run, machine, devices).predict(run.config);
}

}  // namespace espalier::planner
