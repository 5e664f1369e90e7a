#pragma once
// Inputs and results of pruning methods.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/index/index.h"
#include "sparse/index/mask.h"
#include "src/core/types.h"

namespace espalier::pruning {

/// A prunable parameter. `index` must outlive the call.
struct Candidate {
  std::string name;
  Shape shape;
  const sparse::Index* index = nullptr;  ///< current mask, over shape.count() elements
  std::span<const float> values{};       ///< of the kept elements, packed, [index->kept()]
  std::span<const float> scores{};       ///< like `values`, for methods that score (registry.h)
  int64_t parts = 1;  ///< matrices along the rows, such as queries, keys and values (parts.h)
};

/// The set in which elements compete: all candidates together, or each candidate alone (with
/// scores, each part of it).
enum class Scope : uint8_t { global, layer };

/// Candidates of other ranks (stages of a pipeline), which compete with the local ones in global
/// scope. Candidates are numbered in forward order. Each rank gets the masks of its own candidates
/// that one rank with all candidates would compute. Ranks without candidates take part, too.
struct GlobalSelection {
  size_t candidates = 0;                        ///< of all ranks
  std::vector<size_t> mine;                     ///< numbers of the local ones, ascending
  std::function<void(std::span<int64_t>)> sum;  ///< adds over all ranks
  /// Returns the contributions of all ranks, by rank.
  std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)> gather;
};

struct Settings {
  std::string method = "magnitude";
  double sparsity = 0;  ///< zeros / prunable elements, in [0, 1); nm uses n and m instead
  Scope scope = Scope::global;
  uint64_t seed = 1;                                  ///< random
  int n = 2, m = 4;                                   ///< nm
  int block = 16;                                     ///< block: rows and columns of one block
  const GlobalSelection* global_selection = nullptr;  ///< null: all candidates are local
};

struct Result {
  std::vector<sparse::Mask> masks;  ///< one per candidate, in order
  std::vector<std::string>
      warnings;  ///< for the user: a parameter left empty, a target already passed
};

/// Throws Failure unless 0 <= sparsity < 1.
void check_sparsity(double sparsity);
/// round((1 - sparsity) size): number of elements that magnitude and random keep.
int64_t kept_count(int64_t size, double sparsity);

}  // namespace espalier::pruning
