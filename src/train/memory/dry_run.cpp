// plan_stage and plan_memory: run the code of a run that allocates, on a dry arena.
#include <algorithm>
#include <numeric>

#include "pruning/plan.h"
#include "pruning/regrowth.h"
#include "src/train/codec_choice/adaprec.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/pipeline_reduction.h"
#include "src/train/exchange/replica_route.h"
#include "src/train/exchange/step_collectives.h"
#include "src/train/masks/pruner.h"
#include "src/train/masks/saved_layout.h"
#include "src/train/memory/budget.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/stage/part_weights.h"

namespace espalier::train {
namespace {

/// Exclude patterns apply to the whole network; a stage takes the names that they match.
io::Config config_of_stage(io::Config config, const StageShape& shape) {
  if (!shape.parts.empty()) {
    config.pruning.exclude = shape.exclude;
  }
  return config;
}

/// A run on a dry arena.
class DryRun {
 public:
  DryRun(const io::Config& config, const RunShape& run, const StageShape& shape,
         const PassChoice& choice)
      : config_(config_of_stage(config, shape)),
        run_(run),
        pruned_(shape.start.pruned),
        on_device_(run.reduces_on_device && device_obstacle(config_).empty()),
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
        tied_(PipelineReduction::allocate_share(stage_)),
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
      plan.pass += costs[i];
      tapes += stage_.parts()[i]->tape_bytes(costs[i]);
    }
    plan_collectives();
    sparse::Store& store = stage_.store();
    const Buffer tape = bytes_of(arena_, Memory::activation, tapes);
    plan_state_copies();
    if (!prunes_before_the_first_step()) {
      plan_choice(config_, stage_, run_.ranks);
    }
    plan.start = bytes_now(arena_);
    note_checkpoint(plan);
    plan_copies();
    plan_storage_choice(plan);
    pruning::plan_history(config_.pruning, store);
    for (const int64_t step : pruning::pruning_steps(config_.pruning)) {
      if (step > 0 || !pruned_) {
        prune(step);
      }
    }
    plan_storage_choice(plan);
    if (pruning::plan_move(config_.pruning, store, gradients())) {
      lay_out(std::vector<int64_t>(kept_));
    }
    for (const pruning::Regrowth& regrowth :
         pruning::regrowths_of(config_.pruning, config_.train.steps)) {
      grow(regrowth);
    }
    plan_copies();
    plan.last = bytes_now(arena_);
    note_checkpoint(plan);
    plan.parts = store.parts();
    if (Teacher* teacher = stage_.teacher(); teacher != nullptr) {
      const sparse::StateParts parts = teacher->store().parts();
      plan.teacher = parts.value + parts.copies + parts.index;
    }
    plan.peak = bytes_at_peak(arena_);
    plan.pinned = bytes_at_peak(host_);
    if (!run_.place.device) {  // device memory holds only the arena
      plan.outside_arena = kProgram + arena_.peak_with_heap() - sum_of(plan.peak);
    }
    plan.total_size = store.total_size();
    plan.total_kept = store.total_kept();
    return plan;
  }

 private:
  static Buffer bytes_of(Arena& arena, Memory kind, size_t bytes) {
    return arena.allocate(kind, "of a run", DType::uint8, Shape{static_cast<int64_t>(bytes)});
  }

  void plan_collectives() {
    if (run_.ranks == 1) {
      return;
    }
    collectives_ = on_device_ ? plan_on_device(config_, stage_, run_.replica, run_.ranks)
                              : plan_through_host(config_, stage_, run_.ranks, run_.places);
    if (on_device_ || !prunes_before_the_first_step()) {
      run_collectives();
    }
  }

  void run_collectives() {
    if (collectives_) {
      collectives_->run(possible_segments(config_, stage_),
                        longest_timed_sums(config_, stage_, on_device_));
    }
  }

  /// Of AdaPrec's trials, and of moments on their way to the host.
  void plan_state_copies() {
    trials_ = AdaPrec::plan_copies(config_, stage_.store(), run_.ranks);
    moments_ = stage_.store().plan_moment_copy();
  }

