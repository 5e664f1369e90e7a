#include "pruning/pruning.h"

#include <algorithm>
#include <cmath>

#include "pruning/parts.h"
#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"
#include "src/core/finite.h"

namespace espalier::pruning {
namespace {

/// A warning if more than one row in so many keeps no element, while rows keep kFew or more on
/// average: a random mask then leaves about 2 % of them empty.
constexpr int64_t kEmptyRows = 4;
constexpr int64_t kFew = 4;

void check_settings(const Settings& settings) {
  check_sparsity(settings.sparsity);
  check(settings.n >= 1 && settings.m >= settings.n && settings.m <= 1024,
        "pruning: {}:{} is not a valid N:M pattern; set 1 <= n < m <= 1024", settings.n,
        settings.m);
  check(settings.block >= 1 && settings.block <= 4096,
        "pruning: block = {} is out of range; set 1 to 4096", settings.block);
}

void check_numbers(std::string_view name, std::span<const float> values) {
  check(!has_nan(values),
        "pruning: parameter \"{}\" holds a NaN: training has diverged, start from an earlier "
        "checkpoint",
        name);
}

void check_values(std::string_view name, std::span<const float> values) {
  check_numbers(name, values);
  check(all_finite(std::as_bytes(values), DType::fp32),
        "pruning: parameter \"{}\" holds an infinity: training has diverged, start from an earlier "
        "checkpoint",
        name);
}

/// Rows of the matrix view without a kept element.
int64_t empty_rows(const Shape& shape, const sparse::Mask& mask) {
  const int64_t columns = std::max<int64_t>(shape.cols(), 1);
  int64_t filled = 0;
  int64_t last = -1;
  sparse::for_each_one(mask.words(), [&](int64_t position) {
    filled += position / columns != last ? 1 : 0;
    last = position / columns;
  });
  return mask.size() / columns - filled;
}

/// Warns of parameters without elements, and of matrices with many outputs that read no input.
void warn_empty(std::span<const Candidate> candidates, const Settings& settings, Result& result) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].index->kept() > 0 && result.masks[i].kept() == 0) {
      result.warnings.push_back(
          fmt::format("parameter \"{}\" keeps none of its {} elements at sparsity {}: exclude it, "
                      "or use scope = "
                      "\"layer\"",
                      candidates[i].name, candidates[i].index->size(), settings.sparsity));
      continue;
    }
    const int64_t rows = candidates[i].shape.rank() > 1 ? candidates[i].shape.rows() : 0;
    const int64_t empty = rows > 0 ? empty_rows(candidates[i].shape, result.masks[i]) : 0;
    if (empty > rows / kEmptyRows && result.masks[i].kept() >= kFew * rows) {
      result.warnings.push_back(
          fmt::format("parameter \"{}\" keeps no input of {} of its {} outputs: the network may "
                      "not learn; use scope = \"layer\", a lower sparsity or method \"random\"",
                      candidates[i].name, empty, rows));
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
    check_values(candidate.name, candidate.values);
  }
  if (needs_scores) {
    check_numbers(candidate.name, candidate.scores);
  }
}

Result prune(std::span<const Candidate> candidates, const Settings& settings) {
  const Method& method = method_by_name(settings.method);
  require(method.run != nullptr, "a method that computes masks of several parameters", method.name);
  check_settings(settings);
  for (const Candidate& candidate : candidates) {
    check_candidate(candidate, method.needs_values, reads_scores(method));
  }
  Result result;
  if (reads_scores(method) && settings.scope == Scope::layer) {
    const Parts parts(candidates);
    result = method.run(parts.candidates(), settings);
    result.masks = parts.joined(std::move(result.masks));
  } else {
    result = method.run(candidates, settings);
  }
  warn_empty(candidates, settings, result);
  return result;
}

Result prune_matrix(const Candidate& matrix, std::vector<double> statistic,
                    const Settings& settings, std::span<float> values) {
  const Method& method = method_by_name(settings.method);
  const auto* calibrated = std::get_if<Calibrated>(&method.kind);
  require(calibrated != nullptr, "a method that reads inputs", method.name);
  check_settings(settings);
  check_candidate(matrix, true);
  check(
      std::ranges::all_of(statistic, [](double sum) { return std::isfinite(sum); }),
      "the inputs of \"{}\" on the calibration data are not finite, or too large: the network has "
      "diverged, use an earlier checkpoint",
      matrix.name);
  Result result = calibrated->prune(matrix, std::move(statistic), settings, values);
  warn_empty({&matrix, 1}, settings, result);
  return result;
}

sparse::Mask mask_from_dense_zeros(std::string_view name, std::span<const float> values) {
  check_values(name, values);
  sparse::Mask mask(static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0.0F) {
      mask.set(static_cast<int64_t>(i), false);
    }
  }
  return mask;
}

bool is_excluded(std::string_view name, std::span<const std::string> exclude) {
  return std::ranges::any_of(
      exclude, [name](const std::string& pattern) { return io::glob_match(pattern, name); });
}

std::vector<bool> prunable(std::span<const ParameterInfo> parameters,
                           std::span<const std::string> exclude) {
  std::vector<std::string> names;
  std::ranges::transform(parameters, std::back_inserter(names), &ParameterInfo::name);
  for (const std::string& pattern : exclude) {
    io::check_matches("pruning", pattern, names);
  }
  std::vector<bool> flags;
  flags.reserve(parameters.size());
  for (const ParameterInfo& parameter : parameters) {
    flags.push_back(parameter.prunable && !is_excluded(parameter.name, exclude));
  }
  return flags;
}

}  // namespace espalier::pruning
