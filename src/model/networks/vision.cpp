// Convolutional networks that classify images. `model.network` lists their layers:
//
//   conv OUT EXTENT [stride S] [padding P] [groups G]   convolution and rectifier; stride 1,
//                                                       padding (EXTENT - 1) / 2
//   max EXTENT [stride S] [padding P]                   pooling of each channel; stride EXTENT,
//   mean EXTENT [stride S] [padding P]                  padding 0
//   mean                                                of whole images
//   linear OUT                                          hidden layer of a perceptron, with dropout
//
// "3 x conv 64 3" stands for three such layers. A classifier follows the last layer. Layer n has
// the name "n.KIND", its parameters are "n.conv.weight" and so on.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "src/model/layers/images.h"
#include "src/model/layers/perceptron.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

/// Images between two layers, or after `linear` a vector: pixels 1 x 1.
struct Images {
  int64_t height = 1, width = 1, channels = 1;
  int64_t count() const { return height * width * channels; }
  std::string text() const { return fmt::format("{} x {} x {}", height, width, channels); }
};

/// One layer of the list.
struct Entry {
  std::string text;  ///< without the number of repetitions
  std::string kind;
  kernels::Window window;
  int64_t out = 0, groups = 1;
  Images from, to;
  bool reads_images() const { return kind != "linear"; }
};

/// Reads the words of one layer.
class Words {
 public:
  explicit Words(const std::string& text) : text_(text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      words_.push_back(word);
    }
  }

  bool done() const { return next_ == words_.size(); }
  std::string word() { return done() ? std::string() : words_[next_++]; }
  bool skip(std::string_view word) {
    const bool here = !done() && words_[next_] == word;
    next_ += here ? 1 : 0;
    return here;
  }
  bool at_number() const { return !done() && value_of(words_[next_]).has_value(); }
  int64_t number(const char* what) {
    const std::string given = word();
    const auto value = value_of(given);
    check(value.has_value(), "model.network: '{}' needs {} (a number up to 65536), not '{}'", text_,
          what, given);
    return *value;
  }
  /// Numbers after names, in any order; each name at most once.
  void options(std::initializer_list<std::pair<std::string_view, int64_t*>> known) {
    std::vector<std::string> seen;
    while (!done()) {
      const std::string name = word();
      const auto found = std::ranges::find(known, name, [](const auto& one) { return one.first; });
      check(found != known.end() && std::ranges::find(seen, name) == seen.end(),
            "model.network: '{}' has an unexpected '{}'", text_, name);
      seen.push_back(name);
      *found->second = number("a number there");
    }
  }
  std::string rest() const {
    return fmt::format(
        "{}", fmt::join(words_.begin() + static_cast<ptrdiff_t>(next_), words_.end(), " "));
  }

 private:
  static std::optional<int64_t> value_of(const std::string& word) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole = error == std::errc() && end == word.data() + word.size();
    return whole && value >= 0 && value <= 65536 ? std::optional(value) : std::nullopt;
  }

  std::string text_;
  std::vector<std::string> words_;
  size_t next_ = 0;
};

void read_convolution(Words& words, Entry& entry) {
  entry.out = words.number("its output channels");
  entry.window.extent = words.number("the extent of its window");
  entry.window.padding = (entry.window.extent - 1) / 2;
  words.options({{"stride", &entry.window.stride},
                 {"padding", &entry.window.padding},
                 {"groups", &entry.groups}});
  check(entry.out > 0 && entry.groups > 0 && entry.from.channels % entry.groups == 0 &&
            entry.out % entry.groups == 0,
        "model.network: the groups of '{}' must divide its {} input and {} output channels",
        entry.text, entry.from.channels, entry.out);
}

void read_pooling(Words& words, Entry& entry) {
  if (entry.kind == "mean" && words.done()) {
    check(entry.from.height == entry.from.width,
          "model.network: 'mean' needs square images, and gets {}; name an extent",
          entry.from.text());
    entry.window.extent = entry.window.stride = entry.from.height;
  } else {
    entry.window.extent = entry.window.stride = words.number("the extent of its window");
    words.options({{"stride", &entry.window.stride}, {"padding", &entry.window.padding}});
  }
  check(entry.kind == "mean" || entry.window.extent <= 15,
        "model.network: the window of '{}' may be up to 15 wide", entry.text);
  entry.out = entry.from.channels;
}

/// A mask must be able to hold the weight.
void check_weight(const Entry& entry, int64_t inputs) {
  check(inputs <= sparse::kMaxElements / entry.out,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}", entry.text,
        entry.out, inputs, sparse::kMaxElements);
}

/// The layer `text` after images `from`, the output of layer `before`.
Entry read_entry(const std::string& text, const Images& from, const std::string& before) {
  Words words(text);
  Entry entry{.text = text, .kind = words.word(), .window = {}, .from = from, .to = {}};
  entry.window.height = from.height;
  entry.window.width = from.width;
  if (entry.kind == "linear") {
    entry.out = words.number("its outputs");
    check(entry.out > 0 && words.done(), "model.network: '{}' must be 'linear OUT'", text);
    check_weight(entry, from.count());
    entry.to = {.channels = entry.out};
    return entry;
  }
  check(entry.kind == "conv" || entry.kind == "max" || entry.kind == "mean",
        "model.network: no layer '{}': conv, linear, max, mean", entry.kind);
  entry.kind == "conv" ? read_convolution(words, entry) : read_pooling(words, entry);
  kernels::Window& window = entry.window;
  check(window.extent > 0 && window.stride > 0 && window.padding < window.extent,
        "model.network: '{}' needs an extent and a stride of at least 1, and less padding than its "
        "extent",
        text);
  check(window.extent <= std::min(from.height, from.width) + 2 * window.padding,
        "model.network: the window of '{}' does not fit into images of {}, the output of {}", text,
        from.text(), before);
  if (entry.kind == "conv") {
    check_weight(entry, from.channels / entry.groups * window.area());
  }
  entry.to = {window.out_height(), window.out_width(), entry.out};
  return entry;
}

