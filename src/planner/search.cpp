#include "src/planner/search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <set>
#include <tuple>
#include <utility>

#include "parallel/pipeline/schedule/registry.h"
#include "sparse/store/registry.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/train/memory/budget.h"

namespace espalier::planner {
namespace {

constexpr size_t kBest = 10;
constexpr std::array kReductions{"sra", "ring", "hierarchical"};
constexpr std::array kCodecs{"fp32", "maxmin:8", "maxmin:4"};
/// Reductions of a run differ by fewer bytes of memory.
constexpr double kMostStaging = 128 << 20;
constexpr std::array<int64_t, 2> kChunks{2, 4};  // stages a rank, of schedules that support several

/// The first sentence of a message, with N for its numbers: one reason for many layouts.
std::string short_reason(const std::string& message) {
  static const std::regex kNumber("\\b[0-9]+\\b");
  return std::regex_replace(message.substr(0, message.find_first_of(":;\n")), kNumber, "N");
}

/// The choices that decide the pipeline of a layout.
struct Shape {
  std::string storage;
  model::Recompute recompute = model::Recompute::none;
  int64_t micro_batch = 1;
  int stages = 1;
  const parallel::ScheduleEntry* schedule = nullptr;
  int64_t chunks = 1;
  std::string_view order;  ///< of ranks
  double bound = 0;        ///< no step is shorter
};

/// Ascending.
std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      all.push_back(divisor);
    }
  }
  return all;
}

std::vector<model::Recompute> recomputes_of(const io::Config& config) {
  return config.train.recompute == "auto"
             ? std::vector{model::Recompute::none, model::Recompute::selective,
                           model::Recompute::full}
             : std::vector{model::recompute_by_name(config.train.recompute)};
}

class Search {
 public:
  Search(const PlannedRun& run, const Machine& machine, int devices, const SearchOptions& options)
      : run_(run),
        predictor_(run, machine, devices),
        config_(run.config),
        divided_by_messages_(options.divided_by_messages),
        several_units_(machine.levels.front().ranks > 1 && devices > machine.levels.front().ranks) {
    const std::string& budget = config_.train.memory_budget;
    const double wanted =
        budget.empty() ? machine.memory : static_cast<double>(config::parse_bytes(budget));
    limit_ = std::min(wanted, machine.memory) * run.tensor.ways;
    // A plan that must fit a budget also finds all changes that would help, which takes long.
    config_.train.memory_budget.clear();
    config_.parallel.partition.clear();
    storages_ = storages_of(run);
    recomputes_ = recomputes_of(run.config);
    codecs_ = {config_.parallel.codec.fallback};
    if (options.codecs && config_.parallel.codec.fallback == "fp32") {
      codecs_.assign(kCodecs.begin(), kCodecs.end());
    }
  }

  SearchResult run() {
    std::vector<Shape> shapes = all_shapes();
    std::ranges::stable_sort(shapes, {}, &Shape::bound);
    for (const Shape& shape : shapes) {
      try_shape(shape);
    }
    if (divided_by_messages_) {
      move_all_boundaries();
    }
    explain_impossible();
    if (found_.best.empty()) {
      find_least_memory();
    }
    return std::move(found_);
  }

 private:
  using Reasons = std::map<std::string, size_t>;

  /// The schedules of several stages, with their stages a rank: the config's, or all.
  std::vector<std::pair<const parallel::ScheduleEntry*, int64_t>> schedules() const {
    const std::string& wanted = run_.config.parallel.schedule;
    std::vector<std::pair<const parallel::ScheduleEntry*, int64_t>> all;
    for (const parallel::ScheduleEntry* entry : parallel::schedules()) {
      if (!entry->synchronous || entry->by_arrival() ||
          (wanted != "auto" && wanted != entry->name)) {
        continue;
      }
      if (entry->chunks > 0) {
        all.emplace_back(entry, entry->chunks);
        continue;
      }
      for (const int64_t chunks : kChunks) {
        all.emplace_back(entry, chunks);
      }
    }
    check(!all.empty(),
          "--search compares schedules with a common step in a fixed order, and "
          "parallel.schedule = \"{}\" has none: set it to \"auto\", or search without it",
          wanted);
    return all;
  }

