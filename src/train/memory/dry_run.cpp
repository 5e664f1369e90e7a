// plan_stage and plan_memory: replay a run on a dry arena and count the allocations of its parts.
#include <algorithm>
#include <numeric>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/buckets.h"
#include "parallel/reduction/device/reduction.h"
#include "parallel/reduction/registry.h"
#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "pruning/plan.h"
#include "sparse/store/value_copy.h"
#include "src/kernels/rules/wire/codecs.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/exchange/shards.h"
#include "src/train/masks/pruner.h"
#include "src/train/memory/budget.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/stage/part_weights.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

size_t largest(const std::vector<int64_t>& counts) {
  return counts.empty() ? 0 : static_cast<size_t>(*std::ranges::max_element(counts));
}

/// The copies of the state that AdaPrec's trials hold (codec_choice/adaprec.h). Under a budget the
/// second one is made only where there is room.
size_t trial_copies(const io::Config& config) { return config.train.memory_budget.empty() ? 2 : 1; }

/// Bytes of these copies, of the state in one arena. `constant`: weights there that no step
/// changes.
size_t trial_bytes(const io::Config& config, const Arena& arena, size_t constant, int ranks) {
  if (codec_chooser(config) != CodecChooser::adaprec || ranks == 1) {
    return 0;
  }
  size_t bytes = 0;
  for (const Memory kind : {Memory::weight, Memory::master, Memory::moment}) {
    bytes += arena.use(kind).now;
  }
  return trial_copies(config) * (bytes - constant);
}

/// The same for error feedback.
size_t trial_feedback_bytes(const io::Config& config, const Tensor& feedback, int ranks) {
  return codec_chooser(config) == CodecChooser::adaprec && ranks > 1 && feedback
             ? trial_copies(config) * feedback.bytes()
             : 0;
}

/// Of a random mask with as many elements, at most.
size_t index_bytes_in_file(const sparse::Parameter& parameter) {
  return sparse::predicted_bytes(sparse::Encoding::golomb, parameter.size(), parameter.kept(),
                                 parameter.index.shape());
}

/// Exclude patterns apply to the whole network; a stage takes the names that they match.
io::Config config_of_stage(io::Config config, const StageShape& shape) {
  if (!shape.parts.empty()) {
    config.pruning.exclude = shape.exclude;
  }
  return config;
}

using Segments = std::vector<parallel::WireSegment>;

/// `chosen`: the format of parameters whose codec is chosen at run time.
Segments segments_of(const io::Config& config, const Stage& stage,
                     const kernels::WireFormat& chosen) {
  const sparse::Store& store = stage.store();
  Segments segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    segments.push_back({.first = parameter.offset,
                        .count = parameter.kept(),
                        .format = gradient_format(config, stage, parameter).value_or(chosen)});
  }
  return segments;
}

/// Segments that steps may send (CodecChoice::segments). Mixed formats need at most the memory of
/// the widest one for all parameters.
std::vector<Segments> ways_to_send(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  const kernels::WireFormat plain = parallel::plain_format(store.gradient().dtype);
  std::vector<Segments> ways;
  for (const kernels::WireFormat& format : codec_candidates(config, store.gradient().dtype)) {
    ways.push_back(segments_of(config, stage, format));
    if (format == plain &&
        (codec_chooser(config) != CodecChooser::adaprec || times_codecs(config))) {
      // Uncompressed parameters beside encoded ones take another path than a fully uncompressed
      // gradient.
      ways.push_back(ways.back());
      ways.back().push_back(
          {.first = store.flat_size(), .format = {.code = kernels::WireCode::maxmin}});
    }
  }
  if (ways.empty()) {
    ways.push_back(segments_of(config, stage, plain));
  }
  if (config.parallel.reduction == "auto" && has_lossy_gradient_codec(config)) {
    ways.push_back(ways.front());
    for (parallel::WireSegment& segment : ways.back()) {
      segment.format = plain;
    }
  }
  return ways;
}

