#include "src/train/memory/planner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/pipeline/mailbox.h"
#include "src/train/exchange/exchange.h"
#include "src/train/masks/pruner.h"

namespace espalier::train {
namespace {

class Planner {
 public:
  explicit Planner(const PlanInput& input)
      : input_(input), config_(input.config), layers_(make_layers(config_, input.problem)) {
    for (const auto& layer : layers_) {
      std::ranges::move(layer->parameters(), std::back_inserter(network_));
    }
  }

  Plan plan() {
    if (config_.parallel.pipeline == 0) {
      choose_stages();
    }
    const RunShape run = run_shape(input_.start);
    Plan plan{.pipeline = config_.parallel.pipeline, .layout = {}, .fit = fit_memory(config_, run)};
    if (input_.place.device) {
      plan.advice = check_device(config_, run, plan.fit, input_.available);
    }
    if (!plan.fit.note.empty()) {
      notes_.push_back(plan.fit.note);
    }
    plan.layout = layout_for(share_of(config_, run.ranks) / plan.fit.choice.micro_batch);
    plan.notes = std::move(notes_);
    return plan;
  }

 private:
  Layout layout_for(int64_t micro_batches) const;
  std::vector<StageShape> stages_for(int64_t micro_batches, const Start& start) const;
  StageShape::Messages messages(const Layout& layout, int rank, int64_t samples) const;
  RunShape run_shape(const Start& start) const;
  void choose_stages();
  int fewest_stages(const Start& start);

  const PlanInput& input_;
  io::Config config_;
  std::vector<std::unique_ptr<model::Layer>> layers_;  ///< of the whole network, to ask, not to run
  std::vector<sparse::ParameterSpec> network_;         ///< their parameters
  std::vector<std::string> notes_;
};

RunShape Planner::run_shape(const Start& start) const {
  const parallel::Grid grid =
      parallel::make_grid(input_.ranks, static_cast<int>(config_.parallel.pipeline));
  RunShape run{.problem = input_.problem,
               .ranks = grid.data,
               .threads = input_.threads,
               .place = input_.place,
               .start = start,
               .sharding = plan_shards(config_, grid.place_of(input_.rank).replica, grid.data),
               .sums_on_device = input_.sums_on_device && grid.data > 1,
               .replica = grid.place_of(input_.rank).replica};
  if (grid.pipeline > 1 || config_.parallel.delay_stages > 1) {
    run.stages = [this, &start](int64_t micro_batches) { return stages_for(micro_batches, start); };
  }
  return run;
}

void Planner::choose_stages() {
  const int stages = fewest_stages(input_.start);
  std::string unpruned;
  if (config_.pruning.method != "none" || input_.start.pruned) {
    const io::PruningConfig pruning = std::exchange(config_.pruning, io::PruningConfig());
    Start dense{.masks = {}, .kept = {}};
    for (const sparse::ParameterSpec& spec : network_) {
      dense.kept.push_back(spec.shape.count());
    }
    const int needed = fewest_stages(dense);
    config_.pruning = pruning;
    unpruned = needed == 0
                   ? fmt::format("; unpruned it would fit no grid of {} ranks", input_.ranks)
                   : fmt::format("; unpruned it would take {}", needed);
  }
  config_.parallel.pipeline = std::max(stages, 1);
  if (stages > 0) {
    notes_.push_back(fmt::format("parallel.pipeline = \"auto\": {} of {} ranks as stages{}", stages,
                                 input_.ranks, unpruned));
  }  // else planning tells what is missing
}

/// 0: no number of stages fits.
int Planner::fewest_stages(const Start& start) {
  for (int stages = 1; stages <= input_.ranks; ++stages) {
    if (input_.ranks % stages != 0) {
      continue;
    }
    config_.parallel.pipeline = stages;
    try {
      fit_memory(config_, run_shape(start));
      return stages;
    } catch (const Failure&) {
      continue;  // too large, or the batch or the layers cannot be shared like this
    }
  }
  return 0;
}

Layout Planner::layout_for(int64_t micro_batches) const {
  return make_layout(config_, input_.ranks, micro_batches, input_.times);
}

std::vector<StageShape> Planner::stages_for(int64_t micro_batches, const Start& start) const {
  const Layout layout = layout_for(micro_batches);
  const std::vector<bool> prunable = prunable_of(network_, config_.pruning);
  const int64_t samples = share_of(config_, layout.grid.data) / micro_batches;
  std::vector<StageShape> stages;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    const std::vector<PartShape> parts = layout.parts(rank);
    const std::vector<size_t> numbers = parameters_of(layers_, parts);
    StageShape stage{.rank = rank,
                     .layout = layout,
                     .parts = parts,
                     .start = start_of_part(start, numbers),
                     .messages = messages(layout, rank, samples)};
    for (const size_t number : numbers) {
      if (network_[number].prunable && !prunable[number]) {
        stage.exclude.push_back(network_[number].name);
      }
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

/// Of a rank's buffers for messages, and for the other end's share of tied embeddings.
StageShape::Messages Planner::messages(const Layout& layout, int rank, int64_t samples) const {
  const parallel::Schedule& schedule = layout.schedule;
  StageShape::Messages sum;
  for (int boundary = 0; boundary + 1 < layout.stages(); ++boundary) {
    const model::Layer& layer = *layers_[layout.ends[static_cast<size_t>(boundary)] - 1];
    const model::Flow flow = layer.output(samples, dtype_by_name(config_.train.dtype));
    const kernels::WireFormat wire = activation_format(config_);
    const size_t bytes = wire == kernels::WireFormat{}
                             ? flow.bytes()
                             : kernels::wire_bytes(wire, flow.shape.count());
    const bool crosses = schedule.crosses(boundary);
    const bool touches =
        schedule.rank_of(boundary) == rank || schedule.rank_of(boundary + 1) == rank;
    const auto buffers = static_cast<size_t>(crosses ? layout.buffers() : layout.local_buffers());
    const bool through_host = crosses && input_.carrier == parallel::CarrierKind::host;
    (through_host ? sum.on_host : sum.beside_kernels) +=
        touches ? 2 * buffers * parallel::buffer_bytes(bytes) : 0;  // there and back
  }
  const bool apart = schedule.rank_of(0) != schedule.rank_of(layout.stages() - 1);
  const bool end = rank == schedule.rank_of(0) || rank == schedule.rank_of(layout.stages() - 1);
  const std::string_view tied = model::network_of(config_.model).tied_parameter(config_.model);
  if (!tied.empty() && apart && end) {
    const auto found = std::ranges::find(network_, tied, &sparse::ParameterSpec::name);
    sum.beside_kernels +=
        static_cast<size_t>(found->shape.count()) * size_of(store_options(config_, true).gradient);
  }
  return sum;
}

}  // namespace

Plan make_plan(const PlanInput& input) { return Planner(input).plan(); }

}  // namespace espalier::train