  std::vector<Shape> all_shapes() {
    const auto layers = static_cast<int>(run_.layers.size());
    const auto of_stages = schedules();
    std::map<const parallel::ScheduleEntry*, bool> deferred;
    for (const auto& [entry, chunks] : of_stages) {
      deferred[entry] = defers_weights(parallel::make_schedule(
          entry->name, {.ranks = 2, .micro_batches = 4, .chunks = static_cast<int>(chunks)}));
    }
    std::vector<Shape> shapes;
    for (int stages = 1; stages <= std::min(predictor_.ranks(), layers); ++stages) {
      const int replicas = predictor_.ranks() / stages;
      if (predictor_.ranks() % stages != 0) {
        continue;
      }
      if (config_.train.global_batch % replicas != 0) {
        const size_t count = variants(replicas).size();
        found_.tried += count;
        refuse(stages, count, "replicas do not divide the global batch");
        continue;
      }
      const int64_t share = config_.train.global_batch / replicas;
      for (const std::string& storage : storages_) {
        for (const model::Recompute recompute : recomputes_) {
          for (const int64_t micro_batch : divisors_of(share)) {
            Shape shape{.storage = storage,
                        .recompute = recompute,
                        .micro_batch = micro_batch,
                        .stages = stages,
                        .order = run_.config.parallel.rank_order};
            if (stages == 1) {
              shape.bound = bound_of(shape, share, false);
              shapes.push_back(shape);
              continue;
            }
            for (const auto& [entry, chunks] : of_stages) {
              shape.schedule = entry;
              shape.chunks = chunks;
              shape.bound = bound_of(shape, share, deferred[entry]);
              for (const std::string_view order : orders(replicas)) {
                shape.order = order;
                shapes.push_back(shape);
              }
            }
          }
        }
      }
    }
    return shapes;
  }

  /// Orders of ranks whose links may differ.
  std::vector<std::string_view> orders(int replicas) const {
    if (replicas == 1 || !several_units_) {
      return {run_.config.parallel.rank_order};
    }
    return {name_of(parallel::RankOrder::replicas_first),
            name_of(parallel::RankOrder::stages_first)};
  }

  const NetworkTimes& network_of(const Shape& shape, bool deferred) {
    config_.sparse.storage.fallback = shape.storage;
    return predictor_.network(
        config_, {.micro_batch = shape.micro_batch, .recompute = shape.recompute}, deferred);
  }

  double bound_of(const Shape& shape, int64_t share, bool deferred) {
    double sum = 0;
    double most = 0;
    for (const parallel::StageTimes& layer : network_of(shape, deferred).passes) {
      sum += layer.forward + layer.backward();
      most = std::max(most, layer.forward + layer.backward());
    }
    return static_cast<double>(share / shape.micro_batch) * std::max(sum / shape.stages, most);
  }

  /// The choices that layouts of one shape differ in.
  struct Variant {
    int64_t zero;
    std::string reduction, codec;
  };
  std::vector<Variant> variants(int replicas) const {
    if (replicas == 1) {
      return {{run_.config.parallel.zero, run_.config.parallel.reduction, codecs_.front()}};
    }
    std::vector<Variant> all;
    for (const std::string& codec : codecs_) {
      for (const int64_t zero : {0, 1}) {
        for (const char* reduction : kReductions) {
          // GPUs sum among themselves by sra alone.
          if (run_.config.parallel.device_link != "nccl" || reduction == kReductions.front()) {
            all.push_back({zero, reduction, codec});
          }
        }
      }
    }
    return all;
  }

  /// Sets the config of a shape. Returns its layout; null: refused.
  train::Layout* lay_out(const Shape& shape, size_t count) {
    config_.sparse.storage.fallback = shape.storage;
    config_.train.micro_batch = shape.micro_batch;
    config_.train.recompute = model::name_of(shape.recompute);
    config_.parallel.pipeline = shape.stages;
    config_.parallel.schedule = shape.schedule != nullptr ? shape.schedule->name : "1f1b";
    config_.parallel.virtual_stages = shape.chunks;
    config_.parallel.rank_order = shape.order;
    config_.parallel.partition.clear();
    const int64_t micro_batches =
        config_.train.global_batch / (predictor_.ranks() / shape.stages) / shape.micro_batch;
    const auto key = std::tuple(shape.stages, config_.parallel.schedule, shape.chunks,
                                config_.parallel.rank_order, micro_batches);
    auto known = layouts_.find(key);
    if (known == layouts_.end()) {
      Made made;
      try {
        made.layout = train::make_layout(config_, predictor_.ranks(), micro_batches,
                                         train::estimated_times(config_, run_.problem));
      } catch (const Failure& failure) {
        made.reason = short_reason(failure.what());
      }
      known = layouts_.emplace(key, std::move(made)).first;
    }
    Made& made = known->second;
    if (!made.layout) {
      refuse(shape.stages, count, made.reason);
      return nullptr;
    }
    return &*made.layout;
  }

