#pragma once
// Random tables for bit_choice.h, and the optimum by exhaustive search.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "parallel/choice/bit_choice.h"
#include "src/core/rng.h"

namespace espalier::parallel {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Deterministic random numbers for one test case.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  /// 0 … bound - 1
  int64_t below(int64_t bound) {
    const Philox word = philox(seed_, 0, count_++);
    return static_cast<int64_t>(
        espalier::below(uint64_t{word[0]} << 32U | word[1], static_cast<uint64_t>(bound)));
  }
  double unit() { return static_cast<double>(below(int64_t{1} << 30)) * 0x1p-30; }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

/// Kinds of error values.
enum class Errors { smooth, ties, awkward };

/// Choices from few bits to many. `awkward`: zeros, infinities, NaN, errors that do not decrease
/// with more bytes.
inline ChoiceTable random_table(Draw& draw, int64_t layers, int choices, Errors errors) {
  ChoiceTable table{.layers = layers, .choices = choices};
  for (int64_t l = 0; l < layers; ++l) {
    const int64_t size = errors == Errors::ties ? 4 : 1 + draw.below(5000);
    const double norm = std::exp(6 * draw.unit() - 3);
    for (int c = 0; c < choices; ++c) {
      double error = norm * static_cast<double>(size) * std::pow(0.25, c) * (0.5 + draw.unit());
      if (errors == Errors::ties) {
        error = static_cast<double>(draw.below(4));
      } else if (errors == Errors::awkward) {
        const int64_t kind = draw.below(8);
        error = kind == 0 ? 0 : kind == 1 ? kInfinite : kind == 2 ? std::nan("") : draw.unit();
      }
      table.error.push_back(error);
      table.bytes.push_back(errors == Errors::smooth ? size * (c + 1) : draw.below(6));
    }
  }
  return table;
}

/// Buckets of 1 to 3 layers that become ready in sequence. The link is about as fast as the layers.
inline ExchangeTimes random_times(Draw& draw, const ChoiceTable& table) {
  ExchangeTimes times;
  double mean = 0;
  for (const int64_t bytes : table.bytes) {
    mean += static_cast<double>(bytes) / static_cast<double>(table.choices);
  }
  const bool round = draw.below(2) == 0;  // times of a coarse clock tie often
  const double rate = round ? 1 : std::exp(4 * draw.unit() - 2);
  std::vector<double> codec(table.bytes.size());
  for (double& seconds : codec) {
    seconds = round ? static_cast<double>(draw.below(3)) : draw.unit();
  }
  times.seconds = exchange_seconds(table, rate, codec);
  times.latency = round ? 1 : draw.unit();
  double now = 0;
  for (int64_t end = 0; end < table.layers;) {
    end = std::min(table.layers, end + 1 + draw.below(3));
    now += round ? static_cast<double>(draw.below(8)) : draw.unit() * mean / 2;
    times.ends.push_back(end);
    times.ready.push_back(now);
  }
  times.backward_end = now + (draw.below(2) == 0 ? draw.unit() * mean : 0);
  return times;
}

/// Checks the headers' guarantees by exhaustive search.
class Exhaustive {
 public:
  Exhaustive(const ChoiceTable& table, const ErrorBudget& budget) : table_(table), budget_(budget) {
    double uniform = 0;
    for (int64_t l = 0; l < table.layers; ++l) {
      double error = table.error[table.at(l, budget.uniform)];
      if (!std::isfinite(error)) {
        error = kInfinite;
        for (int c = 0; c < table.choices; ++c) {
          error = std::fmin(error, table.error[table.at(l, c)]);
        }
      }
      uniform += measure(error);
    }
    limit_ = budget.alpha * budget.alpha * uniform;
  }

  double limit() const { return limit_; }
  /// Error as the budget counts it; infinite for forbidden choices.
  double error(const std::vector<int>& choice) const {
    double sum = 0;
    for (int64_t l = 0; l < table_.layers; ++l) {
      const double one = table_.error[table_.at(l, choice[l])];
      const bool allowed = std::isfinite(one) || (!any_finite(l) && choice[l] == budget_.uniform);
      sum += allowed ? measure(one) : kInfinite;
    }
    return sum;
  }

  struct Best {
    double cost = kInfinite;
    double error = kInfinite;
  };
  /// Least cost, then least error, of all choices within `part` of the budget.
  Best best(const std::function<double(const std::vector<int>&)>& cost, double part = 1) const {
    Best best;
    std::vector<int> choice(static_cast<size_t>(table_.layers));
    visit(choice, 0, [&] {
      const double error_now = error(choice);
      const double cost_now = error_now <= part * limit_ ? cost(choice) : kInfinite;
      if (cost_now < best.cost || (cost_now == best.cost && error_now < best.error)) {
        best = cost_now < kInfinite ? Best{cost_now, error_now} : best;
      }
    });
    return best;
  }

 private:
  static double measure(double error) { return std::isfinite(error) ? error : 0; }
  bool any_finite(int64_t layer) const {
    for (int c = 0; c < table_.choices; ++c) {
      if (std::isfinite(table_.error[table_.at(layer, c)])) {
        return true;
      }
    }
    return false;
  }
  void visit(std::vector<int>& choice, int64_t layer, const std::function<void()>& leaf) const {
    if (layer == table_.layers) {
      leaf();
      return;
    }
    for (int c = 0; c < table_.choices; ++c) {
      choice[layer] = c;
      visit(choice, layer + 1, leaf);
    }
  }

  const ChoiceTable& table_;
  ErrorBudget budget_;
  double limit_ = 0;
};

inline double bytes_of(const ChoiceTable& table, const std::vector<int>& choice) {
  double bytes = 0;
  for (int64_t l = 0; l < table.layers; ++l) {
    bytes += static_cast<double>(table.bytes[table.at(l, choice[l])]);
  }
  return bytes;
}

}  // namespace espalier::parallel