/// The collectives that sum a step's gradients: slices if the optimizer is sharded, else whole
/// gradients; in an asynchronous schedule one part at a time.
std::vector<parallel::BucketedCollective> gradient_steps(const io::Config& config, Stage& stage,
                                                         const parallel::WireView& wire) {
  sparse::Store& store = stage.store();
  if (const auto* shards = dynamic_cast<Shards*>(store.options().sharding.get())) {
    return {parallel::half_step(store.gradient(), parallel::Phases::scatter, shards->partition(),
                                wire)};
  }
  if (parallel::schedule_entry(config.parallel.schedule).synchronous) {
    return {parallel::all_reduce_step(store.gradient(), stage.boundaries(), bucket_bytes(config),
                                      wire)};
  }
  std::vector<parallel::BucketedCollective> steps;
  for (size_t part = 0; part < stage.parts().size(); ++part) {
    const sparse::ParameterRange range = stage.parameters_of_part(part);
    const auto [first, count] = sparse::flat_range(store, range);
    steps.push_back(parallel::all_reduce_step(store.gradient().elements(first, count),
                                              sparse::flat_ends(store, range), bucket_bytes(config),
                                              {.wire = wire.wire, .first = first}));
  }
  return steps;
}

/// Bytes to gather buckets of encoded values: a buffer for each rank's slice, at most an even share
/// and a block, and the fp32 values of a sent and of a received piece.
size_t gather_bytes(size_t bucket_bytes, DType dtype, size_t in_flight, int ranks) {
  const size_t block = 2 * static_cast<size_t>(kernels::kQuantizeBlock) * size_of(DType::fp32);
  const size_t slices = std::min(parallel::PieceOptions{}.staging_bytes,
                                 bucket_bytes + static_cast<size_t>(ranks) * block);
  return in_flight * (slices + slices / 8) + 2 * parallel::piece_values_bytes(bucket_bytes, dtype);
}

/// Host memory of the reductions of a run: for buckets in flight, for values that are gathered
/// encoded, and for timed reductions (reduction_timer.h). Buffers keep the most that any masks
/// needed.
class PlannedStaging {
 public:
  /// Both must outlive it.
  PlannedStaging(const io::Config& config, Stage& stage, int ranks, int machines)
      : config_(config),
        stage_(stage),
        ranks_(ranks),
        machines_(machines),
        slots_(static_cast<size_t>(parallel::BucketOptions{}.in_flight)) {}

  /// Counts the reductions for the stage's present masks.
  void run() {
    const sparse::Store& store = stage_.store();
    const Tensor gradient = store.gradient();
    if (ranks_ == 1 || !gradient) {
      return;
    }
    const std::string& reduction = config_.parallel.reduction;
    Stream stream(stage_.store().arena(), 1);
    parallel::Wire wire(stage_.kernels(), stream);
    wire.set_feedback(store.feedback());
    std::vector<int64_t> slices;
    size_t piece_values = 0;
    for (Segments& way : ways_to_send(config_, stage_)) {
      wire.set_segments(std::move(way));
      for (const parallel::BucketedCollective& step : gradient_steps(config_, stage_, {&wire})) {
        for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
          const parallel::SliceJob job = step.job(bucket, slices);
          parallel::ReducedArray array = parallel::reduced_array(job, ranks_);
          array.machines = machines_;
          parallel::Workspace& slot = slots_[bucket % slots_.size()];
          const parallel::Workspace needed = parallel::workspace_of(reduction, array, job.phases);
          slot = slot.with(needed);
          piece_values = std::max(piece_values, needed.sums);
          longest_ = std::max(longest_, array.bytes);
          widest_ = std::max(widest_, array.message_share);
        }
      }
    }
    // Of an encoded piece, and of a decoded one.
    const size_t values = 2 * piece_values;
    const bool half = gradient.dtype != DType::fp32;
    const bool encodes =
        widest_ ||
        (reduction != "auto" && find(parallel::reductions(), "reduction", reduction).encodes_plain);
    values_ = std::max(values_, encodes && (half || store.feedback()) ? values : 0);
    if (encodes_values(config_)) {
      gathers_ =
          std::max(gathers_, gather_bytes(longest_, store.value().dtype, slots_.size(), ranks_));
    }
    for (const TimedSum& timing : longest_timed_sums(config_, stage_)) {
      if (timing.code) {  // sends nothing
        continue;
      }
      parallel::Wire timed(stage_.kernels(), stream, one_segment(timing.format, timing.elements));
      parallel::ReducedArray array = parallel::reduced_array(
          {.data = gradient.elements(0, timing.elements), .wire = &timed}, ranks_);
      array.machines = machines_;
      const parallel::Workspace needed = parallel::workspace_of(reduction, array);
      timed_ = std::max(timed_, needed.bytes() + (half ? 2 * needed.sums : 0));
    }
  }

  size_t bytes() const {
    size_t sum = values_ + gathers_ + timed_;
    for (const parallel::Workspace& slot : slots_) {
      sum += slot.bytes();
    }
    return sum;
  }

 private:
  const io::Config& config_;
  Stage& stage_;
  int ranks_, machines_;
  std::vector<parallel::Workspace> slots_;  ///< of buckets in flight
  size_t longest_ = 0;                      ///< bytes of a bucket
  std::optional<double> widest_;            ///< ReducedArray::message_share
  size_t values_ = 0, gathers_ = 0, timed_ = 0;
};

