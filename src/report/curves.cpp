#include "src/report/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/core/error.h"

namespace espalier::report {
namespace {

using nlohmann::json;

struct Curve {
  const char* name;
  double StepRecord::*member;
};

constexpr Curve kMeans[] = {
    {"loss", &StepRecord::loss},
    {"teacher_loss", &StepRecord::teacher_loss},
    {"lr", &StepRecord::lr},
    {"grad_norm", &StepRecord::grad_norm},
    {"tokens_per_s", &StepRecord::tokens_per_s},
    {"images_per_s", &StepRecord::images_per_s},
    {"allreduce_bytes", &StepRecord::allreduce_bytes},
};

struct Extent {
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  size_t count = 0;
};

/// Over the numbers that are known.
Extent extent_of(std::span<const StepRecord> bucket, double StepRecord::*member) {
  Extent extent;
  for (const StepRecord& record : bucket) {
    const double value = record.*member;
    if (std::isfinite(value)) {
      extent.sum += value;
      extent.low = std::min(extent.low, value);
      extent.high = std::max(extent.high, value);
      ++extent.count;
    }
  }
  return extent;
}

/// Removes curves without a known value.
void drop_unknown(json& out, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const json& values = out[name];
    if (std::ranges::all_of(values, [](const json& value) { return value.is_null(); })) {
      out.erase(name);
    }
  }
}

json validation(std::span<const StepRecord> steps, size_t limit) {
  std::vector<const StepRecord*> evaluations;
  for (const StepRecord& record : steps) {
    if (std::isfinite(record.val_loss)) {
      evaluations.push_back(&record);
    }
  }
  json out = json::object();
  for (const char* name : {"step", "seconds", "loss", "top1", "top5"}) {
    out[name] = json::array();
  }
  const size_t kept = std::min(limit, evaluations.size());
  for (size_t i = 0; i < kept; ++i) {
    const size_t at =
        kept == 1 ? evaluations.size() - 1 : i * (evaluations.size() - 1) / (kept - 1);
    out["step"].push_back(evaluations[at]->step);
    out["seconds"].push_back(rounded(evaluations[at]->seconds));
    out["loss"].push_back(rounded(evaluations[at]->val_loss));
    out["top1"].push_back(rounded(evaluations[at]->val_top1));
    out["top5"].push_back(rounded(evaluations[at]->val_top5));
  }
  drop_unknown(out, {"top1", "top5"});
  return out;
}

}  // namespace

json rounded(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

json curves(std::span<const StepRecord> steps, size_t limit) {
  require(limit > 0, "a curve needs a point");
  const size_t bucket = std::max<size_t>(1, (steps.size() + limit - 1) / limit);
  json out = {{"bucket", bucket}, {"validation", validation(steps, limit)}};
  for (const char* name : {"step", "seconds", "loss_low", "loss_high"}) {
    out[name] = json::array();
  }
  for (const Curve& curve : kMeans) {
    out[curve.name] = json::array();
  }
  for (size_t first = 0; first < steps.size(); first += bucket) {
    const auto part = steps.subspan(first, std::min(bucket, steps.size() - first));
    out["step"].push_back(part.back().step);
    out["seconds"].push_back(rounded(part.back().seconds));
    for (const Curve& curve : kMeans) {
      const Extent extent = extent_of(part, curve.member);
      out[curve.name].push_back(rounded(extent.sum / static_cast<double>(extent.count)));
    }
    const Extent loss = extent_of(part, &StepRecord::loss);
    out["loss_low"].push_back(rounded(loss.low));
    out["loss_high"].push_back(rounded(loss.high));
  }
  drop_unknown(out, {"teacher_loss", "tokens_per_s", "images_per_s"});
  if (bucket == 1) {  // the band is the curve itself
    out.erase("loss_low");
    out.erase("loss_high");
  }
  return out;
}

}  // namespace espalier::report
