#include "src/planner/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/communication_cost/exchange_model.h"
#include "src/core/error.h"
#include "src/kernels/wire_codec.h"
#include "src/train/run/pipeline.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::planner {
namespace {

struct LayerSeconds {
  parallel::StageTimes pass;
  double update = 0;
};

class Predictor {
 public:
  Predictor(const PlannedRun& run, const Machine& machine, int devices)
      : run_(run),
        machine_(machine),
        ways_(run.tensor.ways),
        devices_(devices),
        dtype_(dtype_by_name(run.config.train.dtype)) {
    check(devices == 1 || devices <= machine.levels.back().ranks,
          "{} ranks need as many devices, and machine \"{}\" has {}: ask for fewer ranks, or raise "
          "the ranks of its last [[level]]",
          devices, machine.name, machine.levels.back().ranks);
    check(devices % ways_ == 0, "{} ranks cannot be divided into groups of {}: change --tensor",
          devices, ways_);
  }

  StepPrediction predict() {
    // The micro-batch decides the times, and the times balance the stages.
    train::LayerTimes times = train::estimated_times(run_.config, run_.problem);
    train::Plan plan = plan_with(times);
    const int64_t micro_batch = plan.fit.choice.micro_batch;
    count(plan);
    for (size_t i = 0; i < times.layers.size(); ++i) {
      times.layers[i] = seconds_[i].pass;
    }
    if (plan.layout.pipelined()) {
      plan = plan_with(times);
      if (plan.fit.choice.micro_batch != micro_batch) {
        count(plan);
      }
    }
    check(!plan.layout.asynchronous(),
          "parallel.schedule = \"{}\" has no common step; plan predicts the others: choose 1f1b or "
          "zb-v",
          run_.config.parallel.schedule);
    return of(std::move(plan));
  }

 private:
  train::Plan plan_with(const train::LayerTimes& times) const {
    return train::make_plan(
        {.config = run_.config,
         .problem = run_.problem,
         .layers = run_.layers,
         .start = run_.start,
         .times = times,
         .ranks = devices_ / ways_,
         .threads = static_cast<int>(machine_.threads),
         .place = kernels::planning(run_.config.run.backend),
         .carrier = train::planned_carrier(run_.config, run_.config.run.backend == "cuda")});
  }

  /// Kept elements of each parameter once all pruning is done.
  std::vector<int64_t> kept() const {
    const std::vector<int64_t> steps = train::pruning_steps(run_.config.pruning);
    return steps.empty() ? run_.start.kept
                         : train::kept_after(run_.config.pruning, model::parameters_of(run_.layers),
                                             steps.back(), run_.start.kept);
  }

  double seconds(const kernels::OperationRow& row) const {
    return static_cast<double>(row.calls) * seconds_of(machine_, run_.tensor, row, dtype_);
  }
  double seconds_of_all(const Operations& operations) const {
    return std::accumulate(
        operations.begin(), operations.end(), 0.0,
        [this](double sum, const kernels::OperationRow& row) { return sum + seconds(row); });
  }

  /// Values of the tensor between layer `i` and the next.
  int64_t output_values(size_t i) const {
    return static_cast<int64_t>(operations_[i].output_bytes / sizeof(float));
  }
  const Level& level_between(int64_t rank, int64_t other) const {
    return machine_.level_between(rank * ways_, other * ways_);
  }

  void count(const train::Plan& plan) {
    const std::vector<train::PartShape> parts = plan.layout.parts(0);
    const bool deferred =
        std::ranges::any_of(parts, [](const train::PartShape& part) { return part.deferred > 0; });
    operations_ = count_operations(run_.config, run_.problem, kept(), plan.fit.choice.micro_batch,
                                   plan.fit.choice.recompute, deferred);
    seconds_.clear();
    const bool recomputed = plan.fit.choice.recompute == model::Recompute::full;
    for (size_t i = 0; i < operations_.size(); ++i) {
      const LayerOperations& layer = operations_[i];
      const double third = seconds_of_all({layer.other}) / 3;
      const auto values =
          static_cast<double>(output_values(i > 0 && i + 1 == operations_.size() ? i - 1 : i));
      const TensorExchanges exchanges = exchanges_of(
          machine_, run_.tensor, layer, values * static_cast<double>(size_of(dtype_)), recomputed);
      seconds_.push_back(
          {.pass = {.forward = third + exchanges.forward + seconds_of_all(layer.forward),
                    .backward_input =
                        third + exchanges.backward + seconds_of_all(layer.backward_input),
                    .backward_weight = third + seconds_of_all(layer.backward_weight)},
           .update = seconds_of_all(layer.update)});
    }
  }

  /// Calls visit(layer) for the layers of a stage.
  template <class Visit>
  static void for_layers(const train::Layout& layout, int stage, const Visit& visit) {
    for (size_t i = layout.first_layer(stage); i < layout.ends[static_cast<size_t>(stage)]; ++i) {
      visit(i);
    }
  }

