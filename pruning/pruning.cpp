#include "pruning/pruning.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "pruning/methods.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

constexpr std::array<std::string_view, 2> kScopes{"global", "layer"};

Result prune_none(std::span<const Candidate> candidates, const Settings&) {
  return {.masks = current_masks(candidates), .warnings = {}};
}

constexpr std::array<Method, 5> kMethods{{
    {.name = "none", .run = prune_none, .needs_values = false},
    {.name = "magnitude", .run = prune_magnitude},
    {.name = "random", .run = prune_random, .needs_values = false},
    {.name = "nm", .run = prune_nm},
    {.name = "block", .run = prune_block},
}};

void check_settings(const Settings& settings) {
  check_sparsity(settings.sparsity);
  check(settings.n >= 1 && settings.m >= settings.n && settings.m <= 1024,
        "pruning: {}:{} must keep at least 1 and at most m of m <= 1024", settings.n, settings.m);
  check(settings.block >= 1 && settings.block <= 4096,
        "pruning: a block of {} is outside [1, 4096]", settings.block);
}

/// A NaN has no magnitude. The maximum over the bits is one vector loop at memory speed.
void check_numbers(std::string_view name, std::span<const float> values) {
  uint32_t largest = 0;
  for (float value : values) {
    largest = std::max(largest, magnitude_key(value));
  }
  check(largest <= magnitude_key(HUGE_VALF),
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

void check_candidate(const Candidate& candidate, bool needs_values) {
  require(candidate.index != nullptr, "a candidate has an index", candidate.name);
  require(candidate.index->size() == candidate.shape.count(), "the index covers the shape",
          candidate.name, candidate.index->size(), candidate.shape.text());
  require(!needs_values || static_cast<int64_t>(candidate.values.size()) == candidate.index->kept(),
          "one value per kept element", candidate.name, candidate.values.size(),
          candidate.index->kept());
  if (needs_values) {
    check_numbers(candidate.name, candidate.values);
  }
}

std::string_view name_of(Scope scope) { return kScopes.at(static_cast<size_t>(scope)); }

Scope scope_by_name(std::string_view name) {
  const auto* found = std::ranges::find(kScopes, name);
  check(found != kScopes.end(), "unknown pruning scope \"{}\": use one of {}", name,
        fmt::join(kScopes, ", "));
  return static_cast<Scope>(found - kScopes.begin());
}

std::span<const Method> methods() { return kMethods; }

const Method& method_by_name(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &Method::name);
  if (found == kMethods.end()) {
    std::vector<std::string_view> names;
    std::ranges::transform(kMethods, std::back_inserter(names), &Method::name);
    fail("unknown pruning method \"{}\": use one of {}", name, fmt::join(names, ", "));
  }
  return *found;
}

void check_sparsity(double sparsity) {
  check(
      sparsity >= 0 && sparsity < 1,
      "pruning: sparsity {} is outside [0, 1): it is the share of elements to remove, such as 0.9",
      sparsity);
}

Result prune(std::span<const Candidate> candidates, const Settings& settings) {
  const Method& method = method_by_name(settings.method);
  check_settings(settings);
  for (const Candidate& candidate : candidates) {
    check_candidate(candidate, method.needs_values);
  }
  Result result = method.run(candidates, settings);
  warn_empty(candidates, settings, result);
  return result;
}

int64_t kept_count(int64_t size, double sparsity) {
  return std::llround((1 - sparsity) * static_cast<double>(size));
}

uint64_t digest(std::span<const sparse::Mask> masks) {
  std::vector<uint64_t> digests;
  digests.reserve(masks.size());
  for (const sparse::Mask& mask : masks) {
    digests.push_back(mask.digest());
  }
  return XXH3_64bits(digests.data(), digests.size() * sizeof(uint64_t));
}

std::vector<sparse::Mask> masks_from_dense_zeros(std::span<const DenseValues> parameters) {
  std::vector<sparse::Mask> masks;
  masks.reserve(parameters.size());
  for (const DenseValues& parameter : parameters) {
    check_numbers(parameter.name, parameter.values);
    sparse::Mask& mask = masks.emplace_back(static_cast<int64_t>(parameter.values.size()));
    for (size_t i = 0; i < parameter.values.size(); ++i) {
      if (parameter.values[i] == 0.0F) {
        mask.set(static_cast<int64_t>(i), false);
      }
    }
  }
  return masks;
}

}  // namespace espalier::pruning
