#include <algorithm>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/registry.h"
#include "parallel/wire/codec.h"
#include "pruning/plan.h"
#include "pruning/regrowth.h"
#include "sparse/index/registry.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/model/networks/registry.h"
#include "src/optim/prediction.h"
#include "src/optim/registry.h"
#include "src/optim/schedule.h"

namespace espalier::config {
namespace {

using io::Config;
using parallel::parse_codec;

/// Keys of images beside data of another kind.
void validate_image_keys(const io::DataConfig& data) {
  const io::DataConfig defaults;
  const auto unused = [&](bool is_default, std::string_view key, std::string_view fix) {
    check(is_default || data.kind == "images",
          "data.{} is for data.kind = \"images\", and data.kind is \"{}\"; {}", key, data.kind,
          fix);
  };
  constexpr std::string_view kRemove = "remove the key";
  unused(data.format == defaults.format, "format", kRemove);
  unused(data.mean.empty(), "mean", kRemove);
  unused(data.deviation.empty(), "deviation", kRemove);
  unused(data.crop == defaults.crop, "crop", kRemove);
  unused(data.flip == defaults.flip, "flip", kRemove);
  unused(data.order == defaults.order, "order = \"epochs\"",
         "set data.order = \"random\": windows of tokens overlap and have no epochs");
}

void validate_data(const Config& config) {
  const io::DataConfig& data = config.data;
  const model::NetworkKind& network = model::network_of(config.model);
  check(std::ranges::find(network.data_kinds, data.kind) != network.data_kinds.end(),
        "model.kind = \"{}\" cannot learn from data.kind = \"{}\"; set data.kind to one of \"{}\"",
        network.name, data.kind, fmt::join(network.data_kinds, "\", \""));
  check(!data.validation.empty() || data.validation_fraction > 0,
        "data.validation is empty and data.validation_fraction = 0: nothing to evaluate on; name "
        "validation files or set a fraction such as 0.1");
  validate_image_keys(data);
  check(data.kind != "bytes" || config.model.vocabulary == 0 || config.model.vocabulary >= 256,
        "model.vocabulary = {} is too small for data.kind = \"bytes\", which has 256 tokens; set 0",
        config.model.vocabulary);
}

void validate_train(const Config& config) {
  const io::TrainConfig& train = config.train;
  check(train.micro_batch == 0 || train.global_batch % train.micro_batch == 0,
        "train.global_batch = {} is not divisible by train.micro_batch = {}; set a divisor, or 0 "
        "for automatic",
        train.global_batch, train.micro_batch);
  check(train.gradient_dtype == "auto" || train.gradient_dtype == "fp32" ||
            train.gradient_dtype == train.dtype,
        "train.gradient_dtype = \"{}\" beside train.dtype = \"{}\": gradients are fp32 or of that "
        "type; set \"auto\" or \"fp32\"",
        train.gradient_dtype, train.dtype);
  check(train.master_copy || train.dtype != "fp32",
        "train.master_copy = false leaves weights in 16 bits, and train.dtype = \"fp32\" has none; "
        "set train.dtype = \"bf16\", or leave master_copy at true");
  if (!train.memory_budget.empty()) {
    parse_bytes(train.memory_budget);
  }
  check(train.label_smoothing == 0 || train.teacher.empty(),
        "train.label_smoothing = {} smooths the targets, and train.teacher replaces a part of them "
        "by its predictions; set one of them back to its default",
        train.label_smoothing);
}

void validate_optimizer(const io::OptimizerConfig& optimizer) {
  check(!optim::lr_schedule_of(optimizer).to_min_lr || optimizer.lr == io::kAutomatic ||
            optimizer.min_lr <= optimizer.lr,
        "optimizer.min_lr = {} is above optimizer.lr = {}; set a smaller optimizer.min_lr",
        optimizer.min_lr, optimizer.lr);
  check(optimizer.schedule != "step" || !optimizer.decay_at.empty(),
        "optimizer.schedule = \"step\" has no step at which the learning rate falls; write "
        "e.g. \"step:0.1:3000,4500\"");
  check(std::ranges::adjacent_find(optimizer.decay_at, std::greater_equal()) ==
            optimizer.decay_at.end(),
        "optimizer.schedule = \"step\" at {}: the steps must ascend; sort them, each once",
        fmt::join(optimizer.decay_at, ","));
  check(!optimizer.nesterov || optimizer.kind == "sgd",
        "optimizer.nesterov is an option of optimizer.kind = \"sgd\", and the kind is \"{}\"; set "
        "one of them back to its default",
        optimizer.kind);
  check(!optimizer.nesterov || optimizer.momentum > 0,
        "optimizer.nesterov = true looks ahead along the momentum, and optimizer.momentum is 0; "
        "set it, e.g. to 0.9");
}

/// Masks that move start once (at_step) or gradually (from_step), and stay from to_step on.
/// Encodings of N:M groups and of blocks need masks of such groups or blocks.
void validate_index(const Config& config) {
  const bool partly =
      std::ranges::any_of(pruning::regrowths_of(config.pruning, config.train.steps),
                          [](const pruning::Regrowth& regrowth) { return regrowth.sparsity > 0; });
  const sparse::IndexShape shape = pruning::shape_of(config.pruning);
  const auto check_encoding = [&](const std::string& encoding) {
    const sparse::Encoding* entry = find_or_null(sparse::encodings(), encoding);
    const bool regular = entry != nullptr && entry->rules != nullptr;
    const bool made = encoding == sparse::Encoding::nm.name ? shape.n > 0 : shape.height > 0;
    check(!regular || made || !config.pruning.prunes(),
          "sparse.index = \"{0}\" is for the masks of a pruning.method such as \"{0}\", and it is "
          "\"{1}\"; set \"auto\"",
          encoding, config.pruning.method);
    check(encoding != sparse::Encoding::nm.name || !partly,
          "sparse.index = \"{}\" is for N:M masks, and those of pruning.dense_from_step = \"{}\" "
          "are none between two stages; set \"auto\"",
          encoding, config.pruning.dense_from_step);
    return false;
  };
  config.sparse.index.any(check_encoding);
}

bool is_synchronous(const io::ParallelConfig& config) {
  return parallel::schedule_entry(config.schedule).synchronous;
}

void validate_asynchronous(const Config& config) {
  const io::ParallelConfig& parallel = config.parallel;
  const bool predicts = parallel.weight_prediction != "none";
  if (is_synchronous(parallel)) {
    check(!predicts,
          "parallel.weight_prediction = \"{}\" works only with asynchronous stages; set "
          "parallel.schedule = \"async\"",
          parallel.weight_prediction);
    check(parallel.delay_stages == 1,
          "the delays of {} stages on one rank need asynchronous stages; set parallel.schedule = "
          "\"async:{}\"",
          parallel.delay_stages, parallel.delay_stages);
    return;
  }
  check(parallel.delay_stages == 1 || parallel.pipeline == 1,
        "parallel.schedule = \"async:{}\" simulates a pipeline on one rank, and "
        "parallel.pipeline = {}; set parallel.pipeline = 1, or the schedule to \"async\"",
        parallel.delay_stages, parallel.pipeline);
  check(parallel.zero == 0,
        "parallel.schedule = \"async\" updates each stage separately, and ZeRO-1 updates all at "
        "once; set parallel.zero = 0");
  const bool stages = parallel.pipeline != 1 || parallel.delay_stages > 1;
  check(!stages || model::network_of(config.model).tied_parameter(config.model).empty(),
        "parallel.schedule = \"async\" updates the first and the last stage at different times, "
        "and tied embeddings belong to both; set model.tie_embeddings = false");
  const bool needs_momentum = optim::prediction_entry(parallel.weight_prediction).predicts;
  const optim::OptimizerKind& optimizer = optim::optimizer_of(config.optimizer);
  check(!needs_momentum || optimizer.predict != nullptr,
        "parallel.weight_prediction = \"{}\" extrapolates along the optimizer's moments, and the "
        "update of optimizer.kind = \"{}\" is not linear in them; use \"none\", \"stash\" or "
        "\"2bw\"",
        parallel.weight_prediction, optimizer.name);
  check(!needs_momentum || optimizer.has_direction(config.optimizer),
        "parallel.weight_prediction = \"{}\" extrapolates along the momentum, and "
        "optimizer.momentum is 0; set it, e.g. to 0.9, or use \"none\", \"stash\" or \"2bw\"",
        parallel.weight_prediction);
}

void validate_codecs(const io::ParallelConfig& parallel) {
  for (const auto& [glob, value] : parallel.codec.patterns) {
    const parallel::CodecSpec spec = parse_codec(value);
    check(spec.kind() != parallel::CodecKind::choosing,
          "parallel.codec = {{\"{}\" = \"{}\"}}: \"{}\" chooses for all parameters; make it the "
          "default and give patterns for those that are to have another codec",
          glob, value, spec.name);
  }
  using parallel::CodecChooser;
  const parallel::CodecSpec chosen = parse_codec(parallel.codec.fallback);
  const std::string& codec = chosen.name;
  const bool measures_gradients =
      chosen.chooser() == CodecChooser::adaptive || chosen.chooser() == CodecChooser::adaprec;
  check(!measures_gradients || is_synchronous(parallel),
        "parallel.codec = \"{}\" looks at all gradients of a step at once, and with "
        "parallel.schedule = \"async\" stages step by themselves; name a codec, or \"fastest\"",
        codec);
  const bool plain = codec == "fp32" && parallel.codec.uniform() && !parallel.error_feedback;
  const auto* reduction = find_or_null(parallel::reductions(), parallel.reduction);
  const bool takes_codecs = reduction == nullptr || reduction->takes_codecs;  // null: "auto"
  check(plain || takes_codecs,
        "parallel.reduction = \"{0}\" uses the sums of {0}, which support neither codecs nor error "
        "feedback (now parallel.codec = \"{1}\", parallel.error_feedback = {2}); set "
        "parallel.reduction = \"sra\"",
        parallel.reduction, parallel.codec.fallback, parallel.error_feedback);
  const bool other_link = parallel.device_link == "host" || parallel.device_link == "mpi";
  check(parallel.reduction != "nccl" || !other_link,
        "parallel.reduction = \"nccl\" sums from GPU to GPU, and parallel.device_link = \"{}\" "
        "keeps sums with the host; set one of them to \"auto\"",
        parallel.device_link);
}

/// Gradients of several steps can be combined only if they have the same scale.
void validate_loss_scale(const Config& config) {
  if (config.train.dtype != "fp16" || config.train.loss_scale > 0) {
    return;
  }
  constexpr std::string_view kFix = "set train.loss_scale to a number, e.g. 1024";
  const io::ParallelConfig& parallel = config.parallel;
  check(is_synchronous(parallel),
        "train.dtype = \"fp16\" skips steps whose gradients overflow, and the stages of "
        "parallel.schedule = \"async\" cannot skip a step together; {}",
        kFix);
  check(!parallel.error_feedback,
        "train.dtype = \"fp16\" changes the scale of gradients between steps, and "
        "parallel.error_feedback keeps errors of earlier ones; {}",
        kFix);
}

void validate_value_codec(const Config& config) {
  const io::ParallelConfig& parallel = config.parallel;
  const bool plain = parallel.value_codec.fallback == "fp32" && parallel.value_codec.uniform();
  check(plain || parallel.zero == 1,
        "parallel.value_codec = \"{}\" encodes the values that ranks send with a sharded optimizer "
        "state; set parallel.zero = 1, or leave value_codec at \"fp32\"",
        parallel.value_codec.fallback);
  check(plain || config.train.master_copy,
        "parallel.value_codec = \"{}\" encodes differences to the owner's master copy, and "
        "train.master_copy = false keeps none; set one of them back to its default",
        parallel.value_codec.fallback);
}

}  // namespace

void validate(const Config& config) {
  model::network_of(config.model).check(config.model);
  validate_data(config);
  validate_train(config);
  validate_optimizer(config.optimizer);
  pruning::validate(config.pruning, {.steps = config.train.steps,
                                     .half = config.train.dtype != "fp32",
                                     .asynchronous = !is_synchronous(config.parallel)});
  validate_index(config);
  validate_asynchronous(config);
  validate_codecs(config.parallel);
  validate_value_codec(config);
  validate_loss_scale(config);
  check(!config.run.out.empty(), "run.out is empty; name a directory for the run");
}

void check_prunes_in_time(const Config& config) {
  pruning::check_in_time(config.pruning, config.train.steps);
}

}  // namespace espalier::config
