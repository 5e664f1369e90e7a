#include "pruning/prunable.h"

#include <algorithm>

#include "src/core/error.h"

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

bool glob_match(std::string_view pattern, std::string_view name) {
  // On a mismatch only the last star needs to take one character more: O(pattern * name).
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

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
