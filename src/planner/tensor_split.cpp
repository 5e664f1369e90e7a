#include "src/planner/tensor_split.h"

#include <algorithm>

namespace espalier::planner {
namespace {

bool has(const Operations& operations, std::string_view name) {
  return std::ranges::any_of(
      operations, [&](const kernels::OperationRow& row) { return row.name.starts_with(name); });
}

/// Of an array of `bytes` over the devices of a split, by a ring.
double all_reduce_seconds(const Machine& machine, int ways, double bytes) {
  const cost::Link& link = machine.levels[machine.level_between(0, ways - 1)].link;
  const double steps = 2 * (ways - 1);
  return steps * (link.latency_s + bytes / ways / link.bytes_per_s);
}

}  // namespace

std::vector<int> machines_of(int ranks, const Machine& machine, const TensorSplit& split) {
  const int each = std::max(1, static_cast<int>(machine.levels.front().ranks) / split.ways);
  std::vector<int> machines;
  for (int rank = 0; rank < ranks; ++rank) {
    machines.push_back(rank / each);
  }
  return machines;
}

double seconds_of(const Machine& machine, const TensorSplit& split,
                  const kernels::OperationRow& operation, DType dtype) {
  const double whole = seconds_of(machine, operation, dtype);
  const bool repeated = operation.name.starts_with("norm") && !split.sequence;
  return repeated ? whole : whole / split.ways;
}

TensorExchanges exchanges_of(const Machine& machine, const TensorSplit& split,
                             const LayerOperations& layer, double bytes, bool recomputed) {
  if (split.ways == 1) {
    return {};
  }
  const double one = all_reduce_seconds(machine, split.ways, bytes);
  if (has(layer.forward, "attention")) {
    return {.forward = 2 * one, .backward = (recomputed ? 4 : 2) * one};
  }
  return {.forward = has(layer.forward, "embedding") ? one : 0,
          .backward = has(layer.forward, "cross_entropy") ? one : 0};
}

}  // namespace espalier::planner
