#include "src/train/run/calibration.h"

#include <algorithm>
#include <cstring>

#include "io/data/images.h"
#include "pruning/pruning.h"
#include "src/model/networks/registry.h"
#include "src/train/stage/stage.h"

namespace espalier::train {
namespace {

int64_t count_of(int64_t wanted, int64_t held) { return std::min(wanted, held); }

/// Sample i of n, evenly among `held`.
int64_t place(int64_t i, int64_t n, int64_t held) { return i * held / n; }

Calibration open_text(const io::DataConfig& data, const ProblemShape& problem,
                      const io::Vocabulary& characters, const io::Tokenizer* tokenizer,
                      int64_t samples) {
  const auto tokens = std::make_shared<const io::TokenDataset>(
      io::TokenDataset::open(data, io::Split::train,
                             {.context = 0,
                              .vocabulary = problem.classes,
                              .characters = characters.size() > 0 ? &characters : nullptr,
                              .tokenizer = tokenizer}));
  const int64_t context = problem.features;
  const int64_t windows = tokens->size() / context;
  check(windows > 0,
        "the calibration text ({}{}) has {} tokens, fewer than one context of {}; name a longer "
        "text with --calibration",
        data.train.front(), data.train.size() > 1 ? ", …" : "", tokens->size(), context);
  const int64_t count = count_of(samples, windows);
  return {.samples = count, .read = [=](int64_t first, const Tensor& inputs) {
            for (int64_t row = 0; row < inputs.rows(); ++row) {
              tokens->read(place(first + row, count, windows) * context,
                           inputs.row_range(row, 1).span<int32_t>());
            }
          }};
}

Calibration open_images(const io::DataConfig& data, const ProblemShape& problem, int64_t samples) {
  const auto images =
      std::make_shared<const io::ImageDataset>(io::ImageDataset::open(data, io::Split::train));
  check(images->numbers() == problem.features,
        "calibration images have {} numbers ({}), but the network reads {}; name images of the "
        "size that it was trained with",
        images->numbers(), images->extents().text(), problem.features);
  const int64_t count = count_of(samples, images->size());
  return {.samples = count, .read = [=](int64_t first, const Tensor& inputs) {
            for (int64_t row = 0; row < inputs.rows(); ++row) {
              images->read(place(first + row, count, images->size()),
                           inputs.row_range(row, 1).span<float>());
            }
          }};
}

/// Runs one layer after the other on all samples, in micro-batches.
class LayerRunner {
 public:
  LayerRunner(const io::Config& config, const ProblemShape& problem, sparse::Store& store,
              const kernels::Kernels& kernels, const Calibration& data)
      : problem_(problem),
        store_(store),
        kernels_(kernels),
        data_(data),
        micro_batch_(micro_batch_of(config, problem, data.samples)),
        inputs_(store.arena().allocate(Memory::activation, "inputs", problem.input_dtype,
                                       Shape{micro_batch_, problem.features})),
        tape_(store.arena(), tape_bytes(config, problem, micro_batch_)),
        between_(static_cast<size_t>((data.samples + micro_batch_ - 1) / micro_batch_)) {}

  /// `on_pass` is called after each micro-batch.
  void set_on_pass(std::function<void()> on_pass) { on_pass_ = std::move(on_pass); }
  int64_t micro_batches() const { return std::ssize(between_); }

  using OnInput = std::function<void(std::string_view weight, const Tensor& x)>;
  /// With `advance` the outputs replace the layer's inputs.
  void run(model::Layer& layer, bool advance, const OnInput& on_input = {}) {
    for (size_t i = 0; i < between_.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * micro_batch_;
      const int64_t count = std::min(micro_batch_, data_.samples - first);
      const Tensor& x = between_[i].tensor();
      const Tensor inputs = inputs_.tensor().row_range(0, count);
      if (!x) {  // the first layer
        data_.read(first, inputs);
      }
      const sparse::Store::Pass expanded(store_, 0);
      model::Pass pass{.stream = store_.stream(),
                       .kernels = kernels_,
                       .tape = tape_,
                       .samples = count,
                       .inputs = inputs,
                       .on_input = on_input ? &on_input : nullptr};
      const Tensor y = layer.forward(pass, x);
      store_.stream().synchronize();
      if (advance) {
        Buffer next =
            store_.arena().allocate(Memory::activation, "between layers", y.dtype, y.shape);
        std::memcpy(next.tensor().data, y.data, y.bytes());
        between_[i] = std::move(next);
      }
      tape_.clear();
      on_pass_();
    }
  }

 private:
  static constexpr int64_t kRows = 1024;  // of a micro-batch: enough for fast products
  static constexpr size_t kTapeBytes = size_t{512} << 20U;  // rows of images are large

  static int64_t micro_batch_of(const io::Config& config, const ProblemShape& problem,
                                int64_t samples) {
    const auto fitting = static_cast<int64_t>(kTapeBytes / tape_bytes(config, problem, 1));
    return std::clamp<int64_t>(std::min(kRows / problem.rows, fitting), 1, samples);
  }

