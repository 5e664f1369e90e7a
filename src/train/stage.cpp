#include "src/train/stage.h"

#include <algorithm>

#include "src/core/rng.h"
#include "src/model/gpt.h"
#include "src/model/mlp.h"

namespace espalier::train {

sparse::StoreOptions store_options(const io::Config& config, bool training) {
  auto encoding = [index = config.sparse.index](const std::string& name) {
    const std::string& wanted = index.for_name(name);
    return wanted == "auto" ? std::nullopt : std::optional(sparse::encoding_by_name(wanted));
  };
  sparse::IndexShape groups;
  if (config.pruning.method == "nm") {
    groups.n = static_cast<int>(config.pruning.n);
    groups.m = static_cast<int>(config.pruning.m);
  }
  if (config.pruning.method == "block") {
    groups.height = groups.width = config.pruning.block;
  }
  const DType dtype = dtype_by_name(config.train.dtype);
  return {.dtype = dtype,
          .gradient = config.train.gradient_dtype == "auto"
                          ? dtype
                          : dtype_by_name(config.train.gradient_dtype),
          .training = training,
          .moments = optim::moments_of(config.optimizer),
          .state_bits = static_cast<int>(config.optimizer.state_bits),
          .encoding = encoding,
          .index_shape = groups,
          .block = {.edge = config.sparse.block > 0 ? config.sparse.block : config.pruning.block,
                    .exact = config.sparse.block > 0},
          .file_index = config.sparse.file_index,
          .storage =
              [storage = config.sparse.storage, training](const std::string& name) {
                const std::string& wanted = storage.for_name(name);
                // "auto" is settled by timing (storage_choice.h); until then:
                const auto before = training ? sparse::Storage::sparse : sparse::Storage::dense;
                return wanted == "auto" ? before : sparse::storage_by_name(wanted);
              },
          .sharding = {}};
}

ProblemShape problem_of(const Source& source) {
  return {.classes = source.classes(),
          .features = source.features(),
          .rows = source.rows(),
          .input_dtype = source.input_dtype()};
}

model::Network make_network(const io::Config& config, const ProblemShape& problem) {
  const bool tokens = problem.input_dtype == DType::int32;
  if (config.model.kind == "gpt") {
    check(tokens,
          "model.kind = \"gpt\" reads tokens, but data.kind = \"{}\": use bytes, chars or tokens",
          config.data.kind);
    return model::Network(model::make_gpt({.layers = config.model.layers,
                                           .heads = config.model.heads,
                                           .width = config.model.width,
                                           .context = config.model.context,
                                           .vocabulary = problem.classes,
                                           .mlp_ratio = config.model.mlp_ratio,
                                           .tie_embeddings = config.model.tie_embeddings}));
  }
  check(!tokens, "model.kind = \"mlp\" classifies images, but data.kind = \"{}\": use images",
        config.data.kind);
  return model::Network(model::make_mlp(
      {.features = problem.features, .hidden = config.model.hidden, .classes = problem.classes}));
}

Stage::Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
             const kernels::Kernels& kernels, const Options& options)
    : problem_(problem),
      stream_(stream),
      kernels_(kernels),
      network_(make_network(config, problem)),
      store_(make_store(config, options)),
      optimizer_(*store_, kernels, config.optimizer),
      dtype_(dtype_by_name(config.train.dtype)),
      dropout_(static_cast<float>(config.model.dropout)),
      recompute_(options.recompute),
      seed_(static_cast<uint64_t>(config.train.seed)),
      training_(options.training) {
  network_.bind(*store_, kernels);
  size_t first = 0;
  for (const auto& layer : network_.layers()) {
    first_parameter_.push_back(first);
    first += layer->parameters().size();
  }
  if (!options.dry) {
    cost_ = measure_pass(config, problem, options);
  }
  allocate_buffers(options);
}

std::unique_ptr<sparse::Store> Stage::make_store(const io::Config& config, const Options& options) {
  sparse::StoreOptions wanted = store_options(config, options.training);
  wanted.start = options.masks;
  wanted.planned = options.planned;
  wanted.sharding = options.sharding;
  return std::make_unique<sparse::Store>(stream_, kernels_, network_.parameters(), wanted);
}

void Stage::allocate_buffers(const Options& options) {
  auto allocate = [&](std::string_view name, DType dtype, const Shape& shape) {
    return stream_.arena().allocate(Memory::activation, name, dtype, shape);
  };
  const int64_t samples = options.micro_batch;
  inputs_ = allocate("inputs", problem_.input_dtype, Shape{samples, problem_.features});
  targets_ = allocate("targets", DType::int32, Shape{samples * problem_.rows});
  losses_ = allocate("losses", DType::fp32, Shape{samples * problem_.rows});
  tape_ = std::make_unique<model::Tape>(stream_.arena(), cost_.tape_bytes, options.dry);
}