  parallel::Costs costs_of(const train::Layout& layout) const {
    parallel::Costs costs;
    for (int stage = 0; stage < layout.stages(); ++stage) {
      parallel::StageTimes sum{.forward = 0, .backward_input = 0, .backward_weight = 0};
      for_layers(layout, stage, [&](size_t i) {
        sum.forward += seconds_[i].pass.forward;
        sum.backward_input += seconds_[i].pass.backward_input;
        sum.backward_weight += seconds_[i].pass.backward_weight;
      });
      costs.stages.push_back(sum);
    }
    const kernels::WireFormat wire = train::activation_format(run_.config);
    for (int stage = 0; stage + 1 < layout.stages(); ++stage) {
      const int from = layout.schedule.rank_of(stage);
      const int to = layout.schedule.rank_of(stage + 1);
      if (from == to) {
        continue;
      }
      const size_t last = layout.ends[static_cast<size_t>(stage)] - 1;
      const int64_t values = output_values(last) / ways_;
      const Level& level =
          level_between(int64_t{from} * layout.grid.data, int64_t{to} * layout.grid.data);
      costs.latency = std::max(costs.latency, level.link.latency_s);
      costs.transfer =
          std::max(costs.transfer,
                   static_cast<double>(kernels::wire_bytes(wire, values)) / level.link.bytes_per_s);
    }
    return costs;
  }

  StepPrediction of(train::Plan plan) {
    const train::Layout& layout = plan.layout;
    const parallel::Costs costs = costs_of(layout);
    StepPrediction found{.ranks = devices_, .micro_batch = plan.fit.choice.micro_batch};
    found.micro_batches =
        train::share_of(run_.config, layout.grid.data) / plan.fit.choice.micro_batch;
    found.timeline = layout.policy ? parallel::simulate(*layout.policy, costs).second
                                   : parallel::simulate(layout.schedule, costs);
    const double end = found.timeline.makespan();
    for (size_t rank = 0; rank < found.timeline.ranks.size(); ++rank) {
      found.compute = std::max(found.compute, found.timeline.busy(rank));
    }
    found.waiting = end - found.compute;
    for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
      add_rank(layout, costs, rank, end, found);
    }
    sum_operations(layout, found);
    found.step = end + found.reduction + found.update;
    found.samples_per_s = static_cast<double>(run_.config.train.global_batch) / found.step;
    found.plan = std::move(plan);
    return found;
  }

  /// The reduction and update of a rank of the pipeline; the longest of all count.
  void add_rank(const train::Layout& layout, const parallel::Costs& costs, int rank, double end,
                StepPrediction& found) const {
    int64_t kept = 0;
    double backward = 0;
    double update = 0;
    for (int chunk = 0; chunk < layout.schedule.chunks; ++chunk) {
      const int stage = layout.schedule.stage_of(rank, chunk);
      backward += costs.stages[static_cast<size_t>(stage)].backward();
      for_layers(layout, stage, [&](size_t i) {
        kept += operations_[i].kept;
        update += seconds_[i].update;
      });
    }
    kept /= ways_;
    found.update = std::max(found.update, update);
    if (layout.grid.data == 1) {
      return;
    }
    const DType gradient = run_.config.train.dtype == "fp32" ? DType::fp32 : dtype_;
    const kernels::WireFormat format = wire_of(gradient);
    const auto bytes = [&](int64_t values) {
      return static_cast<double>(kernels::wire_bytes(format, values));
    };
    const double bucket_bytes =
        run_.config.parallel.bucket_mb > 0 ? run_.config.parallel.bucket_mb * 0x1p20 : 4 * 0x1p20;
    const auto bucket_values =
        std::max<int64_t>(1, std::llround(bucket_bytes / static_cast<double>(size_of(gradient))));
    const int first = layout.grid.rank_of({.stage = rank, .replica = 0});
    const std::string& reduction = run_.config.parallel.reduction;
    // A sum reads two values and writes one.
    const double sums_per_s = machine_.bandwidth / (3 * static_cast<double>(size_of(gradient)));
    const cost::ExchangePrediction exchange =
        cost::predict({.forward_s = end - backward, .backward_s = backward, .optimizer_s = 0},
                      cost::cut({.values = kept,
                                 .bucket_values = bucket_values,
                                 .backward_s = backward,
                                 .overlap = machine_.overlaps},
                                bytes),
                      {.ranks = layout.grid.data,
                       .reduction = reduction == "ring" ? "ring" : "sra",
                       .link = level_between(first, first + layout.grid.data - 1).link,
                       .decode_per_s = sums_per_s});
    found.reduction = std::max(found.reduction, exchange.exposed_s);
    found.bytes_reduced = std::max(found.bytes_reduced, exchange.bytes);
  }

  /// Of gradients; a codec that is chosen at run time counts as none.
  kernels::WireFormat wire_of(DType gradient) const {
    sparse::ParameterSpec matrix{.name = "matrix", .shape = Shape{1024, 1024}};
    const auto chosen = train::gradient_format(run_.config, matrix, matrix.shape.count(), gradient);
    return chosen.value_or(parallel::plain_format(gradient));
  }

  void sum_operations(const train::Layout& layout, StepPrediction& found) const {
    const auto passes = static_cast<double>(found.micro_batches);
    const auto add = [&](const Operations& operations, double times) {
      for (const kernels::OperationRow& row : operations) {
        found.by_operation[row.name] += seconds(row) * times;
        found.flops += static_cast<double>(row.calls) * times * row.cost.flops * layout.grid.data;
      }
    };
    for (const LayerOperations& layer : operations_) {
      add(layer.forward, passes);
      add(layer.backward_input, passes);
      add(layer.backward_weight, passes);
      add({layer.other}, passes);
      add(layer.update, 1);
    }
  }

  const PlannedRun& run_;
  const Machine& machine_;
  int ways_;  ///< devices of a rank
  int devices_;
  DType dtype_;
  std::vector<LayerOperations> operations_;
  std::vector<LayerSeconds> seconds_;
};

}  // namespace

StepPrediction predict_step(const PlannedRun& run, const Machine& machine, int devices) {
  return Predictor(run, machine, devices).predict();
}

}  // namespace espalier::planner
