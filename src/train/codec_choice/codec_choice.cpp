#include "src/train/codec_choice/codec_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>

#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "src/kernels/backend.h"
#include "src/kernels/rules/wire/codecs.h"
#include "src/train/exchange/replica_route.h"

namespace espalier::train {
namespace {

/// Adaptive samples at most kBlocksSeen blocks of kBlock elements of each parameter.
constexpr int64_t kBlocksSeen = 4;
constexpr int64_t kBlock = 16'384;

/// Relative where updates do not depend on the size of gradients (AdamW): squares would take bits
/// from layers of small gradients first, although they move as far as others.
parallel::ErrorScale scale_of(const io::Config& config) {
  return optim::optimizer_of(config.optimizer).scale_free ? parallel::ErrorScale::relative
                                                          : parallel::ErrorScale::squares;
}

/// The candidates of "fastest".
constexpr std::array<std::string_view, 4> kTimed{"fp32", "fp8-e5m2", "maxmin:4", "table:1"};

/// The candidates of "adaptive". With 1 bit an error can reach the largest value of a bucket.
constexpr int64_t kFewestBits = 2;
constexpr int64_t kMaxBits = 8;
constexpr std::array<int64_t, 3> kBuckets{512, 128, 64};  // the usual ones, and a finer one
/// The error of "adaptive" is measured by this codec's, which keeps the loss (docs/results.md).
constexpr std::string_view kUniform = "maxmin:4";
constexpr parallel::CodecKind kOfValues = parallel::CodecKind::values;

parallel::CodecSpec default_codec(const io::Config& config) {
  return parallel::parse_codec(config.parallel.codec.fallback);
}

bool is_fastest(const std::string& codec) {
  return parallel::parse_codec(codec).chooser() == CodecChooser::fastest;
}

/// The config with "fastest" as its default codec.
io::Config with_fastest(io::Config config) {
  config.parallel.codec.fallback = "fastest";
  return config;
}

/// Upper limit of elements in a timed sum.
constexpr int64_t kLongest = int64_t{4} << 20;

/// The candidate that defines the error budget of "adaptive".
int uniform_candidate(std::span<const kernels::WireFormat> candidates) {
  const kernels::WireFormat uniform = parallel::format_of(parallel::parse_codec(kUniform));
  return static_cast<int>(std::ranges::find(candidates, uniform) - candidates.begin());
}

/// Elements of the longest reduction that times the link. On a device it runs in the gradient
/// buffer and takes little time.
int64_t longest_on_link(const Stage& stage, bool on_device) {
  constexpr int64_t kOfTheHost = 262'144;
  return on_device ? std::min(stage.store().flat_size(), kLongest) : kOfTheHost;
}

/// Elements for timing encode and decode alone.
int64_t elements_of_codes(int64_t longest) { return std::max<int64_t>(longest / 4, 1); }

/// With parallel.reduction = "auto": the format that must be faster than uncompressed reduction,
/// that of the largest parameter that is not sent uncompressed. Empty: there is none.
std::optional<kernels::WireFormat> doubted_format(const io::Config& config, const Stage& stage) {
  if (config.parallel.reduction != "auto" || !has_lossy_gradient_codec(config)) {
    return {};
  }
  const CodecChooser chooser = codec_chooser(config);
  if (chooser == CodecChooser::fastest || chooser == CodecChooser::adaprec) {
    return {};  // they measure times themselves
  }
  const sparse::Store& store = stage.store();
  if (chooser == CodecChooser::adaptive) {
    const auto candidates = codec_candidates(config, store.gradient().dtype);
    return candidates[static_cast<size_t>(uniform_candidate(candidates))];
  }
  const kernels::WireFormat plain = parallel::plain_format(store.gradient().dtype);
  std::optional<kernels::WireFormat> widest;
  int64_t most = 0;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    const kernels::WireFormat format = gradient_format(config, stage, parameter).value_or(plain);
    if (format != plain && parameter.kept() > most) {
      widest = format;
      most = parameter.kept();
    }
  }
  return widest;
}

/// A borrowed parameter is in the stage of its owner, too, which chooses for itself.
std::string key_of(const sparse::Parameter& parameter) {
  return parameter.spec.name + (parameter.spec.borrowed ? "*" : "");
}

/// `KEY=VALUE;` of each entry.
std::map<std::string, std::string> entries_of(const std::string& state) {
  std::map<std::string, std::string> entries;
  size_t begin = 0;
  for (size_t end = 0; (end = state.find(';', begin)) != std::string::npos; begin = end + 1) {
    const std::string entry = state.substr(begin, end - begin);
    if (const size_t equals = entry.find('='); equals != std::string::npos) {
      entries[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  return entries;
}

/// Elements of the longest reduction for that comparison. The shorter ones have a 64th and an
/// eighth of these elements.
int64_t longest_in_doubt(const Stage& stage) {
  constexpr int64_t kParts = 64;
  const int64_t longest = std::min(stage.store().flat_size(), kLongest);
  return longest < kParts ? longest : longest / kParts * kParts;
}

/// Segments of the flat gradient with format(number, parameter).
template <class Format>
WireSegments segments_of(const sparse::Store& store, const Format& format) {
  WireSegments segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {  // the flat array is in backward order
    const sparse::Parameter& parameter = store.parameters()[p];
    segments.push_back(
        {.first = parameter.offset, .count = parameter.kept(), .format = format(p, parameter)});
  }
  return segments;
}

}  // namespace

bool times_codecs(const io::Config& config) {
  const parallel::CodecSpec codec = default_codec(config);
  return codec.chooser() == CodecChooser::fastest ||
         std::ranges::any_of(codec.candidates, is_fastest);
}

std::vector<kernels::WireFormat> codec_candidates(const io::Config& config, DType gradient) {
  const parallel::CodecSpec requested = default_codec(config);
  std::vector<kernels::WireFormat> formats;
  const auto add = [&](const parallel::CodecSpec& codec) {
    formats.push_back(codec.name == "fp32" ? parallel::plain_format(gradient)
                                           : parallel::format_of(codec));
  };
  for (const std::string& name : requested.candidates) {
    if (const parallel::CodecSpec codec = parallel::parse_codec(name); codec.kind() == kOfValues) {
      add(codec);
    }
  }
  if (times_codecs(config)) {
    for (const std::string_view name : kTimed) {
      add(parallel::parse_codec(name));
    }
  } else if (requested.chooser() == CodecChooser::adaptive) {
    for (int64_t bits = kFewestBits; bits <= kMaxBits; ++bits) {
      for (const int64_t bucket : kBuckets) {
        add({.name = "maxmin", .bits = bits, .bucket = bucket});
      }
    }
  }
  return formats;
}

bool times_link(const io::Config& config) {
  return find(parallel::codecs(), "codec", default_codec(config).name).by_time;
}

std::vector<TimedSum> longest_timed_sums(const io::Config& config, const Stage& stage,
                                         bool on_device) {
  const sparse::Store& store = stage.store();
  const DType dtype = store.gradient().dtype;
  const kernels::WireFormat plain = parallel::plain_format(dtype);
  const auto candidates = codec_candidates(config, dtype);
  std::vector<TimedSum> timings;
  if (times_link(config)) {
    const int64_t longest = longest_on_link(stage, on_device);
    timings.push_back({.format = plain, .elements = longest});
    for (const kernels::WireFormat& format : candidates) {
      timings.push_back({.format = format, .elements = elements_of_codes(longest), .code = true});
    }
  }
  if (const auto format = doubted_format(config, stage); format) {
    timings.push_back({.format = plain, .elements = longest_in_doubt(stage)});
    timings.push_back({.format = *format, .elements = longest_in_doubt(stage)});
  }
  if (times_codecs(config)) {
    int64_t longest = 0;
    for (const sparse::Parameter& parameter : store.parameters()) {
      const bool open = !gradient_format(config, stage, parameter);
      longest = std::max(longest, open ? parameter.kept() : 0);
    }
    for (const kernels::WireFormat& format : std::span(candidates).last(kTimed.size())) {
      if (longest > 0) {
        timings.push_back({.format = format, .elements = longest});
      }
    }
  }
  return timings;
}

std::vector<WireSegments> possible_segments(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  const kernels::WireFormat plain = parallel::plain_format(store.gradient().dtype);
  // `chosen`: of parameters whose codec is chosen at run time.
  const auto with = [&](const kernels::WireFormat& chosen) {
    return segments_of(store, [&](size_t, const sparse::Parameter& parameter) {
      return gradient_format(config, stage, parameter).value_or(chosen);
    });
  };
  std::vector<WireSegments> possible;
  for (const kernels::WireFormat& format : codec_candidates(config, store.gradient().dtype)) {
    possible.push_back(with(format));
    if (format == plain &&
        (codec_chooser(config) != CodecChooser::adaprec || times_codecs(config))) {
      // Uncompressed parameters beside encoded ones take another path than a fully uncompressed
      // gradient.
      possible.push_back(possible.back());
      possible.back().push_back(
          {.first = store.flat_size(), .format = {.code = kernels::WireCode::maxmin}});
    }
  }
  if (possible.empty()) {
    possible.push_back(with(plain));
  }
  if (config.parallel.reduction == "auto" && has_lossy_gradient_codec(config)) {
    possible.push_back(segments_of(store, [&](size_t, const auto&) { return plain; }));
  }
  return possible;
}

namespace {

struct OpenParameters {
  std::vector<size_t> numbers;  ///< in the order of the flat gradient
  parallel::ErrorTableOptions errors;
};

/// The parameters whose codec "adaptive" chooses.
OpenParameters open_parameters(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  OpenParameters open{.numbers = {},
                      .errors = {.choices = codec_candidates(config, store.gradient().dtype),
                                 .scale = scale_of(config),
                                 .block = kBlock,
                                 .most_blocks = kBlocksSeen}};
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    if (!gradient_format(config, stage, parameter)) {
      open.errors.layers.push_back({.first = parameter.offset, .count = parameter.kept()});
      open.numbers.push_back(p);
    }
  }
  return open;
}

}  // namespace

void plan_choice(const io::Config& config, Stage& stage, int replicas) {
  const Tensor& gradient = stage.store().gradient();
  if (replicas > 1 && codec_chooser(config) == CodecChooser::adaptive && gradient) {
    parallel::measure_errors(stage.kernels(), stage.stream().host(),
                             open_parameters(config, stage).errors, gradient);
  }
}

CodecChoice::CodecChoice(const io::Config& config, Stage& stage, parallel::Communicator& replicas,
                         ReplicaRoute& route)
    : config_(config),
      requested_(default_codec(config)),
      stage_(stage),
      replicas_(replicas),
      timer_(replicas, route, stage.store().gradient().dtype),
      chooser_(codec_chooser(config)),
      candidates_(codec_candidates(config, stage.store().gradient().dtype)),
      chosen_(stage.store().parameters().size(), 0) {
  if (times_codecs(config)) {
    timed_.resize(kTimed.size());
    std::iota(timed_.begin(), timed_.end(), candidates_.size() - kTimed.size());
  }
  if (chooser_ == CodecChooser::adaprec) {
    use(requested_.candidates.front());
  }
  if (replicas_.size() > 1 && chooser_ == CodecChooser::adaptive) {
    uniform_ = uniform_candidate(candidates_);
    std::ranges::fill(chosen_, uniform_);
    if (times_link(config)) {
      measure_link(route.link() != nullptr);
    }
  }
}

void CodecChoice::measure_link(bool on_device) {
  const int64_t longest = longest_on_link(stage_, on_device);
  link_ = timer_.link(longest);
  for (const kernels::WireFormat& format : candidates_) {
    codec_seconds_.push_back(timer_.codec_seconds(format, elements_of_codes(longest)));
  }
}

void CodecChoice::use(const std::string& codec) { config_.parallel.codec.fallback = codec; }

/// Compares timed sums with and without codec, of three sizes up to longest_in_doubt.
void CodecChoice::decide_whether_to_compress() {
  decided_for_ = stage_.store().flat_size();
  compresses_ = true;
  std::optional<kernels::WireFormat> format;
  if (chooser_ != CodecChooser::adaprec) {  // its current codec is not the config's
    format = doubted_format(config_, stage_);
  }
  if (!format) {
    return;
  }
  const kernels::WireFormat plain = parallel::plain_format(stage_.store().gradient().dtype);
  const int64_t longest = longest_in_doubt(stage_);
  std::vector<parallel::ExchangePair> pairs;
  for (int64_t size = std::max<int64_t>(longest / 64, 1); size <= longest; size *= 8) {
    pairs.push_back({.elements = size,
                     .plain = timer_.seconds(plain, size),
                     .compressed = timer_.seconds(*format, size)});
  }
  const int64_t pays_from = parallel::break_even(pairs);
  compresses_ = pays_from <= longest;
  const std::string name = parallel::text_of(*format);
  notes_ =
      pays_from == parallel::kNeverPays
          ? fmt::format(
                "codec {} does not pay on this link ({:.2f} ms against {:.2f} ms for {} elements); "
                "gradients are sent unencoded",
                name, 1e3 * pairs.back().compressed, 1e3 * pairs.back().plain,
                pairs.back().elements)
          : fmt::format("codec {} pays from {} elements on ({:.2f} ms against {:.2f} ms for {})",
                        name, pays_from, 1e3 * pairs.back().compressed, 1e3 * pairs.back().plain,
                        pairs.back().elements);
}

std::vector<parallel::WireSegment> CodecChoice::segments() const {
  const kernels::WireFormat plain = parallel::plain_format(stage_.store().gradient().dtype);
  return segments_of(stage_.store(), [&](size_t p, const sparse::Parameter& parameter) {
    const auto fixed = compresses_ ? gradient_format(config_, stage_, parameter) : plain;
    return fixed ? *fixed : candidates_[static_cast<size_t>(chosen_[p])];
  });
}

void CodecChoice::prepare() {
  if (replicas_.size() == 1) {
    return;
  }
  // Repeat after masks have made the gradient much shorter.
  const bool fewer = stage_.store().flat_size() < decided_for_ / 2;
  if (config_.parallel.reduction == "auto" && has_lossy_gradient_codec(config_) &&
      (decided_for_ == 0 || fewer)) {
    decide_whether_to_compress();
  }
  if (timed_.empty()) {
    return;
  }
  const io::Config config = with_fastest(config_);
  const auto& parameters = stage_.store().parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (gradient_format(config, stage_, parameters[p])) {
      continue;
    }
    const int64_t size = parameters[p].kept();
    if (!fastest_.contains(size)) {
      std::vector<double> seconds;
      for (const size_t candidate : timed_) {
        seconds.push_back(timer_.seconds(candidates_[candidate], size));
      }
      const auto fastest = std::ranges::min_element(seconds) - seconds.begin();
      fastest_[size] = static_cast<int>(timed_[static_cast<size_t>(fastest)]);
      notes_ += fmt::format("{}{} elements: {}", notes_.empty() ? "fastest codecs: " : ", ", size,
                            parallel::text_of(candidates_[fastest_[size]]));
    }
    chosen_[p] = fastest_[size];
  }
}

bool CodecChoice::due(int64_t step) const {
  return chooser_ == CodecChooser::adaptive && compresses_ && replicas_.size() > 1 &&
         step % requested_.every == 0;
}

void CodecChoice::choose(const Tensor& gradient, const GradientTimeline& timeline, uint64_t key) {
  const auto [open, options] = open_parameters(config_, stage_);
  if (open.empty()) {
    return;
  }
  parallel::ChoiceTable table = parallel::measure_errors(
      kernels::beside(stage_.kernels()), stage_.stream().host(), options, gradient, key);
  parallel::all_reduce_small(replicas_, table.error, parallel::Combine::sum);
  const parallel::ErrorBudget budget{.uniform = uniform_, .alpha = requested_.error};
  parallel::BitChoice made;
  if (replicas_.rank() == 0) {
    made = times_link(config_)
               ? parallel::least_exposed(table, times_of(table, open, timeline), budget)
               : parallel::least_bytes(table, budget);
    notes_ = describe(table, made);
  }
  made.choice.resize(open.size());
  parallel::broadcast(replicas_, 0, std::as_writable_bytes(std::span(made.choice)));
  for (size_t layer = 0; layer < open.size(); ++layer) {
    chosen_[open[layer]] = made.choice[layer];
  }
}

/// Assumes that layers are cut into buckets as the gradient is.
parallel::ExchangeTimes CodecChoice::times_of(const parallel::ChoiceTable& table,
                                              std::span<const size_t> open,
                                              const GradientTimeline& timeline) const {
  const sparse::Store& store = stage_.store();
  parallel::ExchangeTimes times{.latency = link_.latency_s, .backward_end = timeline.backward};
  std::vector<double> codec_seconds(table.bytes.size());
  for (size_t layer = 0; layer < open.size(); ++layer) {
    const sparse::Parameter& parameter = store.parameters()[open[layer]];
    for (int c = 0; c < table.choices; ++c) {
      codec_seconds[table.at(static_cast<int64_t>(layer), c)] =
          codec_seconds_[static_cast<size_t>(c)] * static_cast<double>(parameter.kept());
    }
    const int64_t end = parameter.offset + parameter.kept();
    const auto bucket = std::ranges::lower_bound(timeline.end, end) - timeline.end.begin();
    const double ready = timeline.seconds.empty()
                             ? 0
                             : timeline.seconds[std::min<size_t>(static_cast<size_t>(bucket),
                                                                 timeline.seconds.size() - 1)];
    if (times.ready.empty() || ready != times.ready.back()) {
      times.ends.push_back(static_cast<int64_t>(layer));
      times.ready.push_back(ready);
    }
    times.ends.back() = static_cast<int64_t>(layer) + 1;
  }
  const double volume = 2.0 * (replicas_.size() - 1) / replicas_.size();
  times.seconds = parallel::exchange_seconds(table, link_.bytes_per_s / volume, codec_seconds);
  return times;
}

std::string CodecChoice::describe(const parallel::ChoiceTable& table,
                                  const parallel::BitChoice& made) const {
  const parallel::BitChoice uniform = parallel::uniform_choice(table, uniform_);
  std::map<int, int> times;
  for (const int choice : made.choice) {
    ++times[choice];
  }
  std::vector<std::string> words;
  for (const auto& [choice, count] : times) {
    words.push_back(
        fmt::format("{} x {}", count, parallel::text_of(candidates_[static_cast<size_t>(choice)])));
  }
  return fmt::format(
      "codecs chosen: {}; {:.2f} x the bytes and {:.2f} x the error of {} everywhere",
      fmt::join(words, ", "), static_cast<double>(made.bytes) / static_cast<double>(uniform.bytes),
      uniform.error > 0 ? made.error / uniform.error : 1.0,
      parallel::text_of(candidates_[static_cast<size_t>(uniform_)]));
}

double CodecChoice::bits() const {
  size_t bytes = 0;
  int64_t values = 0;
  for (const parallel::WireSegment& segment : segments()) {
    bytes += kernels::wire_bytes(segment.format, segment.count);
    values += segment.count;
  }
  return values > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(values) : 0;
}

std::string CodecChoice::state() const {
  std::string text;
  if (chooser_ == CodecChooser::adaprec) {
    text = config_.parallel.codec.fallback;
    if (timed_.empty()) {
      return text;
    }
    text += ";";
  }
  const io::Config open = timed_.empty() ? config_ : with_fastest(config_);
  const auto& parameters = stage_.store().parameters();
  for (size_t p = 0; p < chosen_.size(); ++p) {
    const bool timed =
        fastest_.contains(parameters[p].kept()) && !gradient_format(open, stage_, parameters[p]);
    if (chooser_ == CodecChooser::adaptive || timed) {
      text += fmt::format("{}={};", key_of(parameters[p]),
                          parallel::text_of(candidates_[static_cast<size_t>(chosen_[p])]));
    }
  }
  if (decided_for_ > 0) {
    text += fmt::format("{}?={}:{};", key_of(parameters.front()), compresses_ ? "yes" : "no",
                        decided_for_);
  }
  return text;
}

void CodecChoice::restore(const std::string& state, bool timed) {
  if (chooser_ == CodecChooser::adaprec) {
    const std::vector<std::string>& candidates = requested_.candidates;
    const std::string codec = state.substr(0, state.find(';'));
    if (std::ranges::find(candidates, codec) != candidates.end()) {
      use(codec);
    }
    if (timed_.empty()) {
      return;
    }
  }
  const auto& parameters = stage_.store().parameters();
  const std::map<std::string, std::string> entries = entries_of(state);
  const bool chooses = chooser_ == CodecChooser::adaptive || (!timed_.empty() && timed);
  for (size_t p = 0; chooses && p < chosen_.size(); ++p) {
    const auto entry = entries.find(key_of(parameters[p]));
    const size_t first = timed_.empty() ? 0 : timed_.front();
    for (size_t c = first; entry != entries.end() && c < candidates_.size(); ++c) {
      if (parallel::text_of(candidates_[c]) == entry->second) {
        chosen_[p] = static_cast<int>(c);
        fastest_[parameters[p].kept()] = chosen_[p];
      }
    }
  }
  const auto encodes =
      parameters.empty() ? entries.end() : entries.find(key_of(parameters.front()) + "?");
  if (timed && encodes != entries.end()) {
    const std::string& text = encodes->second;
    const size_t number = text.find(':') + 1;
    std::from_chars(text.data() + number, text.data() + text.size(), decided_for_);
    compresses_ = text.starts_with("yes");
  }
}

}  // namespace espalier::train