  static size_t tape_bytes(io::Config config, const ProblemShape& problem, int64_t micro_batch) {
    config.train.dtype = "fp32";
    return measure_pass(config, problem, {.micro_batch = micro_batch, .training = false})
        .front()
        .tape_bytes;
  }

  ProblemShape problem_;
  sparse::Store& store_;
  const kernels::Kernels& kernels_;
  const Calibration& data_;
  int64_t micro_batch_;
  Buffer inputs_;
  model::Tape tape_;
  std::function<void()> on_pass_ = [] {};
  std::vector<Buffer> between_;  ///< [micro-batch]: inputs of the next layer; empty before layer 0
};

/// Sums the statistic of one matrix's inputs.
class Statistic {
 public:
  Statistic(pruning::InputStatistic kind, sparse::Store& store, const kernels::Kernels& kernels,
            int64_t inputs)
      : stream_(store.stream()), kernels_(kernels) {
    if (kind == pruning::InputStatistic::squares) {
      sums_.resize(static_cast<size_t>(inputs));
    } else {
      products_ = store.arena().allocate(Memory::scratch, "products of inputs", DType::fp32,
                                         Shape{inputs, inputs});
    }
  }

  void add(const Tensor& x) {
    if (products_.tensor()) {
      kernels_.gemm(
          stream_,
          {.a = x, .b = x, .c = products_.tensor(), .transpose_a = true, .accumulate = true});
      return;
    }
    stream_.synchronize();
    for (int64_t row = 0; row < x.rows(); ++row) {
      const auto values = x.row_range(row, 1);
      const float* value = values.get<float>();
      for (double& sum : sums_) {
        const auto one = static_cast<double>(*value++);
        sum += one * one;
      }
    }
  }

  std::vector<double> take() {
    if (products_.tensor()) {
      stream_.synchronize();
      const auto products = products_.tensor().span<float>();
      sums_.assign(products.begin(), products.end());
      products_.release();
    }
    return std::move(sums_);
  }

 private:
  Stream& stream_;
  const kernels::Kernels& kernels_;
  std::vector<double> sums_;
  Buffer products_;  ///< fp32
};

/// Packed values with zeros at elements that the mask prunes.
void clear_pruned(std::span<float> values, const sparse::Mask& before, const sparse::Mask& mask) {
  size_t next = 0;
  sparse::for_each_one(before.words(), [&](int64_t position) {
    float& value = values[next++];
    value = mask[position] ? value : 0.0F;
  });
}

}  // namespace

Calibration open_calibration(const io::Config& config, const ProblemShape& problem,
                             const io::Vocabulary& characters, const io::Tokenizer* tokenizer,
                             std::vector<std::string> files, int64_t samples) {
  io::DataConfig data = config.data;
  data.train = std::move(files);
  data.validation.clear();
  data.validation_fraction = 0;
  return data.kind == "images" ? open_images(data, problem, samples)
                               : open_text(data, problem, characters, tokenizer, samples);
}

pruning::Result prune_by_inputs(const io::Config& config, const ProblemShape& problem,
                                sparse::Store& store, const kernels::Kernels& kernels,
                                const std::vector<bool>& prunable,
                                const pruning::Settings& settings, const Calibration& data,
                                const OnPasses& on_passes) {
  const auto& method = std::get<pruning::Calibrated>(pruning::method_by_name(settings.method).kind);
  const model::Layers layers = model::make_layers(config.model, problem);
  for (const auto& layer : layers) {
    layer->bind(store, kernels);
  }
  pruning::Result result{.masks = store.masks(), .warnings = {}};
  LayerRunner runner(config, problem, store, kernels, data);
  auto left = std::ranges::count(prunable, true);
  if (on_passes) {
    const auto of_layers = static_cast<int64_t>(layers.size()) + left;  // at most
    runner.set_on_pass(
        [&, done = int64_t{0}, total = of_layers * runner.micro_batches()]() mutable {
          on_passes(++done, total);
        });
  }
  for (const auto& layer : layers) {
    if (left == 0) {
      break;
    }
    for (const sparse::ParameterSpec& spec : layer->parameters()) {
      sparse::Parameter& parameter = store.find(spec.name);
      const auto p = static_cast<size_t>(&parameter - store.parameters().data());
      if (!prunable[p]) {
        continue;
      }
      Statistic statistic(method.inputs, store, kernels, spec.shape.cols());
      int64_t seen = 0;
      runner.run(*layer, false, [&](std::string_view weight, const Tensor& x) {
        if (weight == spec.name) {
          statistic.add(x);
          seen += x.rows();
        }
      });
      require(seen > 0, "a layer shows the inputs of its prunable matrices", spec.name);
      std::vector<float> values = store.values(parameter);
      const pruning::Candidate matrix{
          .name = spec.name, .shape = spec.shape, .index = &parameter.index, .values = values};
      pruning::Result one = pruning::prune_matrix(matrix, statistic.take(), settings, values);
      result.masks[p] = std::move(one.masks.front());
      std::ranges::move(one.warnings, std::back_inserter(result.warnings));
      clear_pruned(values, parameter.index.mask(), result.masks[p]);
      store.set_values(parameter, values);
      --left;
    }
    if (left > 0) {
      runner.run(*layer, true);
    }
  }
  return result;
}

}  // namespace espalier::train
