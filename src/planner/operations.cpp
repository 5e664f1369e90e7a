#include "src/planner/operations.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/kernels/backend.h"
#include "src/train/stage/layer_times.h"
#include "src/train/stage/stage.h"

namespace espalier::planner {
namespace {

/// Runs `work` and returns its operations, in an order that does not depend on times.
template <class Work>
Operations counted(kernels::OperationTimes& counts, const Work& work) {
  counts.clear();
  work();
  Operations rows = counts.rows();
  std::ranges::sort(rows, {}, [](const kernels::OperationRow& row) {
    return std::tuple(row.name, row.extents, row.cost.flops, row.cost.bytes);
  });
  return rows;
}

/// Of one layer, alone in a part.
LayerOperations count_layer(const io::Config& config, const train::ProblemShape& problem,
                            size_t layer, std::vector<int64_t> kept, int64_t samples,
                            model::Recompute recompute, bool deferred) {
  kernels::OperationTimes counts(kernels::by_name("dry"));
  // Scratch on a device is larger, so its products are cut less often.
  const bool device = kernels::planning(config.run.backend).device;
  Arena host(true);
  Arena arena = device ? Arena(host, nullptr) : Arena(true);
  Stream stream(arena, 1);
  train::Stage stage(config, problem, stream, counts.table(),
                     {.micro_batch = samples,
                      .recompute = recompute,
                      .dry = true,
                      .planned = std::move(kept),
                      .parts = {{.first = layer, .end = layer + 1, .deferred = deferred ? 1 : 0}}});
  train::Part& part = *stage.parts().front();
  LayerOperations found{.state = train::bytes_now(arena)};
  const train::PassCost cost = stage.measure().front();
  found.tape_alone = cost.tape_bytes;
  found.deferred = cost.deferred_bytes;
  part.open(0, samples);
  found.forward = counted(counts, [&] { part.forward(0, {.samples = samples}, true); });
  found.backward_input = counted(counts, [&] { part.backward(0, deferred, {}); });
  if (deferred) {
    found.backward_weight = counted(counts, [&] { part.backward_weight(0, {}); });
  }
  found.update = counted(counts, [&] { stage.update(0, 1e-3); });
  int64_t pruned = 0;
  for (const sparse::Parameter& parameter : stage.store().parameters()) {
    if (!parameter.spec.borrowed) {
      found.size += parameter.size();
      found.kept += parameter.kept();
      pruned += parameter.full() ? 0 : parameter.kept();
    }
  }
  found.other = other_of_block(pruned);
  found.other.calls = 1;
  return found;
}

}  // namespace

kernels::OperationRow other_of_block(int64_t kept) {
  constexpr double kDense = 1000;  // only a unit: the time beside dense products depends on little
  return {.name = "other",
          .extents = {1, std::max<int64_t>(kept, 1), 0, 0},
          .cost = {.flops = 0, .bytes = kDense + 4 * static_cast<double>(kept)}};
}

std::vector<LayerOperations> count_operations(const io::Config& config,
                                              const train::ProblemShape& problem,
                                              const std::vector<int64_t>& kept, int64_t samples,
                                              model::Recompute recompute, bool deferred) {
  const model::Layers layers = model::make_layers(config.model, problem);
  const std::vector<size_t> first = train::first_of_kind(layers, kept);
  std::vector<LayerOperations> all;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (first[i] != i) {
      all.push_back(all[first[i]]);
      continue;
    }
    std::vector<int64_t> mine;
    for (const size_t number :
         train::parameters_of(layers, std::vector<train::PartShape>{{.first = i, .end = i + 1}})) {
      mine.push_back(kept[number]);
    }
    all.push_back(count_layer(config, problem, i, std::move(mine), samples, recompute, deferred));
    if (i + 1 < layers.size()) {
      const model::TensorSpec out = layers[i]->output(samples, dtype_by_name(config.train.dtype));
      all.back().output_values = out.shape.count();
      all.back().output_bytes = out.bytes();
    }
    if (i + 1 < layers.size() && first[i + 1] == i) {
      const train::PassCost two = train::measure_pass(config, problem,
                                                      {.micro_batch = samples,
                                                       .recompute = recompute,
                                                       .parts = {{.first = i, .end = i + 2}}},
                                                      kernels::planning(config.run.backend).device)
                                      .front();
      all.back().tape_added = two.tape_bytes - std::min(two.tape_bytes, all.back().tape_alone);
    }
  }
  return all;
}

}  // namespace espalier::planner
