// A run replayed on a dry arena: what each of its parts will allocate.
#include <algorithm>

#include "parallel/reduction/bucketer.h"
#include "parallel/wire/codec.h"
#include "src/train/exchange/device_transfer.h"
#include "src/train/exchange/gradient_wire.h"
#include "src/train/exchange/low_rank_codec.h"
#include "src/train/exchange/value_wire.h"
#include "src/train/masks/pruner.h"
#include "src/train/memory/budget.h"
#include "src/train/memory/planned_sums.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/stage/part_weights.h"

namespace espalier::train {
namespace {

size_t largest(const std::vector<int64_t>& counts) {
  return counts.empty() ? 0 : static_cast<size_t>(*std::ranges::max_element(counts));
}

size_t longest_bucket_bytes(const io::Config& config, const Stage& stage) {
  const Tensor gradient = stage.store().gradient();
  if (!gradient) {
    return 0;
  }
  const size_t element = size_of(gradient.dtype);
  const auto asked = static_cast<size_t>(config.parallel.bucket_mb * 1024 * 1024);
  const size_t least = asked > 0 ? asked : parallel::usual_bucket_bytes(gradient.bytes());
  int64_t longest = 0;
  int64_t begin = 0;
  for (const int64_t end : parallel::cut_buckets(stage.boundaries(), stage.store().flat_size(),
                                                 static_cast<int64_t>(least / element))) {
    longest = std::max(longest, end - begin);
    begin = end;
  }
  return static_cast<size_t>(longest) * element;
}

/// fp32 values of a piece that is encoded.
size_t piece_values_bytes(size_t array_bytes) {
  return std::min(
      parallel::PieceOptions{}.piece_bytes / size_of(DType::bf16) * size_of(DType::fp32),
      2 * array_bytes);
}

/// Staging of the sum of an array, and fp32 values of the pieces that are encoded.
size_t staging_bytes(const io::Config& config, size_t array_bytes, int ranks) {
  const parallel::PieceOptions pieces;
  const std::string& reduction = config.parallel.reduction;
  const bool coded = loses(config) || reduction != "sra";
  // Times that an element is held: what each rank sent of it; or as given, taken and fetched.
  size_t versions = coded ? 3 : 1;
  if (reduction == "all-to-all") {
    versions = std::max(versions, static_cast<size_t>(ranks));
  }
  size_t bytes = std::min(pieces.staging_bytes, array_bytes * versions);
  if (coded) {
    // What buckets of a codec carry may make a message longer than its elements.
    bytes += bytes / 8 + 2 * piece_values_bytes(array_bytes);
  }
  return reduction == "hierarchical" || reduction == "auto" ? 2 * bytes : bytes;
}

/// Of buckets of values that are gathered in codes: room for each rank's slice, the longest of
/// which is an even share and a block more; and fp32 values of a piece, of what is sent and what is
/// there.
size_t gather_bytes(size_t bucket_bytes, size_t in_flight, int ranks) {
  const size_t block = 2 * static_cast<size_t>(kernels::kQuantizeBlock) * size_of(DType::fp32);
  const size_t slices = std::min(parallel::PieceOptions{}.staging_bytes,
                                 bucket_bytes + static_cast<size_t>(ranks) * block);
  return in_flight * (slices + slices / 8) + 2 * piece_values_bytes(bucket_bytes);
}

/// Of the buckets that are reduced at once, and of the sums that are timed (exchange_timer.h).
size_t staging_of_run(const io::Config& config, const Stage& stage, int ranks) {
  if (ranks == 1) {
    return 0;
  }
  const std::string codec = parallel::parse_codec(config.parallel.codec.fallback).name;
  const bool timed = config.parallel.reduction == "auto" || codec == "fastest" ||
                     (codec == "adaptive" && config.parallel.codec_goal == "time");
  const auto in_flight = static_cast<size_t>(parallel::BucketOptions{}.in_flight);
  const size_t bucket = longest_bucket_bytes(config, stage);
  return in_flight * staging_bytes(config, bucket, ranks) +
         (codes_values(config) ? gather_bytes(bucket, in_flight, ranks) : 0) +
         (timed ? staging_bytes(config, stage.store().gradient().bytes(), ranks) : 0);
}

/// What AdaPrec's trials come back to, of one arena (state_copy.h).
size_t trial_bytes(const io::Config& config, const Arena& arena, int ranks) {
  if (config.parallel.codec.fallback != "adaprec" || ranks == 1) {
    return 0;
  }
  size_t bytes = 0;
  for (const Memory kind : {Memory::weight, Memory::master, Memory::moment}) {
    bytes += arena.use(kind).now;
  }
  return bytes;
}

/// And of what codecs lost.
size_t trial_feedback_bytes(const io::Config& config, const Tensor& feedback, int ranks) {
  return config.parallel.codec.fallback == "adaprec" && ranks > 1 && feedback ? feedback.bytes()
                                                                              : 0;
}

/// Patterns of a config are those of the whole network: a stage may have no parameter that is
/// excluded.
io::Config config_of_stage(io::Config config, const StageShape& shape) {
  if (!shape.parts.empty()) {
    config.pruning.exclude = shape.exclude;
  }
  return config;
}

/// A run on a dry arena, and what its heap holds meanwhile.
class Rehearsal {
 public:
  Rehearsal(const io::Config& config, const RunShape& run, const StageShape& shape,
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
             .parts = shape.parts}),
        specs_(specs_of(stage_.store())),
        kept_(shape.start.kept) {
    stream_.set_deterministic(config.run.deterministic);
    if (shape.layout && shape.layout->asynchronous()) {
      weights_ = make_part_weights(config_, *shape.layout, shape.rank, stage_);
    }
    messages_ = bytes_of(arena_, Memory::communication, shape.messages.beside_kernels);
    host_messages_ = bytes_of(arena_.host(), Memory::communication, shape.messages.on_host);
  }