  void try_shape(const Shape& shape) {
    const std::vector<Variant> all = variants(predictor_.ranks() / shape.stages);
    found_.tried += all.size();
    if (!improves(shape.stages, shape.bound)) {
      found_.slower += all.size();
      return;
    }
    train::Layout* known = lay_out(shape, all.size());
    if (known == nullptr) {
      return;
    }
    train::Layout& layout = *known;
    const NetworkTimes& network =
        network_of(shape, shape.schedule != nullptr && defers_weights(layout.schedule));
    Cuts cuts;
    cuts.by_computing = layout.ends;
    if (shape.stages > 1) {
      cuts.by_computing = train::balance_ranks(computing_times(network), layout.schedule);
      layout.ends = cuts.by_computing;
    }
    const std::vector<std::vector<size_t>> with_small_messages =
        divided_by_messages_ && shape.stages > 1 ? divisions_with_small_messages(layout, network)
                                                 : std::vector<std::vector<size_t>>();
    for (const Variant& variant : all) {
      set(variant);
      for (const std::vector<size_t>& ends : with_small_messages) {
        layout.ends = ends;
        ++found_.tried;
        try_layout(shape, layout, network, cuts);
      }
      layout.ends = cuts.by_computing;
      try_layout(shape, layout, network, cuts);
      if (may_gain_by_exchange(shape, cuts)) {
        layout.ends = train::balance_ranks(predictor_.layer_seconds(config_, layout, network),
                                           layout.schedule);
        if (layout.ends != cuts.by_computing) {
          ++found_.tried;
          try_layout(shape, layout, network, cuts);
        }
      }
    }
  }

  static std::vector<double> computing_times(const NetworkTimes& network) {
    std::vector<double> times;
    for (const parallel::StageTimes& layer : network.passes) {
      times.push_back(layer.forward + layer.backward());
    }
    return times;
  }

  /// Divisions by computing time with smaller messages than that of the layout: one for each size
  /// of a layer's output, cut only behind outputs of at most that size.
  static std::vector<std::vector<size_t>> divisions_with_small_messages(
      const train::Layout& layout, const NetworkTimes& network) {
    const auto bytes_behind = [&](size_t layer) { return network.operations[layer].output_bytes; };
    std::set<size_t> sizes;
    for (size_t i = 0; i + 1 < network.operations.size(); ++i) {
      sizes.insert(bytes_behind(i));
    }
    size_t largest = 0;
    for (size_t i = 0; i + 1 < layout.ends.size(); ++i) {
      largest = std::max(largest, bytes_behind(layout.ends[i] - 1));
    }
    const std::vector<double> times = computing_times(network);
    std::vector<std::vector<size_t>> all;
    for (const size_t size : sizes) {
      if (size >= largest) {
        break;
      }
      std::vector<double> group_times;  // layers between possible cuts
      std::vector<size_t> group_ends;
      double sum = 0;
      for (size_t i = 0; i < times.size(); ++i) {
        sum += times[i];
        if (i + 1 == times.size() || bytes_behind(i) <= size) {
          group_times.push_back(std::exchange(sum, 0));
          group_ends.push_back(i + 1);
        }
      }
      if (group_ends.size() < layout.ends.size()) {
        continue;
      }
      std::vector<size_t> ends = train::balance_ranks(group_times, layout.schedule);
      for (size_t& end : ends) {
        end = group_ends[end - 1];
      }
      all.push_back(std::move(ends));
    }
    return all;
  }

  /// Results that the layouts of one shape share. A cut divides the layers among the stages.
  struct Cuts {
    std::vector<size_t> by_computing;  ///< ends of the stages, of equal computing times
    std::map<std::vector<size_t>, PipelineTimes> pipelines;   ///< by the ends of the stages
    std::set<std::tuple<int64_t, std::string, double>> seen;  ///< reductions of equal steps
  };

