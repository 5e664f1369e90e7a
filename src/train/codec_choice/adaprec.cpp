#include "src/train/codec_choice/adaprec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>

#include "parallel/transport/collectives.h"
#include "pruning/plan.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

constexpr int64_t kPoints = 5;  // per trial curve, in addition to the common start

/// Bits per value of a codec including bucket metadata; orders candidates by precision. Empty: it
/// is chosen by parameter.
std::optional<double> bits_of(const std::string& codec) {
  constexpr int64_t kValues = 1 << 20;
  const parallel::CodecSpec spec = parallel::parse_codec(codec);
  if (spec.kind() == parallel::CodecKind::choosing) {
    return {};
  }
  const auto format = parallel::format_of(spec);
  return 8.0 * static_cast<double>(kernels::wire_bytes(format, kValues)) / kValues;
}

bool all_diverged(std::span<const PrecisionCandidate> candidates) {
  return std::ranges::all_of(candidates, [](const PrecisionCandidate& candidate) {
    return !std::isfinite(candidate.points.back().y);
  });
}

}  // namespace

/// Copy of a rank's state. Masks must not change between copy and restore.
class AdaPrec::StateCopy {
 public:
  /// Throws Failure without memory for it.
  explicit StateCopy(sparse::Store& store, Progress progress = {})
      : store_(store), progress_(std::move(progress)) {
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

  /// Restores the store bit for bit; callable any number of times. Not collective.
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
  const Progress& progress() const { return progress_; }

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
    Buffer copy = arena.allocate(Memory::scratch, "state of a trial", tensor.dtype, tensor.shape);
    store_.stream().copy(tensor, copy.tensor());
    kept_.push_back({tensor, std::move(copy)});
  }

  sparse::Store& store_;
  Progress progress_;
  std::vector<Kept> kept_;
};

std::shared_ptr<const void> AdaPrec::plan_copies(const io::Config& config, sparse::Store& store,
                                                 int replicas) {
  auto copies = std::make_shared<std::vector<StateCopy>>();
  if (codec_chooser(config) == CodecChooser::adaprec && replicas > 1) {
    copies->emplace_back(store);
    if (config.train.memory_budget.empty()) {
      copies->emplace_back(store);
    }
  }
  return copies;
}

AdaPrec::AdaPrec(const io::Config& config, parallel::Communicator& comm, sparse::Store& store,
                 Callbacks callbacks, int64_t resumed_step)
    : config_(config),
      codec_(parallel::parse_codec(config.parallel.codec.fallback)),
      comm_(comm),
      store_(store),
      callbacks_(std::move(callbacks)) {
  if (comm_.rank() == 0) {
    const parallel::Busy busy(comm_);
    log_.emplace(std::filesystem::path(config.run.out) / "adaprec.jsonl", resumed_step);
  }
}

bool AdaPrec::due(int64_t step) const {
  const int64_t end = step + codec_.trial;
  const bool masks_change = pruning::may_change(config_.pruning, step, end, config_.train.steps);
  return step % codec_.every == 0 && end < config_.train.steps && !masks_change;
}

