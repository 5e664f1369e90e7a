#include "pruning/prunable.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/core/glob.h"

namespace espalier::pruning {
namespace {

bool any_match(std::span<const std::string> patterns, std::string_view name) {
  return std::ranges::any_of(
      patterns, [name](const std::string& pattern) { return glob_match(pattern, name); });
}

void check_used(std::span<const std::string> patterns, std::span<const ParameterInfo> parameters) {
  for (const std::string& pattern : patterns) {
    const bool used = std::ranges::any_of(parameters, [&pattern](const ParameterInfo& parameter) {
      return glob_match(pattern, parameter.name);
    });
    check(used, "pruning: the pattern \"{}\" matches no parameter; names look like \"{}\"", pattern,
          parameters.empty() ? "" : parameters.front().name);
  }
}

}  // namespace

bool is_prunable(const ParameterInfo& parameter, const PrunableRule& rule) {
  const bool wanted = parameter.prunable || any_match(rule.include, parameter.name);
  return wanted && !any_match(rule.exclude, parameter.name);
}

std::vector<bool> prunable(std::span<const ParameterInfo> parameters, const PrunableRule& rule) {
  check_used(rule.include, parameters);
  check_used(rule.exclude, parameters);
  std::vector<bool> flags;
  flags.reserve(parameters.size());
  for (const ParameterInfo& parameter : parameters) {
    flags.push_back(is_prunable(parameter, rule));
  }
  return flags;
}

}  // namespace espalier::pruning
