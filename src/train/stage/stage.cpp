#include "src/train/stage/stage.h"

#include <algorithm>
#include <iterator>

#include "src/train/stage/store_options.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {

DType gradient_type(const io::Config& config, int64_t summands) {
  const std::string& wanted = config.train.gradient_dtype;
  return wanted != "auto" ? dtype_by_name(wanted)
         : summands > 1   ? DType::fp32
                          : dtype_by_name(config.train.dtype);
}

std::vector<size_t> parameters_of(std::span<const std::unique_ptr<model::Layer>> layers,
                                  std::span<const PartShape> parts, bool with_borrowed) {
  std::vector<std::string> names;
  std::vector<size_t> firsts;
  for (const auto& layer : layers) {
    firsts.push_back(names.size());
    for (const sparse::ParameterSpec& spec : layer->parameters()) {
      names.push_back(spec.name);
    }
  }
  firsts.push_back(names.size());
  std::vector<size_t> numbers;
  std::vector<size_t> borrowed;
  for (const PartShape& part : parts) {
    for (size_t i = part.first; i < part.end; ++i) {
      for (size_t number = firsts[i]; number < firsts[i + 1]; ++number) {
        numbers.push_back(number);
      }
      for (const sparse::ParameterSpec& spec : layers[i]->borrowed()) {
        borrowed.push_back(
            static_cast<size_t>(std::ranges::find(names, spec.name) - names.begin()));
      }
    }
  }
  std::erase_if(borrowed, [&numbers](size_t number) {
    return std::ranges::find(numbers, number) != numbers.end();
  });
  if (with_borrowed) {
    numbers.insert(numbers.begin(), borrowed.begin(), borrowed.end());
  }
  return numbers;
}

namespace {

/// The specs of a stage's parameters in the order of its store, borrowed ones first and marked.
std::vector<sparse::ParameterSpec> specs_of(std::span<const std::unique_ptr<model::Layer>> layers,
                                            std::span<const PartShape> parts) {
  const std::vector<sparse::ParameterSpec> network = model::parameters_of(layers);
  const std::vector<size_t> numbers = parameters_of(layers, parts);
  size_t borrowed = numbers.size();
  for (const PartShape& part : parts) {
    for (size_t i = part.first; i < part.end; ++i) {
      borrowed -= layers[i]->parameters().size();
    }
  }
  std::vector<sparse::ParameterSpec> specs;
  for (const size_t number : numbers) {
    specs.push_back(network[number]);
    specs.back().borrowed = specs.size() <= borrowed;
  }
  return specs;
}

}  // namespace

Stage::Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
             const kernels::Kernels& kernels, const Options& options)
    : Stage(config, problem, stream, kernels, options, model::make_layers(config.model, problem)) {}

Stage::Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
             const kernels::Kernels& kernels, const Options& options, Layers layers)
    : problem_(problem),
      stream_(stream),
      kernels_(kernels),
      shapes_(options.parts.empty() ? std::vector{PartShape{.first = 0, .end = layers.size()}}
                                    : options.parts),
      tied_parameter_((shapes_.front().first == 0) != (shapes_.back().end == layers.size())
                          ? model::network_of(config.model).tied_parameter(config.model)
                          : ""),
      store_(make_store(config, options, layers)),
      teacher_(
          options.teacher != nullptr && options.training && shapes_.back().end == layers.size()
              ? std::make_unique<Teacher>(*options.teacher, config, stream, kernels, options.dry)
              : nullptr),
      parts_(make_parts(config, options, std::move(layers))),
      optimizer_(*store_, kernels, config.optimizer, static_cast<uint64_t>(config.train.seed),
                 optim::Parametrization(config)) {
  std::vector<PassCost> costs(parts_.size());
  if (!options.dry) {
    costs = measure_pass(config, problem, options, stream.arena().on_device());
  }
  const auto all = store_->parameters();
  auto first = static_cast<size_t>(std::ranges::count_if(
      all, [](const sparse::Parameter& parameter) { return parameter.spec.borrowed; }));
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i]->bind(*store_);
    auto& firsts = first_parameter_.emplace_back();
    for (const auto& layer : parts_[i]->network().layers()) {
      firsts.push_back(first);
      first += layer->parameters().size();
    }
    parts_[i]->allocate(costs[i]);
    cost_ += costs[i];
  }
}

std::unique_ptr<sparse::Store> Stage::make_store(const io::Config& config, const Options& options,
                                                 const Layers& layers) const {
  sparse::StoreOptions wanted = store_options(config, options.training, options.generation);
  wanted.gradient = gradient_type(config, config.train.global_batch / options.micro_batch);
  wanted.start = options.masks;
  wanted.planned = options.planned;
  wanted.sharding = options.sharding;
  wanted.separate_master = [config, tied = tied_parameter_](const sparse::ParameterSpec& spec) {
    return spec.name != tied && value_format(config, spec).has_value();
  };
  return std::make_unique<sparse::Store>(stream_, kernels_, specs_of(layers, shapes_), wanted);
}