PrecisionCandidate AdaPrec::trial(const std::string& codec, int64_t step, double value_now) {
  const double begin = now_seconds();
  callbacks_.use(codec);
  const std::optional<double> bits = bits_of(codec);
  PrecisionCandidate candidate{.name = codec, .bits = bits ? *bits : callbacks_.bits()};
  candidate.points.push_back({.x = static_cast<double>(step) + 1, .y = value_now});
  const int64_t steps = codec_.trial;
  std::vector<double> seconds;
  for (int64_t done = 1; done <= steps; ++done) {
    const double at = now_seconds();
    double value = std::numeric_limits<double>::quiet_NaN();
    bool diverged = false;
    try {
      callbacks_.train(step + done - 1);
    } catch (const Diverged&) {  // on all ranks
      diverged = true;
    }
    seconds.push_back(now_seconds() - at);
    if (callbacks_.stopping()) {
      break;
    }
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
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  candidate.seconds_per_step = *middle;
  candidate.speculation_seconds = now_seconds() - begin;
  return candidate;
}

/// Replaces `leader` by a copy of the present state, if there is memory for it on all ranks.
void AdaPrec::keep(std::unique_ptr<StateCopy>& leader) {
  leader.reset();
  std::array<double, 1> without{0};
  try {
    leader = std::make_unique<StateCopy>(store_, callbacks_.progress());
  } catch (const Failure&) {
    without[0] = 1;
  }
  parallel::all_reduce_small(comm_, without, parallel::Combine::max);
  if (without[0] > 0) {
    keeps_leader_ = false;
    leader.reset();
  }
}

void AdaPrec::restore(StateCopy& copy) {
  copy.restore();
  callbacks_.restore(copy.progress());
}

/// Trains the steps of a trial again; returns their seconds.
double AdaPrec::repeat(const std::string& codec, int64_t step) {
  const double begin = now_seconds();
  callbacks_.use(codec);
  for (int64_t done = 0; done < codec_.trial && !callbacks_.stopping(); ++done) {
    callbacks_.train(step + done);
  }
  return now_seconds() - begin;
}

AdaPrec::Round AdaPrec::round(int64_t step) {
  const Span span(Track::compute, "AdaPrec round");
  const double begin = now_seconds();
  const std::vector<std::string>& codecs = codec_.candidates;
  const auto last = std::ssize(codecs) - 1;
  std::vector<PrecisionCandidate> candidates;
  PrecisionRound round{.value_now = callbacks_.evaluate(),
                       .step_now = step + 1,  // points count from 1: shapes take logarithms of x
                       .phase_steps = std::min(codec_.every, config_.train.steps - step),
                       .trial_steps = codec_.trial};
  PrecisionChoice choice;  // on rank 0
  int64_t leads = -1;      // candidate that leads so far; -1: all have diverged
  int64_t kept = -1;       // candidate whose state `leader` has; -1: none
  StateCopy start(store_, callbacks_.progress());
  std::unique_ptr<StateCopy> leader;
  for (int64_t number = 0; number <= last; ++number) {
    candidates.push_back(trial(codecs[static_cast<size_t>(number)], step, round.value_now));
    if (callbacks_.stopping()) {
      restore(start);
      return {.note = fmt::format("AdaPrec after step {}: stopped, without effect", step)};
    }
    round.candidates = candidates;
    if (comm_.rank() == 0 && (number == last || !all_diverged(candidates))) {
      const parallel::Busy busy(comm_);
      choice = choose_precision(round);
      leads = static_cast<int64_t>(choice.chosen);
    }
    parallel::broadcast(comm_, 0, std::as_writable_bytes(std::span(&leads, 1)));
    if (number < last) {
      if (leads == number && keeps_leader_) {
        keep(leader);
        kept = leader ? number : -1;
      }
      restore(start);
    }
  }
  const bool repeats = leads < last && leads != kept;
  const auto chosen = static_cast<size_t>(leads);
  Round made{.codec = codecs[chosen]};
  if (comm_.rank() == 0) {
    const parallel::Busy busy(comm_);
    log_->write(choice_record(round, choice));
    log_->sync();
    made.note =
        fmt::format("AdaPrec after step {}: {} ({}{})", step, candidates[choice.chosen].name,
                    choice.why, repeats ? "; its state was not kept: repeats its steps" : "");
  }
  double counts = candidates[chosen].seconds_per_step * static_cast<double>(round.trial_steps);
  if (repeats) {
    restore(start);
    leader.reset();
    counts = repeat(codecs[chosen], step);
  } else if (leads < last) {
    restore(*leader);
  }
  seconds_ += now_seconds() - begin - counts;
  return made;
}

}  // namespace espalier::train
