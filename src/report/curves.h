#pragma once
// Curves small enough for a page: up to `limit` buckets of consecutive steps. A bucket keeps the
// mean of each number and the lowest and highest loss, so that a spike of one step stays visible.
// Evaluations are kept one by one up to the same limit, thinned evenly beyond it (first and last
// stay). Cost O(steps). Numbers have five significant digits; null stands for "not known".
#include <nlohmann/json.hpp>
#include <span>

#include "src/report/run_data.h"

namespace espalier::report {

/// {step, seconds, loss, loss_low, loss_high, teacher_loss, lr, grad_norm, tokens_per_s,
///  images_per_s, allreduce_bytes: [...], validation: {step, seconds, loss, top1, top5: [...]},
///  bucket: steps in a bucket}; tokens_per_s, images_per_s, top1 and top5 only if a value is known
nlohmann::json curves(std::span<const StepRecord> steps, size_t limit);

/// Five significant digits; null for NaN and infinities.
nlohmann::json rounded(double value);

}  // namespace espalier::report
