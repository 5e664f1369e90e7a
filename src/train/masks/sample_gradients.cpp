#include "src/train/masks/sample_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/mirror.h"

namespace espalier::train {
namespace {

/// Bits of a unit of the sum below the largest gradient of the first unit.
constexpr int kFraction = 44;
/// A summand has at most this size, so that kScoredSamples of them do not overflow.
constexpr double kLimit = 0x1p56;
/// log2 of the largest gradient, where all of the first unit are zero.
constexpr int kOfZeros = -20;

/// Installs a gradient probe for one pass.
class Probe {
 public:
  Probe(sparse::Store& store, sparse::Store::Probed probed, sparse::Store::GradientProbe probe)
      : store_(store) {
    store_.set_gradient_probe(std::move(probe), probed);
  }
  ~Probe() { store_.set_gradient_probe({}); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

 private:
  sparse::Store& store_;
};

float largest_size(std::span<const float> gradient) {
  float largest = 0;
  for (const float g : gradient) {
    largest = std::max(largest, std::fabs(g));  // false for NaN: `add` finds it
  }
  return largest;
}

/// sums += round(gradient · 2^exponent). Returns whether all numbers are finite.
bool add(std::span<const float> gradient, int exponent, int threads, std::span<int64_t> sums) {
  const double factor = std::ldexp(1.0, exponent);
  const auto count = static_cast<int64_t>(gradient.size());
  constexpr int64_t kTogether = int64_t{1} << 14U;
  int64_t wrong = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : wrong) \
    if (threads > 1 && count > kTogether)
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[static_cast<size_t>(i)];
    const bool finite = std::isfinite(g);
    const double number = finite ? static_cast<double>(g) * factor : 0;
    sums[static_cast<size_t>(i)] +=
        static_cast<int64_t>(std::nearbyint(std::clamp(number, -kLimit, kLimit)));
    wrong += finite ? 0 : 1;
  }
  return wrong == 0;
}

/// Elements of all wanted parameters, and of the largest one.
std::pair<int64_t, int64_t> sizes_of(const sparse::Store& store, const std::vector<bool>& wanted) {
  std::pair<int64_t, int64_t> sizes;
  for (size_t p = 0; p < wanted.size(); ++p) {
    const int64_t size = wanted[p] ? store.parameters()[p].size() : 0;
    sizes = {sizes.first + size, std::max(sizes.second, size)};
  }
  return sizes;
}

}  // namespace

ScoredSamples ScoredSamples::of(int64_t global_batch, int64_t micro_batch, int together) {
  const int64_t unit = std::max<int64_t>(micro_batch, 1);
  const int64_t samples = std::min(global_batch, kScoredSamples);
  const int64_t units = std::max<int64_t>(samples / unit, 1);
  return {.unit = unit, .units = (units + together - 1) / together * together};
}

size_t gradient_sum_bytes(const sparse::StateParts& state, int64_t all, int64_t largest) {
  // ZeRO-1 shards the state of the optimizer: replicas would have other groups.
  const size_t of_all = state.value + state.copies + state.gradient + state.index;
  const size_t at_once = std::max(of_all / 2, sizeof(int64_t) * static_cast<size_t>(largest));
  return std::min(at_once, sizeof(int64_t) * static_cast<size_t>(all));
}

size_t sample_gradient_bytes(const sparse::Store& store, sparse::Store::Probed probed,
                             int replicas) {
  std::vector<bool> wanted;
  for (const sparse::Parameter& parameter : store.parameters()) {
    wanted.push_back(parameter.spec.prunable && !parameter.spec.borrowed &&
                     (probed == sparse::Store::Probed::prunable || !parameter.full()));
  }
  const auto [all, largest] = sizes_of(store, wanted);
  return gradient_sum_bytes(store.parts(), all, largest) +
         sizeof(float) * static_cast<size_t>(largest) +
         (replicas > 1 ? parallel::kIntegerStaging : 0);
}

SampleGradients::SampleGradients(sparse::Store& store, const ScoredSamples& samples, Ranks ranks,
                                 const GradientPass& pass)
    : store_(store),
      samples_(samples),
      ranks_(ranks),
      pass_(pass),
      exponents_(store.parameters().size(), 0),
      scaled_(store.parameters().size(), false) {}

int64_t SampleGradients::most_of_stages(int64_t mine) const {
  std::array<double, 1> most{static_cast<double>(mine)};
  if (ranks_.stages != nullptr) {
    parallel::all_reduce_small(*ranks_.stages, most, parallel::Combine::max);
  }
  return static_cast<int64_t>(most[0]);
}