  /// Whether a division by computing, reduction and update is tried: the one by computing is not
  /// too large, and would be among the results if it exchanged nothing.
  bool may_gain_by_exchange(const Shape& shape, const Cuts& cuts) const {
    if (shape.stages == 1 || shape.stages == predictor_.ranks()) {
      return false;
    }
    const auto first = cuts.pipelines.find(cuts.by_computing);
    return first != cuts.pipelines.end() && improves(shape.stages, first->second.end);
  }

  void try_layout(const Shape& shape, const train::Layout& layout, const NetworkTimes& network,
                  Cuts& cuts) {
    const double least = predictor_.least_memory(config_, layout, network);
    const bool usual = layout.ends == cuts.by_computing;
    if (least > limit_ || (usual && known_too_large(shape))) {
      note_bound(shape, layout, least);
      refuse(shape.stages, 1, too_large());
      return;
    }
    auto pipeline = cuts.pipelines.find(layout.ends);
    if (pipeline == cuts.pipelines.end()) {
      pipeline =
          cuts.pipelines.emplace(layout.ends, predictor_.pipeline(config_, layout, network)).first;
    }
    StepPrediction step;
    predictor_.add_step(config_, layout, network, pipeline->second, step);
    const auto same = std::tuple(config_.parallel.zero, config_.parallel.codec.fallback, step.step);
    if (!improves(shape.stages, step.step) || cuts.seen.contains(same)) {
      ++found_.slower;
      return;
    }
    if (plan(shape, layout, usual)) {
      cuts.seen.insert(same);
    }
  }

  /// Whether it fits, with the memory that a run would plan. `usual`: larger micro-batches need
  /// more memory.
  bool plan(const Shape& shape, const train::Layout& layout, bool usual) {
    if (shape.stages > 1) {
      config_.parallel.partition = layout.partition();
    }
    try {
      config::validate(config_);
      StepPrediction step = predictor_.predict(config_);
      const train::MemoryPlan& memory = step.plan.fit.plan;
      if (const auto needed = static_cast<double>(memory.needed()); needed > limit_) {
        note_size(shape_text(shape), config_, needed);
        const size_t messages = memory.peak.at(static_cast<size_t>(Memory::communication));
        const double staging = std::min(static_cast<double>(messages), kMostStaging);
        if (usual && needed - staging > limit_) {  // too large with each reduction and codec
          too_large_.insert(memory_key(shape));
        }
        refuse(shape.stages, 1, too_large());
        return false;
      }
      keep(shape.stages, {.config = config_, .prediction = std::move(step)});
      return true;
    } catch (const Failure& failure) {
      refuse(shape.stages, 1, short_reason(failure.what()));
      return false;
    }
  }

  void keep(int64_t stages, Candidate candidate) {
    const auto known = found_.by_stages.find(stages);
    if (known == found_.by_stages.end() ||
        candidate.prediction.step < known->second.prediction.step) {
      found_.by_stages[stages] = candidate;
    }
    const auto place =
        std::ranges::upper_bound(found_.best, candidate.prediction.step, {},
                                 [](const Candidate& other) { return other.prediction.step; });
    found_.best.insert(place, std::move(candidate));
    if (found_.best.size() > kBest) {
      found_.best.pop_back();
      ++found_.slower;
    }
  }

  /// Improves the ten fastest layouts, and the fastest with each number of stages.
  void move_all_boundaries() {
    std::vector<Candidate> starts = found_.best;
    for (const auto& [stages, candidate] : found_.by_stages) {
      if (!is_among_best(candidate.config)) {
        starts.push_back(candidate);
      }
    }
    for (Candidate& start : starts) {
      if (start.config.parallel.pipeline > 1) {
        move_boundaries(start);
      }
    }
  }