/// Runs the reductions of a step between devices on a dry arena, which counts their buffers. Values
/// that are gathered uncompressed need no buffer. If codecs are chosen at run time, all candidates
/// and timed reductions count; else the plan has the bytes of the run.
class PlannedReductions {
 public:
  /// For replica `rank` of `ranks`. Both must outlive it. Runs the timed reductions.
  PlannedReductions(const io::Config& config, Stage& stage, int rank, int ranks)
      : config_(config),
        stage_(stage),
        stream_(stage.store().arena(), 1),
        link_(rank, ranks, stream_),
        wire_(stage.kernels(), stream_),
        value_wire_(stage.kernels(), stream_),
        reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)) {
    stage.store().move_codecs_to_device();
    run_timed();
  }

  /// Runs the reductions for the stage's present masks.
  void run() {
    if (config_.parallel.error_feedback) {
      wire_.set_feedback(stage_.store().feedback());
    }
    for (Segments& way : ways_to_send(config_, stage_)) {
      wire_.set_segments(std::move(way));
      run_with({.wire = &wire_});
    }
  }

 private:
  void run_timed() {
    if (config_.parallel.error_feedback) {
      wire_.set_feedback(stage_.store().feedback());
    }
    const DeviceTimedReduction::Context context{
        .link = link_, .reduction = reduction_, .wire = wire_, .stage = stage_};
    for (const TimedSum& timing : longest_timed_sums(config_, stage_)) {
      DeviceTimedReduction reduction(context, timing.format, timing.elements);
      timing.code ? reduction.encode_decode() : reduction.reduce();
      reduction.end();
    }
  }

  void run_with(const parallel::WireView& wire) {
    for (const parallel::BucketedCollective& step : gradient_steps(config_, stage_, wire)) {
      run_buckets(step);
    }
    sparse::Store& store = stage_.store();
    const auto* shards = dynamic_cast<Shards*>(store.options().sharding.get());
    if (shards != nullptr && encodes_values(config_)) {
      value_wire_.set_segments(value_segments(config_, store));
      run_buckets(parallel::half_step(store.value(), parallel::Phases::gather, shards->partition(),
                                      {.wire = &value_wire_}));
    }
  }

  void run_buckets(const parallel::BucketedCollective& step) {
    for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
      reduction_.run(step, bucket, "planning");
    }
  }

  const io::Config& config_;
  Stage& stage_;
  Stream stream_;
  parallel::PlannedLink link_;
  parallel::Wire wire_, value_wire_;
  parallel::DeviceReduction reduction_;
};

/// A run on a dry arena, with the peak of its heap.
class DryRun {
 public:
  DryRun(const io::Config& config, const RunShape& run, const StageShape& shape,
         const PassChoice& choice)
      : config_(config_of_stage(config, shape)),
        run_(run),
        pruned_(shape.start.pruned),
        arena_(run.place.device ? Arena(host_, nullptr) : Arena(true)),
        stream_(arena_, run.threads),
        stage_(
            config_, run.problem, stream_,
            run.place.kernels != nullptr ? *run.place.kernels : *kernels::planning("cpu").kernels,
            {.micro_batch = choice.micro_batch,
             .recompute = choice.recompute,
             .dry = true,
             .planned = shape.start.kept,
             .sharding = run.sharding,
             .parts = shape.parts,
             .teacher = run.teacher}),
        specs_(specs_of(stage_.store())),
        kept_(shape.start.kept),
        numbers_(shape.numbers),
        samples_(choice.micro_batch) {
    stream_.set_deterministic(config.run.deterministic);
    if (shape.layout && shape.layout->asynchronous()) {
      weights_ = make_part_weights(config_, *shape.layout, shape.rank, stage_);
    }
    messages_ = bytes_of(arena_, Memory::communication, shape.messages.beside_kernels);
    host_messages_ = bytes_of(arena_.host(), Memory::communication, shape.messages.on_host);
  }