  void note_checkpoint(MemoryPlan& plan) {
    const std::vector<size_t> shares =
        saved_bytes(stage_.store(), numbers_, run_.ranks, pruning::keeps_history(config_.pruning));
    if (saves_in_background(config_)) {
      plan.checkpoint_copy = std::max(plan.checkpoint_copy, *std::ranges::max_element(shares));
    }
    plan.checkpoint_file = std::accumulate(shares.begin(), shares.end(), size_t{0});
  }

  /// Parameters are drawn or loaded, and saved.
  void plan_copies() {
    stage_.store().plan_copies();
    if (Teacher* teacher = stage_.teacher(); teacher != nullptr) {
      teacher->store().plan_copies();
    }
  }

  /// At the start. Its trials have the masks of the start, or the density that pruning reaches.
  void plan_storage_choice(const MemoryPlan& plan) {
    if (!run_.place.device) {
      const StorageChoiceInput input{.config = config_,
                                     .store = stage_.store(),
                                     .prunable = prunable_of(specs_, config_.pruning),
                                     .samples = samples_,
                                     .rows = samples_ * run_.problem.rows};
      arena_.note_heap(plan_timings(input, run_.threads, stage_.kernels()), sum_of(plan.start));
    }
  }

  void prune(int64_t step) {
    std::vector<int64_t> next = kept_after(config_.pruning, specs_, step, kept_);
    if (next != kept_) {
      pruning::plan_pruning(config_.pruning, stage_.store(), gradients());
      lay_out(std::move(next));
    }
  }

  void grow(const pruning::Regrowth& regrowth) {
    sparse::Store& store = stage_.store();
    const std::vector<bool> prunable = prunable_of(specs_, config_.pruning);
    std::vector<int64_t> next = kept_;
    for (size_t p = 0; p < next.size(); ++p) {
      next[p] =
          prunable[p] ? pruning::kept_after(regrowth, specs_[p].shape.count(), kept_[p]) : kept_[p];
    }
    if (next != kept_) {
      store.arena().note_heap(store.mask_bytes() +
                              pruning::regrowth_bytes(regrowth, store.parameters()));
      trials_.reset();
      lay_out(std::move(next));
      moments_.release();
      plan_state_copies();
    }
  }

  /// No gradient of the dense network is reduced, and no reduction of one is timed.
  bool prunes_before_the_first_step() {
    const std::vector<int64_t> steps = pruning::pruning_steps(config_.pruning);
    return !pruned_ && !steps.empty() && steps.front() == 0 &&
           kept_after(config_.pruning, specs_, 0, kept_) != kept_ &&
           longest_timed_sums(config_, stage_, on_device_).empty();
  }

  /// Passes that compute dense gradients of one layer at a time.
  pruning::PlannedGradients gradients() {
    return [this](sparse::Store::Probed probed, size_t heap) {
      sparse::Store& store = stage_.store();
      store.set_gradient_probe([](const sparse::Parameter&, const Tensor&) {}, probed);
      stage_.measure();
      arena_.note_heap(heap + sample_gradient_bytes(store, probed, run_.ranks));
      store.set_gradient_probe({});
    };
  }

  void lay_out(std::vector<int64_t> next) {
    stage_.store().plan(next);
    kept_ = std::move(next);
    for (PartWeights& weights : weights_) {
      weights.allocate();
    }
    run_collectives();
    plan_choice(config_, stage_, run_.ranks);
    stage_.measure();
  }

  io::Config config_;
  const RunShape& run_;
  bool pruned_;       ///< pruning before the first step is done
  bool on_device_;    ///< gradients are reduced there
  Arena host_{true};  ///< host memory beside a device
  Arena arena_;
  Buffer messages_, host_messages_;
  Stream stream_;
  Stage stage_;
  Buffer tied_;  ///< the other stage's share of tied embeddings
  std::vector<PartWeights> weights_;
  std::unique_ptr<PlannedCollectives> collectives_;
  std::shared_ptr<const void> trials_;
  Buffer moments_;
  std::vector<sparse::ParameterSpec> specs_;
  std::vector<int64_t> kept_;
  std::vector<size_t> numbers_;  ///< of the parameters in the network; empty: all, in order
  int64_t samples_;              ///< of a micro-batch
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
