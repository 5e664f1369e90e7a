#include "src/train/codec_choice/adaprec.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "pruning/registry.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

constexpr int64_t kPoints = 5;  // per trial curve, in addition to the common start

/// Bits per value of a codec including bucket metadata; orders candidates by precision.
double bits_of(const std::string& codec) {
  constexpr int64_t kValues = 1 << 20;
  const auto format = parallel::format_of(parallel::parse_codec(codec));
  return 8.0 * static_cast<double>(kernels::wire_bytes(format, kValues)) / kValues;
}

/// Copy of a rank's model state. Masks must not change between copy and restore.
class StateCopy {
 public:
  explicit StateCopy(sparse::Store& store) : store_(store) {
    keep(store.value());
    keep(store.feedback());
    for (const sparse::Parameter& parameter : store.parameters()) {
      const sparse::OptimizerState state = store.state(parameter);
      keep(state.separate_master ? state.value : Tensor());
      for (const Tensor& tensor : {state.low, state.moment1, state.moment2, state.scale1,
                                   state.scale2, state.pruning1, state.pruning2}) {
        keep(tensor);
      }
      if (parameter.exact_copy()) {
        keep(parameter.dense);
      }
    }
    store.stream().synchronize();  // the caller may change host memory at once
  }

  /// Restores the copy bit for bit; callable any number of times. Not collective.
  void restore() {
    for (const Kept& kept : kept_) {
      store_.stream().copy(kept.copy.tensor(), kept.original);
    }
    for (sparse::Parameter& parameter : store_.parameters()) {
      if (parameter.copied() && !parameter.exact_copy()) {
        store_.refresh(parameter);
      }
    }
    store_.stream().synchronize();
  }

 private:
  struct Kept {
    Tensor original;
    Buffer copy;
  };

  void keep(const Tensor& tensor) {
    if (!tensor || tensor.count() == 0) {
      return;
    }
    Arena& arena = tensor.on_device ? store_.arena() : store_.arena().host();
    Buffer copy =
        arena.allocate(Memory::scratch, "state to come back to", tensor.dtype, tensor.shape);
    store_.stream().copy(tensor, copy.tensor());
    kept_.push_back({tensor, std::move(copy)});
  }

  sparse::Store& store_;
  std::vector<Kept> kept_;
};

}  // namespace

AdaPrec::AdaPrec(const io::Config& config, parallel::Communicator& comm, sparse::Store& store,
                 Callbacks callbacks, int64_t resumed_step)
    : config_(config), comm_(comm), store_(store), callbacks_(std::move(callbacks)) {
  if (comm_.rank() == 0) {
    const parallel::Busy busy(comm_);
    log_.emplace(std::filesystem::path(config.run.out) / "adaprec.jsonl", resumed_step);
  }
}

bool AdaPrec::due(int64_t step) const {
  const io::PruningConfig& pruning = config_.pruning;
  const int64_t end = step + config_.parallel.codec_trial;
  const auto passes = [&](int64_t change) { return change > step && change <= end; };
  const bool gradual = pruning.gradual() && end > pruning.from_step && step <= pruning.to_step;
  const pruning::Method& method = pruning::method_of(pruning);
  const bool moving =
      (method.moving() || method.waits) && step <= pruning.last_move(config_.train.steps);
  const bool masks_change =
      pruning.prunes() && (passes(pruning.at_step) || step == pruning.at_step || gradual || moving);
  return step % config_.parallel.codec_every == 0 && end < config_.train.steps && !masks_change;
}

PrecisionCandidate AdaPrec::trial(const std::string& codec, int64_t step, double value_now) {
  const double begin = now_seconds();
  PrecisionCandidate candidate{.name = codec, .bits = bits_of(codec)};
  candidate.points.push_back({.x = static_cast<double>(step) + 1, .y = value_now});
  callbacks_.use(codec);
  const int64_t steps = config_.parallel.codec_trial;
  double training = 0;
  for (int64_t done = 1; done <= steps; ++done) {
    const double at = now_seconds();
    double value = std::numeric_limits<double>::quiet_NaN();
    bool diverged = false;
    try {
      callbacks_.train(step + done - 1);
    } catch (const Diverged&) {  // on all ranks
      diverged = true;
    }
    training += now_seconds() - at;
    const bool evaluates = done * kPoints / steps != (done - 1) * kPoints / steps;
    if (!diverged && !evaluates) {
      continue;
    }
    if (!diverged) {
      value = callbacks_.evaluate();
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
  const double value_now = callbacks_.evaluate();
  std::vector<PrecisionCandidate> candidates;
  {
    StateCopy state(store_);
    for (const std::string& codec : config_.parallel.codec_candidates) {
      candidates.push_back(trial(codec, step, value_now));
      state.restore();
    }
  }
  std::string note;
  int64_t chosen = 0;
  if (comm_.rank() == 0) {
    const PrecisionRound round{
        .candidates = candidates,
        .value_now = value_now,
        .step_now = step + 1,  // points count from 1: shapes take logarithms of x
        .phase_steps = std::min(config_.parallel.codec_every, config_.train.steps - step)};
    const parallel::Busy busy(comm_);
    const PrecisionChoice choice = choose_precision(round);
    log_->write(choice_record(round, choice));
    log_->sync();
    chosen = static_cast<int64_t>(choice.chosen);
    note = fmt::format("AdaPrec after step {}: {} ({})", step, candidates[choice.chosen].name,
                       choice.why);
  }
  parallel::broadcast(comm_, 0, std::as_writable_bytes(std::span(&chosen, 1)));
  callbacks_.use(config_.parallel.codec_candidates[static_cast<size_t>(chosen)]);
  seconds_ += now_seconds() - begin;
  return note;
}

}  // namespace espalier::train