  MemoryPlan run() {
    MemoryPlan plan;
    size_t tapes = 0;
    const std::vector<PassCost> costs = stage_.measure();
    for (size_t i = 0; i < costs.size(); ++i) {
      const PartShape& part = stage_.parts()[i]->shape();
      plan.pass += costs[i];
      tapes += static_cast<size_t>(part.tapes) * costs[i].tape_bytes +
               static_cast<size_t>(part.deferred) * costs[i].deferred_bytes +
               costs[i].teacher_bytes;
    }
    if (on_device()) {
      reductions_.emplace(config_, stage_, run_.replica, run_.ranks);
      reductions_->run();
    }
    const Buffer tape = arena_.allocate(Memory::activation, "tape", DType::uint8,
                                        Shape{static_cast<int64_t>(tapes)});
    const Buffer messages =
        bytes_of(arena_.host(), Memory::communication, messages_of_reductions());
    if (!on_device()) {
      staging_.emplace(config_, stage_, run_.ranks, run_.machines);
      if (!prunes_before_the_first_step()) {
        hold_staging();
      }
    }
    const Tensor feedback = stage_.store().feedback();
    const size_t trial_feedback = trial_feedback_bytes(config_, feedback, run_.ranks);
    const Buffer trial = bytes_of(arena_, Memory::scratch,
                                  trial_bytes(config_, arena_, teacher_weights(), run_.ranks) +
                                      (feedback.on_device ? trial_feedback : 0));
    const Buffer trial_beside =
        bytes_of(arena_.host(), Memory::scratch,
                 (feedback.on_device ? 0 : trial_feedback) +
                     (run_.place.device ? trial_bytes(config_, host_, 0, run_.ranks) : 0));
    const Buffer numbers = bytes_of(arena_, Memory::scratch, moment_numbers());
    plan.start = bytes_now(arena_);
    note_checkpoint(plan);
    hold_copies();
    hold(pruning::history_bytes(config_.pruning, mask_bytes()));
    for (const int64_t step : pruning::pruning_steps(config_.pruning)) {
      if (step > 0 || !pruned_) {
        prune(step);
      }
    }
    if (HostMemory change(*this); pruning::plan_move(config_.pruning, change)) {
      lay_out(std::vector<int64_t>(kept_));
      stage_.measure();
    }
    hold_copies();
    plan.last = bytes_now(arena_);
    note_checkpoint(plan);
    plan.parts = stage_.store().parts();
    plan.teacher = teacher_weights() + teacher_parts().index;
    plan.peak = bytes_at_peak(arena_);
    plan.pinned = bytes_at_peak(host_);
    if (!run_.place.device) {  // device memory holds only the arena
      plan.outside_arena =
          kProgram + (heap_peak_ > sum_of(plan.peak) ? heap_peak_ - sum_of(plan.peak) : 0);
    }
    plan.total_size = stage_.store().total_size();
    plan.total_kept = stage_.store().total_kept();
    return plan;
  }

 private:
  static Buffer bytes_of(Arena& arena, Memory kind, size_t bytes) {
    return arena.allocate(kind, "of a run", DType::uint8, Shape{static_cast<int64_t>(bytes)});
  }

  sparse::StateParts teacher_parts() {
    return stage_.teacher() != nullptr ? stage_.teacher()->store().parts() : sparse::StateParts();
  }
  size_t teacher_weights() { return teacher_parts().value + teacher_parts().copies; }

  /// On a device: fp32 copy of a piece of the 8-bit moments of one parameter.
  size_t moment_numbers() {
    const bool coded = run_.place.device && stage_.store().options().state_bits == 8;
    return coded ? 4 * std::min<size_t>(largest(kept_), sparse::OptimizerArrays::kPiece) : 0;
  }

  bool on_device() const {
    return run_.reduces_on_device && run_.ranks > 1 && device_obstacle(config_).empty();
  }