Tensor Stage::inputs(int64_t samples) const {
  return Tensor(inputs_.tensor().data, problem_.input_dtype, Shape{samples, problem_.features});
}

Tensor Stage::targets(int64_t samples) const {
  return Tensor(targets_.tensor().data, DType::int32, Shape{samples * problem_.rows});
}

model::Pass Stage::make_pass(model::Tape& tape, int64_t samples, bool training) const {
  tape.clear();
  return {.stream = stream_,
          .kernels = kernels_,
          .tape = tape,
          .dtype = dtype_,
          .inputs = inputs(samples),
          .targets = targets(samples),
          .losses = Tensor(losses_.tensor().data, DType::fp32, Shape{samples * problem_.rows}),
          .training = training,
          .recompute = recompute_,
          .dropout = training ? dropout_ : 0};
}

double Stage::sum_losses(int64_t samples) const {
  double sum = 0;
  if (!stream_.arena().dry()) {
    for (const float loss :
         losses_.tensor().span<float>().first(static_cast<size_t>(samples * problem_.rows))) {
      sum += static_cast<double>(loss);
    }
  }
  return sum;
}

double Stage::forward_backward(const MicroBatch& batch, const std::function<void(int64_t)>& done) {
  model::Pass pass = make_pass(*tape_, batch.samples, true);
  pass.accumulate = batch.accumulate;
  pass.loss_scale = static_cast<float>(batch.loss_scale);
  pass.dropout_key = mix(seed_, static_cast<uint64_t>(batch.step));
  pass.first_sequence = batch.first_sample;
  network_.forward(pass);
  network_.backward(pass, [&](size_t layer) {
    if (done) {
      done(end_of_layer(layer));
    }
  });
  return sum_losses(batch.samples);
}

double Stage::evaluate(int64_t samples) {
  model::Pass pass = make_pass(*tape_, samples, false);
  network_.forward(pass);
  return sum_losses(samples);
}

Tensor Stage::logits(int64_t samples, int64_t first, int64_t rows) {
  model::Pass pass = make_pass(*tape_, samples, false);
  return network_.logits(pass, first, rows);
}

Tensor Stage::predict(std::span<const int32_t> tokens) {
  constexpr int64_t kStep =
      16;  // widths of passes: few different ones for kernels that are set up by shape
  const auto count = static_cast<int64_t>(tokens.size());
  require(count >= 1 && count <= problem_.features, "a sequence fits the context", count,
          problem_.features);
  const int64_t width = std::min((count + kStep - 1) / kStep * kStep, problem_.features);
  model::Pass pass = make_pass(*tape_, 1, false);
  pass.inputs = Tensor(inputs_.tensor().data, DType::int32, Shape{1, width});
  const auto inputs = pass.inputs.span<int32_t>();
  std::ranges::fill(inputs, 0);  // behind the tokens: attention is causal, they are not seen
  std::ranges::copy(tokens, inputs.begin());
  return network_.logits(pass, count - 1, 1);
}

/// Flat offsets fall with the layer, so a layer's part ends where that of the layer before it
/// begins.
int64_t Stage::end_of_layer(size_t layer) const {
  const size_t first = first_parameter_[layer];
  return first == 0 ? store_->flat_size() : store_->parameters()[first - 1].offset;
}

std::vector<int64_t> Stage::boundaries() const {
  std::vector<int64_t> ends;
  for (size_t layer = network_.layers().size(); layer-- > 0;) {
    ends.push_back(end_of_layer(layer));
  }
  return ends;
}

PassCost Stage::measure() {
  require(stream_.arena().dry(), "only a dry stage measures itself");
  kernels::dry_count() = {};
  const auto samples = inputs_.tensor().shape[0];
  if (training_) {
    forward_backward({.samples = samples});
  } else {
    evaluate(samples);
    logits(samples, 0, 1);
  }
  const kernels::DryCount counted = kernels::dry_count();
  return {.tape_bytes = tape_->high_water(),
          .flops = counted.flops,
          .bytes = counted.bytes,
          .activations = tape_->peak_by_name()};
}

PassCost measure_pass(const io::Config& config, const ProblemShape& problem,
                      const Stage::Options& options) {
  Arena arena(true);
  Stream stream(arena, 1);
  Stage stage(config, problem, stream, kernels::by_name("dry"),
              {.micro_batch = options.micro_batch,
               .training = options.training,
               .recompute = options.recompute,
               .dry = true});
  return stage.measure();
}

}  // namespace espalier::train
