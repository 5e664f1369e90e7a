#pragma once
// Predicts how a learning curve goes on: from points (x, y), x steps or seconds from the start of
// training, y a validation loss or accuracy, the mean and standard deviation of y at a later x.
//
// A mixture over eleven published shapes (curve_shape.h), in place of the sampler of Domhan et al.
// (IJCAI 2015) and the network of Klein et al. (ICLR 2017), which take seconds to minutes. Each
// shape is fitted by weighted least squares, recent points counting more (weight 10^(i/n),
// Domhan's); its nonlinear parameters are then drawn around the fit (Laplace's approximation as
// proposal, t with 4 degrees, plus a third from the whole box), and weighed by posterior /
// proposal. So
//   mean       = sum of W mean,  W = weight of a draw, over all draws of all shapes
//   deviation^2 = sum of W ((mean - y)^2 + variance)
// holds the disagreement of shapes, the parameters' uncertainty, and the noise of a single
// observation; beyond the last x it also holds 0.15 (1 + 4/n) of the mean slope against ln x, for
// real curves are of no family (constant chosen on real ones: benchmarks/quality/learning_curve.sh). The
// mean weight of a shape's draws is its evidence: shapes with more parameters gain no weight by
// fitting noise. Residuals that follow one another (a shape that is not quite right) count as fewer
// points, by (1 - r) / (1 + r), r their correlation.
//
// Losses and accuracies need no transformation: amplitudes take either sign, and shapes without one
// (loglog, hill3) come in both directions. Nothing depends on the units of x, nor on those of y but
// for loglog. With few points priors carry the answer: until x doubles, y is expected to change by
// about its range so far. Random numbers are Philox's: the same points give the same bits.
// Cost: about 1.5 ms for 30 points. Errors: Failure for fewer than 3 points, x not ascending or not
// above 0, and numbers that are not finite.
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "src/train/codec_choice/curve_fit.h"

namespace espalier::train {

struct CurvePoint {
  double x = 0, y = 0;
};

struct CurveOptions {
  int draws = 160;  ///< of parameters, a shape
  uint64_t seed = 1;
  /// What y can be (a loss is not below 0, an accuracy not above 1): draws that pass it by x are
  /// left out of the mixture there; where all do, y is predicted to reach it.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

/// What one shape says.
struct CurveShare {
  std::string_view names;  ///< published names of the shape
  double weight = 0;       ///< of the mixture, sum 1
  double mean = 0, deviation = 0;
};

struct CurvePrediction {
  double mean = 0, deviation = 0;
  double noise = 0;  ///< the part of the deviation that no fit can remove
  std::vector<CurveShare> shapes;
};

class LearningCurve {
 public:
  explicit LearningCurve(std::span<const CurvePoint> points, const CurveOptions& options = {});
  /// At any x > 0; meant for x beyond the last point.
  [[nodiscard]] CurvePrediction at(double x) const;
  /// Of another curve with points at the same x, which is known to be of this one's shape: its
  /// level and amplitude are its own, all else is this one's.
  [[nodiscard]] CurvePrediction at(double x, std::span<const CurvePoint> other) const;

 private:
  struct Draw {
    LinearFit fit;
    double weight = 0;    ///< of all draws of all shapes, sum 1
    double variance = 0;  ///< s^2, with that of Student's t
  };
  using Refit = std::optional<CurveData>;  ///< of whose points; none: those that made the draws

  [[nodiscard]] CurvePrediction predicted(double x, const Refit& other) const;
  [[nodiscard]] double variance_of(const LinearFit& fit) const;

  void draw(size_t shape, const CurveMinimum& minimum, const CurveOptions& options,
            std::vector<double>& log_weights);

  CurveData data_;
  double last_x_ = 0, centre_ = 0, range_ = 1;
  double least_, most_;
  std::vector<std::vector<Draw>> draws_;  ///< by shape
};

/// LearningCurve(points, options).at(x)
CurvePrediction predict_curve(std::span<const CurvePoint> points, double x,
                              const CurveOptions& options = {});

/// Of curves that begin in one state and see the same batches, as trials of codecs do: what they
/// have in common, how the curve bends, is taken from their mean; so they differ by their levels
/// and amplitudes, not by which shape the noise of a few points made likely for each. All with the
/// same x.
std::vector<CurvePrediction> predict_curves(std::span<const std::vector<CurvePoint>> curves,
                                            double x, const CurveOptions& options = {});

}  // namespace espalier::train