  /// Host memory for reductions, without their staging. With a device also the copies of the
  /// gradient, and with a sharded optimizer of the values (HostCopy).
  size_t messages_of_reductions() {
    const sparse::Store& store = stage_.store();
    if (on_device()) {  // codecs are chosen on the host
      return codec_chooser(config_) == CodecChooser::adaptive ? store.gradient().bytes() : 0;
    }
    const bool copies = run_.place.device && run_.ranks > 1;
    return (copies ? store.gradient().bytes() : 0) +
           (copies && run_.sharding ? store.value().bytes() : 0);
  }

  /// Notes the shares of the replicas in a checkpoint: each writes every `ranks`-th parameter, and
  /// its error feedback. An index counts as that of a random mask.
  void note_checkpoint(MemoryPlan& plan) {
    const sparse::Store& store = stage_.store();
    const sparse::StoreOptions& options = store.options();
    std::vector<size_t> shares(static_cast<size_t>(run_.ranks));
    size_t feedback = 0;
    for (size_t p = 0; p < specs_.size(); ++p) {
      const sparse::ParameterSpec& spec = specs_[p];
      if (spec.borrowed) {
        continue;
      }
      const auto kept = static_cast<size_t>(kept_[p]);
      const size_t value = size_of(spec.shape.rank() == 1 ? DType::fp32 : options.dtype);
      const sparse::Parameter& parameter = store.parameters()[p];
      const size_t states =
          static_cast<size_t>(1 + options.moments + store.pruning_arrays(parameter)) *
          size_of(DType::fp32);
      const size_t history =
          spec.prunable
              ? static_cast<size_t>(pruning::saved_numbers(config_.pruning)) * size_of(DType::fp32)
              : 0;
      shares[(numbers_.empty() ? p : numbers_[p]) % shares.size()] +=
          kept * (value + states + history) +
          (parameter.full() ? 0 : index_bytes_in_file(parameter));
      feedback += options.feedback ? kept * size_of(DType::fp32) : 0;
    }
    const size_t largest_share = *std::ranges::max_element(shares) + feedback;
    const size_t file = std::accumulate(shares.begin(), shares.end(), feedback * shares.size());
    plan.checkpoint_copy =
        std::max(plan.checkpoint_copy, saves_in_background(config_) ? largest_share : 0);
    plan.checkpoint_file = file;
  }

  /// Heap for copies: four fp32 copies of the kept elements of one parameter (drawn, saved or
  /// loaded); while storages are timed, one parameter with a dense copy and its dense gradient, and
  /// images of a convolution.
  void hold_copies() {
    hold(16 * largest(kept_));
    hold(stage_.teacher() != nullptr ? 16 * largest(run_.teacher->start.kept) : 0);
    if (has_auto_storage(config_, stage_.store())) {
      const auto& spec = std::ranges::max(
          specs_, {}, [](const sparse::ParameterSpec& some) { return some.shape.count(); });
      size_t images = 0;
      for (const sparse::ParameterSpec& some : specs_) {
        images =
            std::max(images, timed_image_bytes(some, samples_, stage_.store().options().dtype));
      }
      hold(20 * largest(kept_) + 9 * static_cast<size_t>(spec.shape.count()) + images);
    }
  }
  void hold(size_t heap) { heap_peak_ = std::max(heap_peak_, arena_.total().now + heap); }

  /// Of a change of masks, with the counts before it.
  class HostMemory final : public pruning::PlannedChange {
   public:
    explicit HostMemory(DryRun& run) : run_(run) {}
    size_t masks() const override { return run_.mask_bytes(); }
    size_t numbers() const override {
      return sizeof(float) * static_cast<size_t>(run_.stage_.store().total_kept());
    }
    size_t largest_numbers() const override { return sizeof(float) * largest(run_.kept_); }
    void hold(size_t bytes) override { run_.hold(bytes); }
    void gradients(sparse::Store::Probed probed, size_t bytes) override {
      run_.measure_probed(probed, bytes);
    }

   private:
    DryRun& run_;
  };

  void prune(int64_t step) {
    const std::vector<int64_t> next = kept_after(config_.pruning, specs_, step, kept_);
    if (next == kept_) {
      return;
    }
    HostMemory change(*this);
    pruning::plan_pruning(config_.pruning, change);
    lay_out(next);
    stage_.measure();
  }