/// Number and text of "N x TEXT".
std::pair<int64_t, std::string> repeated(const std::string& text) {
  Words words(text);
  if (!words.at_number()) {
    return {1, words.rest()};
  }
  const int64_t times = words.number("a number of layers");
  check(words.skip("x") && !words.done() && times > 0 && times <= 1000,
        "model.network: '{}' begins with a number; repetitions are '3 x conv 64 3', up to 1000",
        text);
  return {times, words.rest()};
}

Images image_of(const io::ModelConfig& config) {
  check(config.image.size() == 3, "model.image must be [height, width, channels]");
  return {config.image[0], config.image[1], config.image[2]};
}

Shape shape_of_image(const io::ModelConfig& config) {
  const Images images = image_of(config);
  return {images.height, images.width, images.channels};
}

std::vector<Entry> entries_of(const io::ModelConfig& config) {
  Images images = image_of(config);
  std::vector<Entry> entries;
  for (const std::string& line : config.network) {
    const auto [times, text] = repeated(line);
    for (int64_t i = 0; i < times; ++i) {
      const std::string before =
          entries.empty() ? "the data" : fmt::format("'{}'", entries.back().text);
      entries.push_back(read_entry(text, images, before));
      images = entries.back().to;
    }
  }
  return entries;
}

std::unique_ptr<Layer> convolution_of(const Entry& entry, std::string name, bool first, bool flat) {
  const int64_t fan_in = entry.from.channels / entry.groups * entry.window.area();
  const Convolution::Options options{
      .window = entry.window,
      .in = entry.from.channels,
      .out = entry.out,
      .groups = entry.groups,
      .linear = {.deviation = he_deviation(fan_in),
                 .scaling = first ? sparse::Scaling::base : sparse::Scaling::hidden,
                 .width = first ? entry.out : fan_in,
                 .deviation_by_width = !first}};
  return std::make_unique<RectifiedConvolution>(
      std::move(name), RectifiedConvolution::Options{options, first, flat});
}

std::unique_ptr<Layer> make_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                  size_t number) {
  const Images images = image_of(config);
  const Shape image = shape_of_image(config);
  check(problem.image.rank() == 0 || problem.image == image,
        "model.image = {}, but the images of the data are {} (height, width, channels); set "
        "model.image = {}",
        image.text(), problem.image.text(), problem.image.text());
  check(images.count() == problem.features,
        "model.image = {} has {} numbers, but the images of the data have {}; set model.image to "
        "their [height, width, channels]",
        images.text(), images.count(), problem.features);
  const std::vector<Entry> entries = entries_of(config);
  if (number == entries.size()) {
    return std::make_unique<Classifier>(entries.back().to.count(), problem.classes);
  }
  const Entry& entry = entries[number];
  std::string name = fmt::format("{}.{}", number, entry.kind);
  if (!entry.reads_images()) {
    return std::make_unique<Hidden>(std::move(name), entry.from.count(), entry.out, number == 0);
  }
  const bool flat = number + 1 == entries.size() || !entries[number + 1].reads_images();
  if (entry.kind == "conv") {
    return convolution_of(entry, std::move(name), number == 0, flat);
  }
  return std::make_unique<Pooling>(
      std::move(name),
      Pooling::Options{.window = entry.window,
                       .kind = entry.kind == "max" ? kernels::Pool::max : kernels::Pool::mean,
                       .channels = entry.out,
                       .first = number == 0,
                       .flat = flat});
}

size_t layer_count(const io::ModelConfig& config) {
  size_t count = 1;
  for (const std::string& line : config.network) {
    count += static_cast<size_t>(repeated(line).first);
  }
  return count;
}

ProblemShape problem_of(const io::ModelConfig& config, const MatrixShape& shape) {
  return {.classes = shape("classifier.weight")[0],
          .features = image_of(config).count(),
          .rows = 1,
          .input_dtype = DType::fp32,
          .image = shape_of_image(config)};
}

constexpr std::array<std::string_view, 1> kDataKinds{"images"};

}  // namespace

extern const NetworkKind kVision;
const NetworkKind kVision{
    .name = "vision",
    .help = "convolutional network; classifies images",
    .data_kinds = kDataKinds,
    .input_dtype = DType::fp32,
    .check =
        [](const io::ModelConfig& config) {
          check(!config.network.empty(),
                "model.network is empty; list the layers, e.g. [\"conv 32 3\", \"max 2\"]");
          entries_of(config);
        },
    .layer_count = layer_count,
    .make_layer = make_layer,
    .problem_of = problem_of,
    .identity =
        [](const io::ModelConfig& config) {
          return Settings{{"network", fmt::format("{}", fmt::join(config.network, ", "))},
                          {"image", fmt::format("{}", fmt::join(config.image, " x "))}};
        },
    .tied_parameter = [](const io::ModelConfig&) { return std::string_view(); },
    .image = shape_of_image,
    .describe =
        [](const io::ModelConfig& config, int64_t classes) {
          return fmt::format("vision, {}, {} classes", fmt::join(config.network, ", "), classes);
        }};

}  // namespace espalier::model
