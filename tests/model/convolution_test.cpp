// Convolutions against sums over all pixels of all windows, in double: outputs and gradients, in
// every storage, with groups of channels, and with panels of few patches; dense gradients for a
// probe, and patches for an observer. Outputs have the same bits with and without these two.
#include "src/model/layers/convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "sparse/store/registry.h"
#include "src/core/rng.h"

namespace espalier::convolution_test {
namespace {

constexpr int64_t kImages = 3;

struct Variant {
  std::string name;
  kernels::Window window;
  int64_t in = 1, out = 1, groups = 1;
  int64_t panel_bytes = int64_t{1} << 20U;
};

std::vector<double> draw(uint64_t seed, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = to_float(to_bf16(uniform(philox(seed, 1, i)[0]) - 0.5F));
  }
  return values;
}

/// A convolution with random weights, its inputs and the gradient of its outputs.
class Problem {
 public:
  Problem(const Variant& variant, const std::string& storage, bool pruned, DType dtype)
      : variant_(variant),
        dtype_(dtype),
        layer_("conv", {.window = variant.window,
                        .in = variant.in,
                        .out = variant.out,
                        .groups = variant.groups,
                        .linear = {.deviation = 0.5F},
                        .panel_bytes = variant.panel_bytes}),
        store_(stream_, kernels_, layer_.parameters(),
               {.dtype = dtype,
                .storage =
                    [storage](const std::string&) { return sparse::storage_by_name(storage); }}),
        x_(draw(1, kImages * variant.window.pixels() * variant.in)),
        dy_(draw(2, kImages * variant.window.out_pixels() * variant.out)) {
    layer_.bind(store_, kernels_);
    store_.initialise(3);
    for (sparse::Parameter& parameter : store_.parameters()) {
      const std::vector<double> values = draw(4 + parameter.offset, parameter.spec.shape.count());
      store_.set_values(parameter, std::vector<float>(values.begin(), values.end()));
    }
    std::vector<sparse::Mask> masks = store_.masks();
    for (size_t p = 0; p < masks.size(); ++p) {
      for (int64_t i = 0; pruned && store_.parameters()[p].spec.prunable && i < masks[p].size();
           ++i) {
        masks[p].set(i, philox(8, p, static_cast<uint64_t>(i))[0] % 3 == 0);
      }
    }
    store_.set_masks(masks);
  }

  /// Outputs and gradients are those of the sums; gradients add to those before.
  void check(double tolerance) {
    model::Tape tape(arena_, size_t{8} << 20U);
    model::Pass pass{.stream = stream_, .kernels = kernels_, .tape = tape, .dtype = dtype_};
    const kernels::Window& window = variant_.window;
    const Tensor x = tensor(tape, x_, variant_.in);
    const Tensor dy = tensor(tape, dy_, variant_.out);
    const Tensor y = tape.push("y", dtype_, dy.shape);
    const Tensor dx = tape.push("dx", dtype_, x.shape);
    const auto run = [&](model::Pass& with) {
      kernels_.fill(stream_, {.x = y, .value = 9});
      kernels_.fill(stream_, {.x = dx, .value = 9});
      layer_.forward(with, x, y);
      layer_.backward_input(with, dy, dx);
      layer_.backward_weight(with, x, dy, false);
      return std::pair(values_of(y), values_of(dx));
    };
    const auto plain = run(pass);
    int64_t observed = 0;
    const std::function<void(std::string_view, const Tensor&)> count =
        [&](std::string_view, const Tensor& patches) { observed += patches.rows(); };
    pass.on_input = &count;
    EXPECT_EQ(run(pass), plain) << variant_.name << ", observed";
    EXPECT_EQ(observed, y.rows() * variant_.groups);
    pass.on_input = nullptr;
    std::map<std::string, std::vector<double>> probed;
    store_.set_gradient_probe(
        [&](const sparse::Parameter& parameter, const Tensor& gradient) {
          EXPECT_TRUE(probed.emplace(parameter.spec.name, values_of(gradient)).second)
              << "once a pass";
        },
        sparse::Store::Probed::prunable);
    EXPECT_EQ(run(pass), plain) << variant_.name << ", probed";
    EXPECT_EQ(std::ssize(probed), variant_.groups);
    store_.set_gradient_probe({});
    layer_.backward_weight(pass, x, dy, false);
    layer_.backward_weight(pass, x, dy, true);

    std::vector<double> want_y(dy_.size()), want_dx(x_.size());
    const int64_t in = variant_.in / variant_.groups, out = variant_.out / variant_.groups;
    for (int64_t group = 0; group < variant_.groups; ++group) {
      const std::string name = variant_.groups == 1 ? "conv" : "conv." + std::to_string(group);
      const std::vector<double> w = dense(name + ".weight"), b = dense(name + ".bias");
      std::vector<double> want_dw(w.size()), want_db(b.size());
      for (int64_t row = 0; row < y.rows(); ++row) {
        for (int64_t o = 0; o < out; ++o) {
          const int64_t to = row * variant_.out + group * out + o;
          want_y[to] = b[o];
          want_db[o] += 2 * dy_[to];
          for (int64_t k = 0; k < window.area() * in; ++k) {
            const int64_t from = pixel(row, k / in);
            if (from >= 0) {
              const int64_t at = from * variant_.in + group * in + k % in;
              want_y[to] += w[o * window.area() * in + k] * x_[at];
              want_dx[at] += w[o * window.area() * in + k] * dy_[to];
              want_dw[o * window.area() * in + k] += 2 * x_[at] * dy_[to];
            }
          }
        }
      }
      compare(name + ".weight", gradient(name + ".weight", want_dw), tolerance);
      for (double& of_one_pass : want_dw) {
        of_one_pass /= 2;
      }
      compare(name + ".weight, probed", {probed.at(name + ".weight"), want_dw}, 1e-5);
      compare(name + ".bias", gradient(name + ".bias", want_db), tolerance);
    }
    compare("y", {values_of(y), want_y}, tolerance);
    compare("dx", {values_of(dx), want_dx}, tolerance);
  }

