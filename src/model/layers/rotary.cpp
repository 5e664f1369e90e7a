#include "src/model/layers/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace espalier::model {
namespace {

double context_of(const RotaryOptions& options) {
  return static_cast<double>(options.context > 0 ? options.context : options.positions);
}

void set_frequencies(double base, std::span<double> frequencies) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(base, -static_cast<double>(i) / static_cast<double>(frequencies.size()));
  }
}

double unscaled(const RotaryOptions& /*options*/, std::span<double> /*frequencies*/) { return 1; }

/// Position interpolation. Source: Chen and others, 2023.
double linear(const RotaryOptions& options, std::span<double> frequencies) {
  for (double& frequency : frequencies) {
    frequency /= options.factor;
  }
  return 1;
}

/// A larger base where the sequence is longer than `context`. transformers takes the length of each
/// sequence so far; here it is the number of positions.
double dynamic(const RotaryOptions& options, std::span<double> frequencies) {
  const double length = std::max(static_cast<double>(options.positions), context_of(options));
  const double growth = options.factor * length / context_of(options) - (options.factor - 1);
  const auto width = static_cast<double>(options.width);
  if (width > 2) {
    set_frequencies(options.base * std::pow(growth, width / (width - 2)), frequencies);
  }
  return 1;
}

/// By turns within `context`: the mean of both ends, weighted linearly. Source: Llama 3.1.
double llama3(const RotaryOptions& options, std::span<double> frequencies) {
  const double high = options.high > 0 ? options.high : 4;
  for (double& frequency : frequencies) {
    const double turns = context_of(options) * frequency / (2 * std::numbers::pi);
    const double kept =
        std::clamp((turns - options.low) / std::max(high - options.low, 1e-9), 0.0, 1.0);
    frequency *= kept + (1 - kept) / options.factor;
  }
  return 1;
}

/// By the number of the pair, between those that turn `high` and `low` times within `context`.
/// Source: Peng and others, "YaRN", 2023; the ends are rounded outwards as in transformers.
double yarn(const RotaryOptions& options, std::span<double> frequencies) {
  const auto width = static_cast<double>(options.width);
  const auto pair_with = [&](double turns) {
    return width * std::log(context_of(options) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(options.base));
  };
  const double first = std::max(std::floor(pair_with(options.high > 0 ? options.high : 32)), 0.0);
  double last = std::min(std::ceil(pair_with(options.low)), width - 1);
  last += first == last ? 1e-3 : 0;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] *= 1 - slowed + slowed / options.factor;
  }
  return options.factor > 1 ? 0.1 * std::log(options.factor) + 1 : 1;
}

constexpr RotaryScaling kScalings[]{
    {.name = "none", .help = "as in training", .apply = unscaled},
    {.name = "linear", .help = "all frequencies / factor", .apply = linear},
    {.name = "dynamic",
     .help = "a base that grows with model.context / old context",
     .apply = dynamic},
    {.name = "llama3",
     .help = "low frequencies / factor, by turns within the old context",
     .apply = llama3},
    {.name = "yarn",
     .help = "likewise, by the number of the frequency; and a gain",
     .apply = yarn}};

}  // namespace

Registry<RotaryScaling> rotary_scalings() { return pointers_into<kScalings>(); }

RotaryTables rotary_tables(const RotaryOptions& options) {
  const auto pairs = static_cast<size_t>(options.width / 2);
  std::vector<double> frequencies(pairs);
  set_frequencies(options.base, frequencies);
  const RotaryScaling& scaling = find(rotary_scalings(), "model.rotary", options.scaling);
  const double own = scaling.apply(options, frequencies);
  const double gain = options.gain > 0 ? options.gain : own;
  const auto positions = static_cast<size_t>(options.positions);
  RotaryTables tables{.cosines = std::vector<float>(positions * pairs),
                      .sines = std::vector<float>(positions * pairs)};
  for (size_t p = 0; p < positions; ++p) {
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      tables.cosines[p * pairs + i] = static_cast<float>(gain * std::cos(angle));
      tables.sines[p * pairs + i] = static_cast<float>(gain * std::sin(angle));
    }
  }
  return tables;
}

}  // namespace espalier::model