std::vector<std::unique_ptr<Part>> Stage::make_parts(const io::Config& config,
                                                     const Options& options, Layers layers) const {
  const PassOptions pass{.samples = options.micro_batch,
                         .dtype = dtype_by_name(config.train.dtype),
                         .label_smoothing = static_cast<float>(config.train.label_smoothing),
                         .dropout = static_cast<float>(config.model.dropout),
                         .global_batch = config.train.global_batch,
                         .seed = static_cast<uint64_t>(config.train.seed),
                         .recompute = options.recompute,
                         .training = options.training,
                         .tied_head_on_other_stage = shapes_.back().end != layers.size(),
                         .wire = activation_format(config)};
  const auto spec_after = [&](size_t end) -> std::optional<model::TensorSpec> {
    return end == 0 || end == layers.size()
               ? std::nullopt
               : std::optional(layers[end - 1]->output(pass.samples, pass.dtype));
  };
  std::vector<Part::Layers> contents;
  for (const PartShape& shape : shapes_) {
    contents.push_back({.layers = {},
                        .in = spec_after(shape.first),
                        .out = spec_after(shape.end),
                        .teacher = shape.end == layers.size() ? teacher_.get() : nullptr});
  }
  std::vector<std::unique_ptr<Part>> parts;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const auto begin = std::make_move_iterator(layers.begin());
    contents[i].layers.assign(begin + static_cast<std::ptrdiff_t>(shapes_[i].first),
                              begin + static_cast<std::ptrdiff_t>(shapes_[i].end));
    parts.push_back(std::make_unique<Part>(stream_, kernels_, problem_, std::move(contents[i]),
                                           shapes_[i], pass));
  }
  return parts;
}

Part& Stage::whole() {
  Part& part = *parts_.front();
  require(parts_.size() == 1 && part.begins() && part.ends(), "this stage is the whole network");
  return part;
}

Part::Feed Stage::feed(int64_t samples) { return whole().open(0, samples); }

double Stage::forward_backward(const MicroBatch& batch) {
  feed(batch.samples);
  whole().forward(0, batch, true);
  whole().backward(0, false, {});
  return whole().take_loss().sum;
}

Part::Loss Stage::evaluate(int64_t samples) {
  feed(samples);
  whole().forward(0, {.samples = samples}, false);
  return whole().take_loss();
}

std::vector<float> Stage::row_losses(int64_t samples) {
  feed(samples);
  return whole().row_losses(0, {.samples = samples});
}

Tensor Stage::predict(std::span<const int32_t> tokens) {
  constexpr int64_t kStep = 16;  // limits the number of shapes: kernels are set up by shape
  const auto count = static_cast<int64_t>(tokens.size());
  require(count >= 1 && count <= problem_.features, "a sequence fits the context", count,
          problem_.features);
  const int64_t width = std::min((count + kStep - 1) / kStep * kStep, problem_.features);
  const Tensor buffer = feed(1).inputs;
  const Tensor narrow = buffer.as(DType::int32, Shape{1, width});
  const auto inputs = narrow.span<int32_t>();
  std::ranges::fill(inputs, 0);  // padding: causal attention does not read it
  std::ranges::copy(tokens, inputs.begin());
  return whole().logits(0, count - 1, 1, narrow);
}

/// Flat offsets decrease with the layer: a layer ends where the layer before it begins.
int64_t Stage::end_of_layer(size_t part, size_t layer) const {
  const size_t first = first_parameter_[part][layer];
  return first == 0 ? store_->flat_size() : store_->parameters()[first - 1].offset;
}

std::vector<int64_t> Stage::boundaries() const {
  std::vector<int64_t> ends;
  for (size_t part = parts_.size(); part-- > 0;) {
    for (size_t layer = first_parameter_[part].size(); layer-- > 0;) {
      ends.push_back(end_of_layer(part, layer));
    }
  }
  if (ends.back() < store_->flat_size()) {
    ends.push_back(store_->flat_size());  // borrowed parameters are last
  }
  return ends;
}

std::vector<PassCost> Stage::measure() {
  std::vector<PassCost> costs;
  for (const auto& part : parts_) {
    costs.push_back(part->measure(part->shape().deferred > 0));
  }
  return costs;
}

std::vector<PassCost> measure_pass(const io::Config& config, const ProblemShape& problem,
                                   const Stage::Options& options, bool on_device) {
  Arena host(true);
  Arena arena = on_device ? Arena(host, nullptr) : Arena(true);
  Stream stream(arena, 1);
  Stage stage(config, problem, stream, kernels::by_name("dry"),
              {.micro_batch = options.micro_batch,
               .training = options.training,
               .recompute = options.recompute,
               .dry = true,
               .parts = options.parts,
               .teacher = options.teacher});
  return stage.measure();
}

std::optional<kernels::WireFormat> gradient_format(const io::Config& config, const Stage& stage,
                                                   const sparse::Parameter& parameter) {
  const DType dtype = stage.store().gradient().dtype;
  return parameter.spec.name == stage.tied_parameter()
             ? parallel::plain_format(dtype)
             : gradient_format(config, parameter.spec, parameter.kept(), dtype);
}

}  // namespace espalier::train