  MemoryPlan play() {
    MemoryPlan plan;
    size_t tapes = 0;
    const std::vector<PassCost> costs = stage_.measure();
    for (size_t i = 0; i < costs.size(); ++i) {
      const PartShape& part = stage_.parts()[i]->shape();
      plan.pass += costs[i];
      tapes += static_cast<size_t>(part.tapes) * costs[i].tape_bytes +
               static_cast<size_t>(part.waiting) * costs[i].waiting_bytes;
    }
    if (on_device()) {
      sums_.emplace(config_, stage_, run_.replica, run_.ranks);
      sums_->ask();
    }
    const Buffer tape = arena_.allocate(Memory::activation, "tape", DType::uint8,
                                        Shape{static_cast<int64_t>(tapes)});
    const Buffer staging = bytes_of(arena_.host(), Memory::communication, messages_of_sums());
    const Tensor feedback = stage_.store().feedback();
    const size_t trial_feedback = trial_feedback_bytes(config_, feedback, run_.ranks);
    const Buffer trial = bytes_of(
        arena_, Memory::scratch,
        trial_bytes(config_, arena_, run_.ranks) + (feedback.on_device ? trial_feedback : 0));
    const Buffer trial_beside =
        bytes_of(arena_.host(), Memory::scratch,
                 (feedback.on_device ? 0 : trial_feedback) +
                     (run_.place.device ? trial_bytes(config_, host_, run_.ranks) : 0));
    const Buffer numbers = bytes_of(arena_, Memory::scratch, moment_numbers());
    plan.start = bytes_now(arena_);
    hold_copies();
    for (const int64_t step : pruning_steps(config_.pruning)) {
      if (step > 0 || !pruned_) {
        prune(step);
      }
    }
    if (config_.pruning.moving() && config_.pruning.sparsity > 0) {
      move();
    }
    hold_copies();
    plan.last = bytes_now(arena_);
    plan.parts = stage_.store().parts();
    plan.peak = bytes_at_peak(arena_);
    plan.pinned = bytes_at_peak(host_);
    if (!run_.place.device) {  // which holds nothing else
      plan.beside =
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

  /// On a device: 8-bit moments of one parameter, as numbers.
  size_t moment_numbers() {
    const bool coded = run_.place.device && stage_.store().options().state_bits == 8;
    return coded ? 4 * largest(kept_) : 0;
  }

  bool on_device() const {
    return run_.sums_on_device && run_.ranks > 1 && host_reason(config_).empty();
  }

  /// On the host: what sums there stage, and on a device its side of the gradient, and of values
  /// with a shared optimizer (host_copy.h).
  size_t messages_of_sums() {
    const sparse::Store& store = stage_.store();
    if (on_device()) {  // codecs that are chosen are chosen there
      const std::string codec = parallel::parse_codec(config_.parallel.codec.fallback).name;
      return codec == "adaptive" ? store.gradient().bytes() : 0;
    }
    const bool copies = run_.place.device && run_.ranks > 1;
    return staging_of_run(config_, stage_, run_.ranks) + low_rank_bytes(config_, store) +
           (copies ? store.gradient().bytes() : 0) +
           (copies && run_.sharding ? store.value().bytes() : 0);
  }

  /// While one parameter is drawn, saved or loaded, four fp32 copies of its kept elements; while
  /// storages are timed, one parameter with a dense copy and its dense gradient.
  void hold_copies() {
    hold(16 * largest(kept_));
    if (has_auto_storage(config_, stage_.store())) {
      const auto& spec = std::ranges::max(
          specs_, {}, [](const sparse::ParameterSpec& some) { return some.shape.count(); });
      hold(20 * largest(kept_) + 9 * static_cast<size_t>(spec.shape.count()));
    }
  }
  void hold(size_t heap) { heap_peak_ = std::max(heap_peak_, arena_.total().now + heap); }

  void prune(int64_t step) {
    const std::vector<int64_t> next = kept_after(config_.pruning, specs_, step, kept_);
    if (next == kept_) {
      return;
    }
    const bool reads =
        config_.pruning.method != "file" &&
        (config_.pruning.moving() || pruning::method_by_name(config_.pruning.method).needs_values);
    hold(mask_bytes() + (reads ? 4 * static_cast<size_t>(stage_.store().total_kept()) : 0));
    lay_out(next);
    stage_.measure();
  }

  /// Masks move: as many elements, in other places; to grow by gradient takes that of one layer.
  void move() {
    hold(mask_bytes() + 4 * largest(kept_));
    if (config_.pruning.method == "rigl") {
      stage_.store().set_gradient_probe([](const sparse::Parameter&, const Tensor&) {});
      stage_.measure();
      hold(mask_bytes());
      stage_.store().set_gradient_probe({});
    }
    lay_out(std::vector<int64_t>(kept_));
    stage_.measure();
  }

  /// Of the present and the new masks.
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
    if (sums_) {
      sums_->ask();
    }
  }

  io::Config config_;
  const RunShape& run_;
  bool pruned_;       ///< before the first step
  Arena host_{true};  ///< beside a device
  Arena arena_;
  Buffer messages_, host_messages_;
  Stream stream_;
  Stage stage_;
  std::vector<PartWeights> weights_;
  std::optional<PlannedSums> sums_;
  std::vector<sparse::ParameterSpec> specs_;
  std::vector<int64_t> kept_;
  size_t heap_peak_ = 0;  ///< largest sum of arena and heap
};

}  // namespace

MemoryPlan plan_stage(const io::Config& config, const RunShape& run, const StageShape& stage,
                      const PassChoice& choice) {
  return Rehearsal(config, run, stage, choice).play();
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
