#pragma once
// Which codec each parameter's gradient travels in when the config leaves it to measurement:
//
//   adaptive   maxmin with as many bits, in buckets as small, as each parameter needs. Every `codec_every`
//              steps: what 2 to 8 bits in buckets of 64, 128 and 512 (or `bucket`) would lose of this step's
//              gradients (all replicas' together), then the choice with the fewest bytes, or with
//              codec_goal = "time" the least exposed time on the measured link, whose error is at most
//              codec_budget times that of `bits` (4) bits in their usual buckets everywhere. Until the first
//              choice: that. Errors of parameters are made comparable as codec_error says.
//   fastest    by measured time alone: of fp32, fp8-e5m2, maxmin:4 and table:1 the one whose sum of a
//              parameter's size takes the least time on the links that there are. Measured at the start.
//   adaprec    the one that AdaPrec's rounds have chosen (adaprec.h); before the first, the first candidate
//   any, with reduction = "auto"   not at all where plain sums are measured to be no slower
//
// Times are those of sums as the run's gradients go, through the host or from device to device
// (reduction_timer.h). Biases, norms and small parameters travel as they are (gradient_wire.h). Rank 0
// of the replicas decides, the others are told; a stage of a pipeline decides for itself. Sources:
// parallel/choice/bit_choice.h.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/choice/bit_choice.h"
#include "parallel/choice/break_even.h"
#include "parallel/choice/error_table.h"
#include "src/train/exchange/gradient_timeline.h"
#include "src/train/exchange/gradient_wire.h"
#include "src/train/exchange/reduction_timer.h"

namespace espalier::train {

class CodecChoice {
 public:
  /// Collective over the replicas. All must outlive it. `collectives`: those of gradients. It, and
  /// `prepare`, may write to the gradient.
  CodecChoice(const io::Config& config, Stage& stage, parallel::Communicator& replicas,
              ReplicaCollectives& collectives);

  /// From now on this codec instead of the config's default.
  void use(const std::string& codec);
  /// Of the flat gradient with the present masks.
  std::vector<parallel::WireSegment> segments() const;
  /// Collective, before each step, while gradients have no meaning: measures what is new since the
  /// last one.
  void prepare();
  /// Whether the gradients of this step are to be measured before any is sent.
  bool due(int64_t step) const;
  /// Collective: chooses by this rank's `gradient`, in the host's memory, and those of the others.
  /// `key`: of random rounding.
  void choose(const Tensor& gradient, const GradientTimeline& timeline, uint64_t key);
  /// What was measured and decided since the last call, for people; empty: nothing new.
  std::string news() { return std::exchange(news_, {}); }

  /// What has been chosen, for checkpoints.
  std::string state() const;
  /// Of the same parameters on another rank or in another call.
  void restore(const std::string& state);

 private:
  void measure_link(bool on_device);
  void decide_whether_to_compress();
  parallel::ExchangeTimes times_of(const parallel::ChoiceTable& table, std::span<const size_t> open,
                                   const GradientTimeline& timeline) const;
  std::string describe(const parallel::ChoiceTable& table, const parallel::BitChoice& made) const;

  io::Config config_;  ///< its default codec is the present one
  Stage& stage_;
  parallel::Communicator& replicas_;
  ReductionTimer timer_;
  std::string kind_;                             ///< "adaptive", "fastest", "adaprec", or a codec
  std::vector<kernels::WireFormat> candidates_;  ///< index: choice
  int uniform_ = 0;                              ///< choice of adaptive until the first
  bool compresses_ = true;
  int64_t decided_for_ = 0;            ///< flat elements when that was measured
  std::vector<int> chosen_;            ///< [parameters, in the store's order]
  std::map<int64_t, int> fastest_;     ///< by elements
  std::vector<double> codec_seconds_;  ///< [choices] an element
  cost::Link link_;
  std::string news_;
};

}  // namespace espalier::train
