// SynFlow: prunes in rounds by the flow of |w| through the network, without data. With A = |w| of
// all matrices on the paths, R = 1ᵀ (product of A along each path, summed over paths) 1, and
//
//   score of element (row, col) = A dR/dA / R = |w| in[col] out[row] / R
//
// `in`: flow into the matrix from inputs of one; `out`: flow from its output to the network's.
// Between matrices everything counts as the identity; a branch of a residual network is added to
// its stream, and a matrix on the shortcut reads the stream; parts of an output (queries, keys,
// values) are added up, also those of matrices beside each other (sparse::Flow). Branches that read
// the same stream (parallel blocks) count as one after the other. Images count as equal in all
// pixels, so flows are vectors of
// channels: an element of a convolution multiplies the same channel at each place of the window.
// Along the stream the scores of the matrices of each branch have equal sums, so a layer cannot
// lose its last elements while thinner ones than it keep theirs, if each round prunes a little:
// round k of N leaves (1 - s)^(k / N) of the elements. Source: Tanaka, Kunin, Yamins and Ganguli,
// "Pruning neural networks without any data by iteratively conserving synaptic flow", NeurIPS 2020.
//
// Time: three passes over the elements per round, and those of a selection. Memory: 8 bytes an
// element (value and score). Stages exchange the flows between matrices: each round the widths of
// all matrices.
#include <algorithm>
#include <bit>
#include <cmath>

#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

/// x 2^exponent: products over many layers exceed the range of double.
struct Scaled {
  std::vector<double> x;
  int64_t exponent = 0;

  static Scaled ones(int64_t size) { return {std::vector<double>(static_cast<size_t>(size), 1.0)}; }
  /// The largest element becomes 1/2 to 1.
  void normalise() {
    const double largest = x.empty() ? 0 : *std::ranges::max_element(x);
    int shift = 0;
    std::frexp(largest, &shift);
    for (double& some : x) {
      some = std::ldexp(some, -shift);
    }
    exponent += shift;
  }
  void add(const Scaled& other) {
    const int64_t common = std::max(exponent, other.exponent);
    const auto scale = [&](double some, int64_t from) {
      return std::ldexp(some, static_cast<int>(std::max<int64_t>(from - common, -4000)));
    };
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = scale(x[i], exponent) + scale(other.x[i], other.exponent);
    }
    exponent = common;
  }
};

/// Channels that the matrix reads.
int64_t inputs_of(const Paths::Matrix& matrix) {
  return matrix.flow.channels > 0 ? matrix.flow.channels : matrix.shape.cols();
}
/// Channels that it writes, as the next one reads them.
int64_t outputs_of(const Paths::Matrix& matrix) { return matrix.shape.rows() / matrix.flow.parts; }

/// Matrices [first, end) side by side.
struct Layer {
  size_t first = 0, end = 0;
};
std::vector<Layer> layers_of(std::span<const Paths::Matrix> matrices) {
  std::vector<Layer> layers;
  for (size_t m = 0; m < matrices.size(); m = layers.back().end) {
    layers.push_back({.first = m, .end = m + 1});
    const auto joins = [](const sparse::Flow& flow) { return flow.group > 0 || flow.beside; };
    while (layers.back().end < matrices.size() && joins(matrices[layers.back().end].flow)) {
      ++layers.back().end;
    }
  }
  return layers;
}

class Synflow {
 public:
  Synflow(std::span<const Candidate> candidates, const Settings& settings)
      : candidates_(candidates), settings_(settings), scores_(candidates.size()) {
    if (settings.paths != nullptr) {
      matrices_ = settings.paths->matrices;
    } else {
      for (const Candidate& candidate : candidates) {
        matrices_.push_back(
            {.shape = candidate.shape, .flow = {}, .here = &candidate, .pruned = true});
      }
    }
    std::erase_if(matrices_, [](const auto& matrix) { return matrix.shape.count() == 0; });
    layers_ = layers_of(matrices_);
    for (const Paths::Matrix& matrix : matrices_) {
      masks_.push_back(matrix.here != nullptr ? matrix.here->index->mask() : sparse::Mask());
    }
    for (size_t i = 0; i < candidates.size(); ++i) {
      scores_[i].assign(candidates[i].values.size(), 0.0F);
    }
  }