 private:
  using Pair = std::pair<std::vector<double>, std::vector<double>>;

  Tensor tensor(model::Tape& tape, const std::vector<double>& values, int64_t cols) const {
    const Tensor made = tape.push("images", dtype_, {std::ssize(values) / cols, cols});
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (dtype_ == DType::fp32) {
        made.get<float>()[i] = value;
      } else {
        made.get<bf16>()[i] = to_bf16(value);
      }
    }
    return made;
  }

  std::vector<double> values_of(const Tensor& tensor) const {
    std::vector<double> values(static_cast<size_t>(tensor.count()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          tensor.dtype == DType::fp32 ? tensor.get<float>()[i] : to_float(tensor.get<bf16>()[i]);
    }
    return values;
  }

  /// The input pixel at `place` of the window of output pixel `row`; -1: padding.
  int64_t pixel(int64_t row, int64_t place) const {
    const kernels::Window& w = variant_.window;
    const int64_t image = row / w.out_pixels();
    const int64_t top = row % w.out_pixels() / w.out_width() * w.stride - w.padding;
    const int64_t left = row % w.out_width() * w.stride - w.padding;
    const int64_t y = top + place / w.extent;
    const int64_t x = left + place % w.extent;
    const bool inside = y >= 0 && y < w.height && x >= 0 && x < w.width;
    return inside ? (image * w.height + y) * w.width + x : -1;
  }

  std::vector<double> dense(const std::string& name) {
    const sparse::Parameter& parameter = store_.find(name);
    const sparse::Mask mask = store_.masks()[&parameter - store_.parameters().data()];
    const std::vector<float> kept = store_.values(parameter);
    std::vector<double> values(static_cast<size_t>(mask.size()));
    size_t next = 0;
    for (const int32_t position : mask.positions()) {
      values[position] = static_cast<double>(kept[next++]);
    }
    return values;
  }

  /// The gradient of the kept elements, and what it should be.
  Pair gradient(const std::string& name, const std::vector<double>& want) {
    const sparse::Parameter& parameter = store_.find(name);
    const sparse::Mask mask = store_.masks()[&parameter - store_.parameters().data()];
    const auto flat = store_.gradient().span<float>();
    Pair both;
    for (const int32_t position : mask.positions()) {
      both.first.push_back(
          static_cast<double>(flat[parameter.offset + static_cast<int64_t>(both.first.size())]));
      both.second.push_back(want[position]);
    }
    return both;
  }

  void compare(const std::string& what, const Pair& both, double tolerance) const {
    double worst = 0;
    double largest = 0;
    for (size_t i = 0; i < both.first.size(); ++i) {
      worst = std::max(worst, std::fabs(both.first[i] - both.second[i]));
      largest = std::max(largest, std::fabs(both.second[i]));
    }
    EXPECT_GT(largest, 0) << what;
    EXPECT_LE(worst, tolerance * largest) << variant_.name << ", " << what;
  }

  Variant variant_;
  DType dtype_;
  Arena arena_;
  Stream stream_{arena_, 2};
  const kernels::Kernels& kernels_ = kernels::by_name("cpu");
  model::Convolution layer_;
  sparse::Store store_;
  std::vector<double> x_, dy_;
};

std::vector<Variant> variants() {
  const kernels::Window same{.height = 9, .width = 7, .extent = 3, .padding = 1};
  const kernels::Window halved{.height = 9, .width = 8, .extent = 3, .stride = 2, .padding = 1};
  const kernels::Window point{.height = 5, .width = 6};
  const kernels::Window skipped{.height = 5, .width = 6, .stride = 2};
  return {{.name = "same", .window = same, .in = 5, .out = 6},
          {.name = "same, small panels", .window = same, .in = 5, .out = 6, .panel_bytes = 3000},
          {.name = "one patch a panel", .window = halved, .in = 4, .out = 7, .panel_bytes = 1},
          {.name = "halved", .window = halved, .in = 4, .out = 7},
          // 99 columns a row of the window and 297 in all: both make 3 panels of up to 128
          {.name = "wide", .window = same, .in = 33, .out = 6},
          {.name = "direct", .window = point, .in = 8, .out = 3},
          {.name = "direct, groups", .window = point, .in = 8, .out = 6, .groups = 2},
          {.name = "skipped", .window = skipped, .in = 6, .out = 5},
          {.name = "groups", .window = same, .in = 6, .out = 9, .groups = 3, .panel_bytes = 2000}};
}

class Convolutions : public ::testing::TestWithParam<std::string> {};

TEST_P(Convolutions, AreSumsOverWindows) {
  for (const Variant& variant : variants()) {
    for (const bool pruned : {false, true}) {
      SCOPED_TRACE(pruned ? "pruned" : "full");
      Problem(variant, GetParam(), pruned, DType::fp32).check(1e-5);
      Problem(variant, GetParam(), pruned, DType::bf16).check(1.5e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, Convolutions,
                         ::testing::Values("dense", "expanded", "sparse", "tiles"));

}  // namespace
}  // namespace espalier::convolution_test