void SampleGradients::run_pass(int64_t batch, int64_t unit, const std::vector<bool>& wanted,
                               sparse::Store::Probed probed, const See& see) {
  auto left = std::ranges::count(wanted, true);
  const Probe probe(store_, probed,
                    [&](const sparse::Parameter& parameter, const Tensor& gradient) {
                      const auto p = static_cast<size_t>(&parameter - store_.parameters().data());
                      if (wanted[p]) {
                        const Mirror mirror(store_.stream(), gradient);
                        see(p, mirror.read().host().span<const float>());
                        --left;
                      }
                    });
  pass_({.batch = batch, .first = unit * samples_.unit, .count = samples_.unit});
  require(left == 0, "backward shows the gradient of every weight once", left);
}

/// Equal on all replicas, which pass the same unit.
void SampleGradients::find_scales(int64_t batch, const std::vector<bool>& wanted,
                                  sparse::Store::Probed probed) {
  int64_t without = 0;
  for (size_t p = 0; p < wanted.size(); ++p) {
    without += wanted[p] && !scaled_[p] ? 1 : 0;
  }
  if (most_of_stages(without) == 0) {
    return;
  }
  run_pass(batch, 0, wanted, probed, [&](size_t p, std::span<const float> gradient) {
    const float largest = largest_size(gradient);
    const bool usable = largest > 0 && std::isfinite(largest);
    exponents_[p] = kFraction - (usable ? std::ilogb(largest) : kOfZeros);
    scaled_[p] = true;
  });
}

/// Parameters whose sums are in memory together.
std::vector<std::vector<size_t>> SampleGradients::groups_of(const std::vector<bool>& wanted) const {
  const auto [all, largest] = sizes_of(store_, wanted);
  const size_t most = gradient_sum_bytes(store_.parts(), all, largest);
  std::vector<std::vector<size_t>> groups;
  size_t bytes = 0;
  for (size_t p = 0; p < wanted.size(); ++p) {
    if (!wanted[p]) {
      continue;
    }
    const size_t mine = sizeof(int64_t) * static_cast<size_t>(store_.parameters()[p].size());
    if (groups.empty() || bytes + mine > most) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(p);
    bytes += mine;
  }
  return groups;
}

void SampleGradients::for_each(int64_t batch, const std::vector<bool>& wanted,
                               sparse::Store::Probed probed, const Use& use) {
  std::vector<std::vector<size_t>> groups = groups_of(wanted);
  groups.resize(static_cast<size_t>(most_of_stages(std::ssize(groups))));
  if (groups.empty()) {
    return;
  }
  find_scales(batch, wanted, probed);
  const int threads = store_.stream().threads();
  for (const std::vector<size_t>& group : groups) {
    std::vector<bool> summed(wanted.size(), false);
    std::vector<std::vector<int64_t>> sums(wanted.size());
    for (const size_t p : group) {
      summed[p] = true;
      sums[p].assign(static_cast<size_t>(store_.parameters()[p].size()), 0);
    }
    std::vector<int64_t> wrong(group.size(), 0);
    for (int64_t unit = ranks_.replicas.rank(); unit < samples_.units;
         unit += ranks_.replicas.size()) {
      run_pass(batch, unit, summed, probed, [&](size_t p, std::span<const float> gradient) {
        if (!add(gradient, exponents_[p], threads, sums[p])) {
          ++wrong[static_cast<size_t>(std::ranges::find(group, p) - group.begin())];
        }
      });
    }
    parallel::all_reduce_integers(ranks_.replicas, wrong);
    for (size_t i = 0; i < group.size(); ++i) {
      const size_t p = group[i];
      check(wrong[i] == 0,
            "pruning: the gradient of parameter \"{}\" holds a number that is not finite: training "
            "has diverged, start from an earlier checkpoint with a lower optimizer.lr",
            store_.parameters()[p].spec.name);
      parallel::all_reduce_integers(ranks_.replicas, sums[p]);
      std::vector<float> gradient(sums[p].size());
      std::ranges::transform(sums[p], gradient.begin(), [k = exponents_[p]](int64_t sum) {
        return static_cast<float>(std::ldexp(static_cast<double>(sum), -k));
      });
      sums[p] = {};
      use(p, gradient);
    }
  }
}

}  // namespace espalier::train
