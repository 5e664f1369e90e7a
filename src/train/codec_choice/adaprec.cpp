#include "src/train/codec_choice/adaprec.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "pruning/registry.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

constexpr int64_t kPoints = 5;  // per trial curve, in addition to the common start

/// Bits per value of a codec including bucket metadata; orders candidates by precision.
double bits_of(const std::string& codec) {
  constexpr int64_t kValues = 1 << 20;
  const auto format = parallel::format_of(parallel::parse_codec(codec));
  return 8.0 * static_cast<double>(kernels::wire_bytes(format, kValues)) / kValues;
}

}  // namespace

AdaPrec::AdaPrec(const io::Config& config, parallel::Communicator& comm, Hands hands,
                 int64_t resumed_step)
    : config_(config), comm_(comm), hands_(std::move(hands)) {
  if (comm_.rank() == 0) {
    log_.emplace(std::filesystem::path(config.run.out) / "adaprec.jsonl", resumed_step);
  }
}

bool AdaPrec::due(int64_t step) const {
  const io::PruningConfig& pruning = config_.pruning;
  const int64_t end = step + config_.parallel.codec_trial;
  const auto passes = [&](int64_t change) { return change > step && change <= end; };
  const bool gradual = pruning.gradual() && end > pruning.from_step && step <= pruning.to_step;
  const bool moving =
      pruning::method_of(pruning).moving() && step <= pruning.last_move(config_.train.steps);
  const bool masks_change =
      pruning.method != "none" &&
      (passes(pruning.at_step) || step == pruning.at_step || gradual || moving);
  return step % config_.parallel.codec_every == 0 && end < config_.train.steps && !masks_change;
}

PrecisionCandidate AdaPrec::trial(const std::string& codec, int64_t step, double value_now) {
  const double begin = now_seconds();
  PrecisionCandidate candidate{.name = codec, .bits = bits_of(codec)};
  candidate.points.push_back({.x = static_cast<double>(step) + 1, .y = value_now});
  hands_.use(codec);
  const int64_t steps = config_.parallel.codec_trial;
  double training = 0;
  for (int64_t done = 1; done <= steps; ++done) {
    const double at = now_seconds();
    double value = std::numeric_limits<double>::quiet_NaN();
    bool diverged = false;
    try {
      hands_.train(step + done - 1);
    } catch (const parallel::PeerLost&) {
      throw;
    } catch (const Failure&) {  // loss or norm is non-finite, on all ranks
      diverged = true;
    }
    training += now_seconds() - at;
    const bool evaluates = done * kPoints / steps != (done - 1) * kPoints / steps;
    if (!diverged && !evaluates) {
      continue;
    }
    if (!diverged) {
      value = hands_.evaluate();
    }
    candidate.points.push_back({.x = static_cast<double>(step + done) + 1, .y = value});
    if (!std::isfinite(value)) {
      break;
    }
  }
  const auto trained = static_cast<double>(steps);
  candidate.seconds_per_step = training / trained;
  candidate.speculation_seconds = now_seconds() - begin;
  return candidate;
}

std::string AdaPrec::round(int64_t step) {
  const Span span(Track::compute, "AdaPrec round");
  const double begin = now_seconds();
  const double value_now = hands_.evaluate();
  std::vector<PrecisionCandidate> candidates;
  {
    StateCopy state = hands_.copy();
    for (const std::string& codec : config_.parallel.codec_candidates) {
      candidates.push_back(trial(codec, step, value_now));
      state.restore();
    }
  }
  std::string news;
  int64_t chosen = 0;
  if (comm_.rank() == 0) {
    const PrecisionRound round{
        .candidates = candidates,
        .value_now = value_now,
        .step_now = step + 1,  // points count from 1: shapes take logarithms of x
        .phase_steps = std::min(config_.parallel.codec_every, config_.train.steps - step)};
    const PrecisionOptions options{.higher_is_better = false, .curve = {.least = 0}};
    const PrecisionChoice choice = choose_precision(round, options);
    log_->write(choice_record(round, options, choice));
    chosen = static_cast<int64_t>(choice.chosen);
    news = fmt::format("AdaPrec after step {}: {} ({})", step, candidates[choice.chosen].name,
                       choice.why);
  }
  parallel::broadcast(comm_, 0, std::as_writable_bytes(std::span(&chosen, 1)));
  hands_.use(config_.parallel.codec_candidates[static_cast<size_t>(chosen)]);
  seconds_ += now_seconds() - begin;
  return news;
}

}  // namespace espalier::train
