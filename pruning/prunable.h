#pragma once
// Which parameters may be pruned is data: the model marks its defaults (linear weights of the
// blocks, not embeddings, norms or biases), `include` globs add to them, `exclude` globs take away,
// last word.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/types.h"

namespace espalier::pruning {

struct ParameterInfo {
  std::string name;
  Shape shape;
  bool prunable = false;  ///< the model's default
};

struct PrunableRule {
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};

bool is_prunable(const ParameterInfo& parameter, const PrunableRule& rule);

/// One flag for each parameter of the whole network. Throws Failure for a pattern that matches none
/// of them: it is a typing error.
std::vector<bool> prunable(std::span<const ParameterInfo> parameters, const PrunableRule& rule);

}  // namespace espalier::pruning
