#pragma once
// Chooses the codec of each parameter's gradient by measurement, if the config requests it:
//
//   adaptive   maxmin with a bit width and bucket size per parameter, chosen every EVERY steps
//              (CodecSpec::every). Candidates: 2 to 8 bits in buckets of 64, 128 and 512; each
//              encodes up to 4 blocks of 16,384 gradient values per parameter, on every replica.
//              The choice sends the fewest bytes, or in adaptive-time has the least exposed time on
//              the measured link, while its error is at most CodecSpec::error times that of
//              maxmin:4 for all parameters. That uniform codec is used until the first choice.
//   fastest    by measured time alone: the fastest sum of a parameter's size on the present links,
//              of fp32, fp8-e5m2, maxmin:4 and table:1. Measured at the start.
//   adaprec    chosen by AdaPrec's rounds (adaprec.h), also from "fastest"; before the first round,
//              the first candidate
//   any, with reduction = "auto"   uncompressed if plain sums are measured to be no slower
//
// Timed sums take the route of the run's gradients: through the host or between devices
// (reduction_timer.h). Biases, norms and small parameters are sent uncompressed
// (stage/wire_formats.h). Rank 0 of the replicas decides and broadcasts; each stage of a pipeline
// decides for itself. Sources: parallel/choice/bit_choice.h.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/choice/bit_choice.h"
#include "parallel/choice/break_even.h"
#include "parallel/choice/error_table.h"
#include "src/train/exchange/gradient_timeline.h"
#include "src/train/exchange/reduction_timer.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {

/// The candidates of a measured choice; empty if the config's default names a codec. `gradient`:
/// type of gradients, which uncompressed gradients keep.
std::vector<kernels::WireFormat> codec_candidates(const io::Config& config, DType gradient);
/// Whether the fastest codec of each size is measured: "fastest", or a candidate of adaprec.
bool times_codecs(const io::Config& config);
/// Whether the choice times the link.
bool times_link(const io::Config& config);
/// For plans: the longest timings of a run, which may be longer than the gradient through the host.
std::vector<TimedSum> longest_timed_sums(const io::Config& config, const Stage& stage,
                                         bool on_device);
/// For plans: wire segments that steps may have (CodecChoice::segments). Mixed formats need at most
/// the memory of the widest one for all parameters.
std::vector<WireSegments> possible_segments(const io::Config& config, const Stage& stage);

/// For plans: the scratch of `CodecChoice::choose`, on the dry arena of a stage.
void plan_choice(const io::Config& config, Stage& stage, int replicas);

class CodecChoice {
 public:
  /// Collective over the replicas. All arguments must outlive it. The constructor and `prepare`
  /// overwrite the gradient.
  CodecChoice(const io::Config& config, Stage& stage, parallel::Communicator& replicas,
              ReplicaRoute& route);

  /// Replaces the config's default codec by `codec` from now on.
  void use(const std::string& codec);
  /// Wire segments of the flat gradient with the present masks.
  std::vector<parallel::WireSegment> segments() const;
  /// Collective. Times the codecs and reductions that changed since the last call. Call it before
  /// each step: it overwrites the gradient.
  void prepare();
  /// Whether `choose` must measure the gradients of this step before any is sent.
  bool due(int64_t step) const;
  /// Collective: chooses by this rank's `gradient` (in host memory) and those of the other
  /// replicas. `key`: of stochastic rounding.
  void choose(const Tensor& gradient, const GradientTimeline& timeline, uint64_t key);
  /// Measurements and decisions since the last call, for the user; empty: none.
  std::string take_notes() { return std::exchange(notes_, {}); }

  /// Mean bits of a value of this stage's gradient on the wire.
  double bits() const;

  /// The current choice, for checkpoints: the codec of adaprec; `NAME=CODEC;` of each parameter
  /// whose codec was chosen, after the codec of adaprec and `;`; with reduction = "auto"
  /// `NAME?=yes:N;` or `no:N`: whether the stage that begins with NAME encodes gradients, decided
  /// when they had N elements. NAME of a borrowed parameter ends with *.
  std::string state() const;
  /// Restores a choice for the same parameters, saved by any rank. `timed`: also what was chosen by
  /// time alone, which is then not timed again for the present masks.
  void restore(const std::string& state, bool timed);

 private:
  void measure_link(bool on_device);
  void decide_whether_to_compress();
  parallel::ExchangeTimes times_of(const parallel::ChoiceTable& table, std::span<const size_t> open,
                                   const GradientTimeline& timeline) const;
  std::string describe(const parallel::ChoiceTable& table, const parallel::BitChoice& made) const;
  io::Config config_;              ///< its default codec is the current one
  parallel::CodecSpec requested_;  ///< the default codec of the run's config
  Stage& stage_;
  parallel::Communicator& replicas_;
  ReductionTimer timer_;
  CodecChooser chooser_;
  std::vector<kernels::WireFormat> candidates_;  ///< index: choice
  std::vector<size_t> timed_;                    ///< of candidates_: those of "fastest"
  int uniform_ = 0;  ///< index of the candidate that adaptive uses until its first choice
  bool compresses_ = true;
  int64_t decided_for_ = 0;  ///< number of flat elements at the last measurement of `compresses_`
  std::vector<int> chosen_;  ///< [parameters, in the store's order]
  std::map<int64_t, int> fastest_;     ///< candidate by number of elements
  std::vector<double> codec_seconds_;  ///< [choices] seconds per element
  cost::Link link_;
  std::string notes_;
};

}  // namespace espalier::train