  Result run() {
    Result result{.masks = current_masks(candidates_), .warnings = {}};
    for (int round = 1; round <= settings_.rounds && settings_.sparsity > 0; ++round) {
      score();
      Settings now = settings_;
      if (round < settings_.rounds) {
        const double part = static_cast<double>(round) / settings_.rounds;
        now.sparsity = 1 - std::pow(1 - settings_.sparsity, part);
      }
      result = keep_largest(candidates_, now, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
        const float* score = scores_[i].data();
        sparse::for_each_one(mask.words(),
                             [&](int64_t position) { fn(position, ordered_key(*score++)); });
      });
      for (size_t i = 0; i < candidates_.size(); ++i) {
        mark_pruned(i, result.masks[i]);
      }
    }
    return result;
  }

 private:
  static constexpr float kPruned = -1;  ///< score of elements that earlier rounds pruned

  void mark_pruned(size_t i, const sparse::Mask& kept) {
    float* score = scores_[i].data();
    const sparse::Mask mask = candidates_[i].index->mask();
    sparse::for_each_one(mask.words(), [&](int64_t position) {
      *score = kept[position] ? *score : kPruned;
      ++score;
    });
  }

  /// The matrices before this one whose inputs and outputs are other parts of the layer's.
  int64_t group_of(size_t m, const Layer& layer) const {
    return matrices_[m].flow.beside ? 0 : static_cast<int64_t>(m - layer.first);
  }

  /// Calls fn(row, output of the layer) for the outputs that read each row of a matrix's output.
  template <class Fn>
  void for_each_output(size_t m, const Layer& layer, Fn&& fn) const {
    const sparse::Flow& flow = matrices_[m].flow;
    const int64_t rows = outputs_of(matrices_[m]);
    const int64_t run = flow.repeated_rows;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = group_of(m, layer) * rows + row / run * run * flow.repeats + row % run;
      for (int64_t i = 0; i < flow.repeats; ++i) {
        fn(static_cast<size_t>(row), static_cast<size_t>(first + i * run));
      }
    }
  }

  /// Calls fn(row, input of the layer, |w|, score or null) for the elements that are left.
  template <class Fn>
  void for_each(size_t m, const Layer& layer, Fn&& fn) {
    const Paths::Matrix& matrix = matrices_[m];
    if (matrix.here == nullptr) {
      return;
    }
    float* score = matrix.pruned
                       ? scores_[static_cast<size_t>(matrix.here - candidates_.data())].data()
                       : nullptr;
    const float* value = matrix.here->values.data();
    const int64_t columns = matrix.shape.cols();
    const int64_t inputs = inputs_of(matrix);
    const int64_t outputs = outputs_of(matrix);
    const int64_t group = group_of(m, layer);
    sparse::for_each_one(masks_[m].words(), [&](int64_t position) {
      if (score == nullptr || *score != kPruned) {
        fn(static_cast<size_t>(position / columns % outputs),
           static_cast<size_t>(group * inputs + position % columns % inputs),
           std::fabs(static_cast<double>(*value)), score);
      }
      ++value;
      score += score != nullptr ? 1 : 0;
    });
  }

  /// The product that one rank has computed, on all ranks.
  void share(std::vector<double>& product) const {
    if (settings_.global_selection != nullptr) {
      std::vector<int64_t> bits(product.size());
      std::ranges::transform(product, bits.begin(),
                             [](double x) { return std::bit_cast<int64_t>(x); });
      settings_.global_selection->sum(bits);  // the others are +0
      std::ranges::transform(bits, product.begin(),
                             [](int64_t x) { return std::bit_cast<double>(x); });
    }
  }

  const sparse::Flow& flow_of(const Layer& layer) const { return matrices_[layer.first].flow; }
  int64_t width_of(const Layer& layer, int64_t (*of)(const Paths::Matrix&)) const {
    int64_t width = 0;
    for (size_t m = layer.first; m < layer.end; ++m) {
      width += matrices_[m].flow.beside ? 0 : of(matrices_[m]);
    }
    return width;
  }

  /// A layer whose inputs are not the outputs of the one before begins another path.
  bool begins_path(const Layer& layer, size_t outputs_before) const {
    return layer.first == 0 || (!flow_of(layer).shortcut &&
                                outputs_before != static_cast<size_t>(width_of(layer, inputs_of)));
  }

  void score() {
    std::vector<Scaled> into;
    std::vector<Scaled> streams;
    Scaled flow;
    begins_.clear();
    for (const Layer& layer : layers_) {
      const sparse::Flow& place = flow_of(layer);
      begins_.push_back(begins_path(layer, flow.x.size()));
      if (begins_.back()) {
        flow = Scaled::ones(width_of(layer, inputs_of));
      }
      if (place.begins_branch) {
        streams.push_back(flow);
      }
      require(!(place.shortcut || place.ends_branch) || !streams.empty(),
              "a branch that ends has begun", layer.first);
      const Scaled& from = place.shortcut ? streams.back() : flow;
      Scaled next{std::vector<double>(static_cast<size_t>(width_of(layer, outputs_of))),
                  from.exponent};
      for (size_t m = layer.first; m < layer.end; ++m) {
        std::vector<double> rows(static_cast<size_t>(outputs_of(matrices_[m])));
        for_each(m, layer, [&](size_t row, size_t input, double w, float*) {
          rows[row] += w * from.x[input];
        });
        for_each_output(m, layer, [&](size_t row, size_t output) { next.x[output] += rows[row]; });
      }
      share(next.x);
      into.push_back(from);
      if (place.shortcut) {
        next.add(flow);
      } else if (place.ends_branch) {
        next.add(streams.back());
      }
      if (place.shortcut || place.ends_branch) {
        streams.pop_back();
      }
      flow = std::move(next);
      flow.normalise();
    }
    score_backwards(into, std::move(flow));
  }

  void score_backwards(const std::vector<Scaled>& into, Scaled last) {
    double total = 0;
    for (const double x : last.x) {
      total += x;
    }
    check(matrices_.empty() || (total > 0 && std::isfinite(total)),
          "pruning.method = \"synflow\": the network has no path of non-zero weights, its flow is "
          "{}; lower pruning.sparsity, or prune by another method",
          total);
    std::vector<Scaled> streams;
    Scaled flow = Scaled::ones(static_cast<int64_t>(last.x.size()));
    for (size_t l = layers_.size(); l-- > 0;) {
      const Layer& layer = layers_[l];
      const sparse::Flow& place = flow_of(layer);
      if (l + 1 < layers_.size() && begins_[l + 1]) {
        flow = Scaled::ones(width_of(layer, outputs_of));
      }
      if (place.ends_branch) {
        streams.push_back(flow);
      }
      const int64_t exponent = into[l].exponent + flow.exponent - last.exponent;
      const double factor =
          std::ldexp(1 / total, static_cast<int>(std::clamp<int64_t>(exponent, -1000, 1000)));
      Scaled next{std::vector<double>(static_cast<size_t>(width_of(layer, inputs_of))),
                  flow.exponent};
      for (size_t m = layer.first; m < layer.end; ++m) {
        std::vector<double> out(static_cast<size_t>(outputs_of(matrices_[m])));
        for_each_output(m, layer, [&](size_t row, size_t output) { out[row] += flow.x[output]; });
        for_each(m, layer, [&](size_t row, size_t input, double w, float* score) {
          next.x[input] += w * out[row];
          if (score != nullptr) {
            *score = static_cast<float>(w * into[l].x[input] * out[row] * factor);
          }
        });
      }
      share(next.x);
      if (place.shortcut) {  // the branch has the same gradient
        next.normalise();
        streams.push_back(std::move(next));
        continue;
      }
      flow = std::move(next);
      if (place.begins_branch) {
        flow.add(streams.back());
        streams.pop_back();
      }
      flow.normalise();
    }
  }

  std::span<const Candidate> candidates_;
  const Settings& settings_;
  std::vector<Paths::Matrix> matrices_;
  std::vector<sparse::Mask> masks_;  ///< [matrices] before the first round
  std::vector<Layer> layers_;
  std::vector<bool> begins_;  ///< [layers]
  std::vector<std::vector<float>> scores_;
};

Result synflow(std::span<const Candidate> candidates, const Settings& settings) {
  return Synflow(candidates, settings).run();
}

}  // namespace

extern const Method kSynflow{
    .name = "synflow",
    .help = "the largest flow of |value| through the network, in pruning.rounds rounds; no data",
    .run = synflow,
    .needs_paths = true,
};

}  // namespace espalier::pruning
