#include "pruning/pruning.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "io/config/patterned.h"
#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

constexpr std::array<std::string_view, 2> kScopes{"global", "layer"};

void check_settings(const Settings& settings) {
  check_sparsity(settings.sparsity);
  check(settings.n >= 1 && settings.m >= settings.n && settings.m <= 1024,
        "pruning: {}:{} must keep at least 1 and at most m of m <= 1024", settings.n, settings.m);
  check(settings.block >= 1 && settings.block <= 4096,
        "pruning: a block of {} is outside [1, 4096]", settings.block);
}

void check_numbers(std::string_view name, std::span<const float> values) {
  check(!has_nan(values),
        "pruning: parameter \"{}\" holds a NaN: training has diverged, start from an earlier "
        "checkpoint",
        name);
}

void warn_empty(std::span<const Candidate> candidates, const Settings& settings, Result& result) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].index->kept() > 0 && result.masks[i].kept() == 0) {
      result.warnings.push_back(
          fmt::format("parameter \"{}\" keeps none of its {} elements at sparsity {}: exclude it, "
                      "or use scope = "
                      "\"layer\"",
                      candidates[i].name, candidates[i].index->size(), settings.sparsity));
    }
  }
}

}  // namespace

void check_candidate(const Candidate& candidate, bool needs_values, bool needs_scores) {
  require(candidate.index != nullptr, "a candidate has an index", candidate.name);
  require(candidate.index->size() == candidate.shape.count(), "the index covers the shape",
          candidate.name, candidate.index->size(), candidate.shape.text());
  require(!needs_values || static_cast<int64_t>(candidate.values.size()) == candidate.index->kept(),
          "one value per kept element", candidate.name, candidate.values.size(),
          candidate.index->kept());
  require(!needs_scores || static_cast<int64_t>(candidate.scores.size()) == candidate.index->kept(),
          "one score per kept element", candidate.name, candidate.scores.size(),
          candidate.index->kept());
  if (needs_values) {
    check_numbers(candidate.name, candidate.values);
  }
  if (needs_scores) {
    check_numbers(candidate.name, candidate.scores);
  }
}

Scope scope_by_name(std::string_view name) {
  return static_cast<Scope>(number_of(kScopes, "unknown pruning scope", name));
}

void check_sparsity(double sparsity) {
  check(
      sparsity >= 0 && sparsity < 1,
      "pruning: sparsity {} is outside [0, 1): it is the share of elements to remove, such as 0.9",
      sparsity);
}

Result prune(std::span<const Candidate> candidates, const Settings& settings) {
  const Method& method = method_by_name(settings.method);
  require(!method.from_file(), "a method that computes masks", method.name);
  check_settings(settings);
  for (const Candidate& candidate : candidates) {
    check_candidate(candidate, method.needs_values, method.score != nullptr);
  }
  Result result = method.run(candidates, settings);
  warn_empty(candidates, settings, result);
  return result;
}

int64_t kept_count(int64_t size, double sparsity) {
  return std::llround((1 - sparsity) * static_cast<double>(size));
}

sparse::Mask mask_from_dense_zeros(std::string_view name, std::span<const float> values) {
  check_numbers(name, values);
  sparse::Mask mask(static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0.0F) {
      mask.set(static_cast<int64_t>(i), false);
    }
  }
  return mask;
}

std::vector<bool> prunable(std::span<const ParameterInfo> parameters,
                           std::span<const std::string> exclude) {
  for (const std::string& pattern : exclude) {
    const bool used = std::ranges::any_of(parameters, [&pattern](const ParameterInfo& parameter) {
      return io::glob_match(pattern, parameter.name);
    });
    check(used, "pruning: the pattern \"{}\" matches no parameter; names look like \"{}\"", pattern,
          parameters.empty() ? "" : parameters.front().name);
  }
  std::vector<bool> flags;
  flags.reserve(parameters.size());
  for (const ParameterInfo& parameter : parameters) {
    flags.push_back(parameter.prunable &&
                    std::ranges::none_of(exclude, [&parameter](const std::string& pattern) {
                      return io::glob_match(pattern, parameter.name);
                    }));
  }
  return flags;
}

}  // namespace espalier::pruning
