#include "parallel/grid.h"

#include <map>
#include <vector>

namespace espalier::parallel {

std::string_view name_of(RankOrder order) {
  return order == RankOrder::replicas_first ? "replicas_first" : "stages_first";
}

RankOrder rank_order_by_name(std::string_view name) {
  for (const RankOrder order : {RankOrder::replicas_first, RankOrder::stages_first}) {
    if (name == name_of(order)) {
      return order;
    }
  }
  fail("\"{}\" is no order of ranks; write \"replicas_first\" or \"stages_first\"", name);
}

Grid make_grid(int ranks, int pipeline, RankOrder order) {
  check(pipeline >= 1, "parallel.pipeline = {} is below 1; set 1 (no pipeline) or more stages",
        pipeline);
  check(ranks >= pipeline && ranks % pipeline == 0,
        "parallel.pipeline = {} does not divide {} ranks; start a multiple of {} ranks, or change "
        "parallel.pipeline",
        pipeline, ranks, pipeline);
  return {.pipeline = pipeline, .data = ranks / pipeline, .order = order};
}

std::string describe(const Grid& grid, std::span<const int> node) {
  require(static_cast<int>(node.size()) == grid.ranks(), "one node a rank", node.size(),
          grid.ranks());
  std::map<int, std::vector<std::string>> machines;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const GridPlace at = grid.place_of(rank);
    machines[node[rank]].push_back(
        fmt::format("rank {} (stage {}, replica {})", rank, at.stage, at.replica));
  }
  std::string text;
  for (const auto& [number, ranks] : machines) {
    text += fmt::format("node {}: {}\n", number, fmt::join(ranks, ", "));
  }
  return text;
}

}  // namespace espalier::parallel