  void move_boundaries(const Candidate& start) {
    const train::Plan& plan = start.prediction.plan;
    train::Layout layout = plan.layout;
    config_ = start.config;
    const NetworkTimes& network =
        predictor_.network(config_, plan.fit.choice, defers_weights(layout.schedule));
    double shortest = start.prediction.step;
    bool any = false;
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i + 1 < layout.ends.size(); ++i) {
        const size_t first = i == 0 ? 1 : layout.ends[i - 1] + 1;
        for (size_t end = first; end < layout.ends[i + 1] && may_simulate(layout); ++end) {
          const size_t before = std::exchange(layout.ends[i], end);
          StepPrediction step;
          predictor_.add_step(config_, layout, network,
                              predictor_.pipeline(config_, layout, network), step);
          constexpr double kWorthMoving = 0.999;
          if (step.step < kWorthMoving * shortest &&
              predictor_.least_memory(config_, layout, network) <= limit_) {
            shortest = step.step;
            any = again = true;
          } else {
            layout.ends[i] = before;
          }
        }
      }
    }
    if (any) {
      ++found_.tried;
      config_.parallel.partition = layout.partition();
      replace(start);
    }
  }

  /// Replaces `slower` by the layout of config_, which differs in its partition, if that fits.
  void replace(const Candidate& slower) {
    StepPrediction step = predictor_.predict(config_);
    if (static_cast<double>(step.plan.fit.plan.needed()) > limit_) {
      refuse(config_.parallel.pipeline, 1, too_large());
      return;
    }
    found_.slower += std::erase_if(found_.best, [&](const Candidate& one) {
      return config::changes(one.config, slower.config).empty();
    });
    if (is_among_best(config_)) {  // from another start
      ++found_.slower;
      return;
    }
    keep(config_.parallel.pipeline, {.config = config_, .prediction = std::move(step)});
  }

  bool is_among_best(const io::Config& config) const {
    return std::ranges::any_of(found_.best, [&](const Candidate& one) {
      return config::changes(one.config, config).empty();
    });
  }

  /// Adds the actions of one more simulation. False once a search has simulated as many as take
  /// about a second.
  bool may_simulate(const train::Layout& layout) {
    moved_actions_ += int64_t{3} * layout.stages() * layout.micro_batches();
    return moved_actions_ <= 4'000'000;
  }

  /// Whether a layout with this step would be among the results.
  bool improves(int stages, double step) const {
    if (found_.best.size() < kBest || step < found_.best.back().prediction.step) {
      return true;
    }
    const auto known = found_.by_stages.find(stages);
    return known == found_.by_stages.end() || step < known->second.prediction.step;
  }

  void set(const Variant& variant) {
    config_.parallel.zero = variant.zero;
    config_.parallel.reduction = variant.reduction;
    config_.parallel.codec.fallback = variant.codec;
  }

  /// The choices that decide the memory of a layout, but for kMostStaging; the last is its
  /// micro-batch.
  using MemoryKey =
      std::tuple<std::string, std::string, int64_t, int, std::string, int64_t, int64_t>;
  MemoryKey memory_key(const Shape& shape) const {
    return {shape.storage,    config_.train.recompute,   config_.parallel.zero,
            shape.stages,     config_.parallel.schedule, shape.chunks,
            shape.micro_batch};
  }
  /// Whether the same with an equal or a smaller micro-batch was too large.
  bool known_too_large(const Shape& shape) const {
    const MemoryKey key = memory_key(shape);
    MemoryKey least = key;
    std::get<6>(least) = 0;
    const auto known = too_large_.lower_bound(least);
    return known != too_large_.end() && *known <= key;
  }
  std::string too_large() const {
    return fmt::format("a rank needs more than {}", train::size_text(static_cast<size_t>(limit_)));
  }

  std::string shape_text(const Shape& shape) const {
    return fmt::format(
        "{} stage{}, micro-batches of {}, storage {}, recompute {}, parallel.zero {}", shape.stages,
        shape.stages == 1 ? "" : "s", shape.micro_batch, shape.storage, config_.train.recompute,
        config_.parallel.zero);
  }

  void note_size(const std::string& text, const io::Config& config, double bytes) {
    if (found_.least_memory == 0 || bytes < found_.least_memory) {
      found_.least_memory = bytes;
      found_.least_shape = text;
      found_.least_config = config;
    }
  }

  /// Keeps the 64 layouts with the smallest bounds of their memory, of those that are too large.
  void note_bound(const Shape& shape, const train::Layout& layout, double bound) {
    constexpr size_t kMost = 64;
    if (smallest_.size() == kMost && bound >= smallest_.rbegin()->first) {
      return;
    }
    io::Config config = config_;
    if (shape.stages > 1) {
      config.parallel.partition = layout.partition();
    }
    smallest_.emplace(bound, std::pair(std::move(config), shape_text(shape)));
    if (smallest_.size() > kMost) {
      smallest_.erase(std::prev(smallest_.end()));
    }
  }

  /// Plans the memory of these layouts, until the bounds of the others are larger.
  void find_least_memory() {
    for (const auto& [bound, layout] : smallest_) {
      if (found_.least_memory > 0 && bound >= found_.least_memory) {
        return;
      }
      try {
        config::validate(layout.first);
        note_size(layout.second, layout.first,
                  static_cast<double>(predictor_.predict(layout.first).plan.fit.plan.needed()));
      } catch (const Failure&) {  // impossible for another reason
      }
    }
  }

  void refuse(int64_t stages, size_t count, const std::string& why) {
    found_.refused[why] += count;
    by_stages_[stages][why] += count;
  }

  void explain_impossible() {
    for (const auto& [stages, reasons] : by_stages_) {
      if (!found_.by_stages.contains(stages)) {
        found_.impossible[stages] = std::ranges::max_element(reasons, {}, [](const auto& one) {
                                      return one.second;
                                    })->first;
      }
    }
  }

  struct Made {
    std::optional<train::Layout> layout;
    std::string reason;
  };

  const PlannedRun& run_;
  StepPredictor predictor_;
  io::Config config_;  ///< of the layout that is tried
  bool divided_by_messages_;
  int64_t moved_actions_ = 0;  ///< of layouts that moved boundaries
  bool several_units_;         ///< the links between ranks differ
  double limit_ = 0;           ///< bytes of a rank
  std::vector<std::string> storages_, codecs_;
  std::vector<model::Recompute> recomputes_;
  std::map<std::tuple<int, std::string, int64_t, std::string, int64_t>, Made> layouts_;
  std::set<MemoryKey> too_large_;
  /// By the bound of their memory: configs and texts.
  std::multimap<double, std::pair<io::Config, std::string>> smallest_;
  std::map<int64_t, Reasons> by_stages_;
  SearchResult found_;
};

