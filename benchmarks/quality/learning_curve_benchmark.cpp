// Predictions of real learning curves, from runs of benchmarks/quality/learning_curve.sh:
//
//   build/benchmarks/learning_curve_benchmark RUN/metrics.jsonl ...
//
// From the validation losses up to step s, for several s and numbers of points, it predicts the
// loss at 1.25 s, 1.5 s, 2 s and 3 s. Prints Markdown:
// - mean absolute errors of the prediction, of the last value, and of straight lines (through the
//   second half of the points; against x and ln x);
// - how often the truth lies within 1 and 2 stated deviations;
// - the time of a prediction.
#include <fmt/format.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "io/run/metrics.h"
#include "src/core/trace.h"
#include "src/train/codec_choice/learning_curve.h"

namespace espalier::train {
namespace {

std::vector<CurvePoint> read_curve(const char* path) {
  std::vector<CurvePoint> points;
  for (const auto& line : io::read_metrics(path)) {
    if (line.contains("val_loss") && line["val_loss"].is_number()) {
      points.push_back({line["step"].get<double>(), line["val_loss"].get<double>()});
    }
  }
  return points;
}

/// Least-squares line through the second half of the points, at `x`; against ln x if `logarithmic`.
double line_at(std::span<const CurvePoint> points, double x, bool logarithmic) {
  const auto of = [&](double v) { return logarithmic ? std::log(v) : v; };
  points = points.last((points.size() + 1) / 2);
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& p : points) {
    n += 1;
    sx += of(p.x);
    sy += p.y;
    sxx += of(p.x) * of(p.x);
    sxy += of(p.x) * p.y;
  }
  const double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  return (sy - slope * sx) / n + slope * of(x);
}

struct Score {
  double predicted = 0, last = 0, line = 0, log_line = 0, deviation = 0, square = 0;
  int cases = 0, within_1 = 0, within_2 = 0;

  void add(const CurvePrediction& p, double truth, std::span<const CurvePoint> seen, double x) {
    const double z = (p.mean - truth) / p.deviation;
    predicted += std::abs(p.mean - truth);
    last += std::abs(seen.back().y - truth);
    line += std::abs(line_at(seen, x, false) - truth);
    log_line += std::abs(line_at(seen, x, true) - truth);
    deviation += p.deviation;
    square += z * z;
    within_1 += std::abs(z) <= 1;
    within_2 += std::abs(z) <= 2;
    ++cases;
  }

  void print(const std::string& name) const {
    const double n = cases;
    std::printf("| %s | %d | %.4f | %.4f | %.4f | %.4f | %.4f | %.0f %% | %.0f %% | %.2f |\n",
                name.c_str(), cases, predicted / n, last / n, line / n, log_line / n, deviation / n,
                100 * within_1 / n, 100 * within_2 / n, std::sqrt(square / n));
  }
};

std::vector<CurvePoint> every(std::span<const CurvePoint> points, size_t stride) {
  std::vector<CurvePoint> kept;
  for (size_t i = points.size(); i-- > 0;) {
    if ((points.size() - 1 - i) % stride == 0) {
      kept.insert(kept.begin(), points[i]);
    }
  }
  return kept;
}

constexpr std::array kHorizons{1.25, 1.5, 2.0, 3.0};

struct Evaluation {
  std::array<Score, kHorizons.size()> by_horizon;
  std::array<Score, 3> by_stride, by_window;
  std::map<std::string, Score> by_curve;
  double best_ms = 1e9;
  size_t timed_points = 0;

  void add(const std::string& name, std::span<const CurvePoint> curve);
};

void Evaluation::add(const std::string& name, std::span<const CurvePoint> curve) {
  constexpr std::array<size_t, 3> strides{1, 3, 6};
  constexpr std::array parts{0.0, 0.5, 0.8};  // fraction of the first points that is left out
  for (size_t seen = 12; seen * 5 / 4 <= curve.size(); seen += 6) {
    for (size_t k = 0; k < strides.size() * parts.size(); ++k) {
      const size_t stride = k % 3;
      const size_t window = k / 3;
      const auto first = static_cast<size_t>(static_cast<double>(seen) * parts[window]);
      const auto points = every(curve.subspan(first, seen - first), strides[stride]);
      if (points.size() < 3) {
        continue;
      }
      for (size_t h = 0; h < kHorizons.size(); ++h) {
        const auto later =
            static_cast<size_t>(std::lround(static_cast<double>(seen) * kHorizons[h]));
        if (later > curve.size()) {
          continue;
        }
        const auto [x, truth] = curve[later - 1];
        const double begin = now_seconds();
        const CurvePrediction p = predict_curves({{points}}, x).front();
        if (points.size() == 30) {
          best_ms = std::min(best_ms, 1e3 * (now_seconds() - begin));
        }
        by_horizon[h].add(p, truth, points, x);
        by_stride[stride].add(p, truth, points, x);
        by_window[window].add(p, truth, points, x);
        by_curve[name].add(p, truth, points, x);
      }
    }
  }
}

int run(std::span<char*> paths) {
  Evaluation evaluation;
  for (const char* path : paths) {
    const std::filesystem::path file(path);
    evaluation.add(file.parent_path().filename().string(), read_curve(path));
  }
  std::printf(
      "| | cases | error | last value | line | line in ln x | deviation | within 1 | within 2 | "
      "rms z |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
  for (size_t h = 0; h < kHorizons.size(); ++h) {
    evaluation.by_horizon[h].print(fmt::format("horizon {}", kHorizons[h]));
  }
  constexpr std::array strides{"every point", "every 3rd", "every 6th"};
  constexpr std::array windows{"from the start", "last half", "last fifth"};
  for (size_t i = 0; i < 3; ++i) {
    evaluation.by_stride[i].print(strides[i]);
  }
  for (size_t i = 0; i < 3; ++i) {
    evaluation.by_window[i].print(windows[i]);
  }
  for (const auto& [name, score] : evaluation.by_curve) {
    score.print(name);
  }
  std::printf("\nA prediction from 30 points: %.2f ms.\n", evaluation.best_ms);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace espalier::train

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RUN/metrics.jsonl ...\n", argv[0]);
    return 2;
  }
  return espalier::train::run({argv + 1, argv + argc});
}