  /// No gradient of the dense network is reduced, and no reduction of one is timed.
  bool prunes_before_the_first_step() {
    const std::vector<int64_t> steps = pruning::pruning_steps(config_.pruning);
    return !pruned_ && !steps.empty() && steps.front() == 0 &&
           kept_after(config_.pruning, specs_, 0, kept_) != kept_ &&
           longest_timed_sums(config_, stage_).empty();
  }

  /// Sums of dense gradients on the host (SampleGradients), and the gradient of one parameter.
  size_t summed_gradients(sparse::Store::Probed probed) const {
    int64_t all = 0;
    int64_t longest = 0;
    for (const sparse::Parameter& parameter : stage_.store().parameters()) {
      const bool shown = parameter.spec.prunable && !parameter.spec.borrowed &&
                         (probed == sparse::Store::Probed::prunable || !parameter.full());
      all += shown ? parameter.size() : 0;
      longest = std::max(longest, shown ? parameter.size() : 0);
    }
    return gradient_sum_bytes(stage_.store().parts(), all, longest) +
           sizeof(float) * static_cast<size_t>(longest) +
           (run_.ranks > 1 ? parallel::kIntegerStaging : 0);
  }

  /// A pass that computes dense gradients of one layer at a time, with `heap` bytes outside the
  /// arena.
  void measure_probed(sparse::Store::Probed probed, size_t heap) {
    stage_.store().set_gradient_probe([](const sparse::Parameter&, const Tensor&) {}, probed);
    stage_.measure();
    hold(heap + summed_gradients(probed));
    stage_.store().set_gradient_probe({});
  }

  /// Bytes of the present and the new masks.
  size_t mask_bytes() { return static_cast<size_t>(stage_.store().total_size()) / 4; }

  void lay_out(std::vector<int64_t> next) {
    const size_t masks = mask_bytes();
    const size_t before = sum_of(bytes_at_peak(arena_));
    stage_.store().plan(next);
    // Positions and elements of one parameter, in both layouts, while the arrays move.
    hold(masks + 16 * largest(kept_));
    const size_t moving = sum_of(bytes_at_peak(arena_));
    if (moving > before) {
      heap_peak_ = std::max(heap_peak_, moving + masks + 16 * largest(kept_));
    }
    kept_ = std::move(next);
    for (PartWeights& weights : weights_) {
      weights.allocate();
    }
    if (reductions_) {
      reductions_->run();
    }
    if (staging_) {
      hold_staging();
    }
  }

  /// Staging grows where the present masks need more.
  void hold_staging() {
    staging_->run();
    if (const size_t bytes = staging_->bytes(); bytes > staged_) {
      staging_buffer_.release();
      staging_buffer_ = bytes_of(arena_.host(), Memory::communication, bytes);
      staged_ = bytes;
    }
  }

  io::Config config_;
  const RunShape& run_;
  bool pruned_;       ///< pruning before the first step is done
  Arena host_{true};  ///< host memory beside a device
  Arena arena_;
  Buffer messages_, host_messages_;
  Stream stream_;
  Stage stage_;
  std::vector<PartWeights> weights_;
  std::optional<PlannedReductions> reductions_;
  std::optional<PlannedStaging> staging_;
  Buffer staging_buffer_;
  size_t staged_ = 0;  ///< bytes of `staging_buffer_`
  std::vector<sparse::ParameterSpec> specs_;
  std::vector<int64_t> kept_;
  std::vector<size_t> numbers_;  ///< of the parameters in the network; empty: all, in order
  int64_t samples_;              ///< of a micro-batch
  size_t heap_peak_ = 0;         ///< largest sum of arena and heap
};

}  // namespace

MemoryPlan plan_stage(const io::Config& config, const RunShape& run, const StageShape& stage,
                      const PassChoice& choice) {
  return DryRun(config, run, stage, choice).run();
}

MemoryPlan plan_memory(const io::Config& config, const RunShape& run, const PassChoice& choice) {
  if (!run.stages) {
    return plan_stage(config, run, {.start = run.start}, choice);
  }
  MemoryPlan largest;
  for (const StageShape& stage : run.stages(share_of(config, run.ranks) / choice.micro_batch)) {
    MemoryPlan plan = plan_stage(config, run, stage, choice);
    if (plan.needed() > largest.needed()) {
      largest = std::move(plan);
    }
  }
  return largest;
}

}  // namespace espalier::train