/// Of a search without a layout that fits: what the smallest needs, and what would help.
std::string smallest_text(const PlannedRun& run, const Machine& machine, int ranks,
                          const SearchResult& found) {
  const auto size = [](double bytes) { return train::size_text(static_cast<size_t>(bytes)); };
  const double device = machine.memory * run.tensor.ways;
  std::string text =
      fmt::format("The smallest needs {} ({})", size(found.least_memory), found.least_shape);
  const std::string& budget = run.config.train.memory_budget;
  if (!budget.empty() && static_cast<double>(config::parse_bytes(budget)) < device) {
    if (found.least_memory <= device) {
      return text + fmt::format(": raise or remove train.memory_budget = \"{}\", a device has {}",
                                budget, size(device));
    }
    text += fmt::format(", more than a device's {}", size(device));
  }
  StepPredictor predictor(run, machine, ranks);
  const StepPrediction least = predictor.predict(*found.least_config);
  return text + ". " + predictor.ways_to_fit(*found.least_config, least.plan, device) +
         "; more ranks";
}

}  // namespace

std::vector<std::string> storages_of(const PlannedRun& run) {
  const std::string& wanted = run.config.sparse.storage.fallback;
  if (wanted != "auto" || (!run.config.pruning.prunes() && !run.start.pruned)) {
    return {wanted};
  }
  std::vector<std::string> all;
  for (const sparse::Storage* storage : sparse::storages()) {
    // Predicted times are the same with kept forms.
    if (!storage->keeps_forms && (!storage->whole_blocks || run.config.sparse.block > 0)) {
      all.emplace_back(storage->name);
    }
  }
  return all;
}

SearchResult search_layouts(const PlannedRun& run, const Machine& machine, int ranks,
                            const SearchOptions& options) {
  SearchResult found = Search(run, machine, ranks, options).run();
  if (found.best.empty()) {
    const auto most = std::ranges::max_element(found.refused, {},
                                               [](const auto& reason) { return reason.second; });
    fail("none of {} layouts over {} ranks is possible; for {} of them: {}{}", found.tried, ranks,
         most->second, most->first,
         found.least_memory > 0 ? ". " + smallest_text(run, machine, ranks, found) : "");
  }
  return found;
}

}  // namespace espalier::planner
