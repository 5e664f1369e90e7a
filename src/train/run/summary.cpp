#include "src/train/run/summary.h"

#include <sys/resource.h>

#include <algorithm>

#include "io/run/metrics.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "sparse/weight/weight.h"
#include "src/kernels/library_uses.h"

namespace espalier::train {
namespace {

using Json = nlohmann::ordered_json;

/// {now, peak} of an arena by category; the last element: in all.
using ArenaUse = std::array<MemoryUse, kMemoryKinds + 1>;

ArenaUse use_of(const Arena& arena) {
  ArenaUse use;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    use.at(kind) = arena.use(static_cast<Memory>(kind));
  }
  use.back() = arena.total();
  return use;
}

/// Bytes of one rank, trivially copyable.
struct RankMemory {
  ArenaUse arena{}, pinned{};  ///< pinned: host memory beside a device
  size_t peak_rss = 0;
  size_t model_state = 0;
  MemoryByKind planned{};                  ///< of the peak
  size_t process = 0, pinned_planned = 0;  ///< likewise
};

RankMemory memory_of(const Run& run) {
  Arena& arena = run.backend->arena();
  RankMemory memory{.arena = use_of(arena)};
  memory.planned = run.planned.peak;
  memory.process = run.planned.needed();
  memory.pinned_planned = sum_of(run.planned.pinned);
  if (arena.on_device()) {
    memory.pinned = use_of(arena.host());
  }
  memory.model_state = arena.model_state_bytes() + arena.offloaded_bytes();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  memory.peak_rss = static_cast<size_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
  return memory;
}

Json json_of(const MemoryUse& use) { return {{"bytes", use.now}, {"peak", use.peak}}; }

Json json_of(const RankMemory& memory) {
  Json json;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    json[std::string(name_of(static_cast<Memory>(kind)))] = json_of(memory.arena.at(kind));
  }
  json["all"] = json_of(memory.arena.back());
  json["peak_rss"] = memory.peak_rss;
  if (memory.pinned.back().peak > 0) {
    json["pinned"] = json_of(memory.pinned.back());
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      if (const MemoryUse& use = memory.pinned.at(kind); use.peak > 0) {
        json["pinned"][std::string(name_of(static_cast<Memory>(kind)))] = json_of(use);
      }
    }
  }
  return json;
}

void add(ArenaUse& sum, const ArenaUse& one) {
  for (size_t i = 0; i < sum.size(); ++i) {
    sum.at(i).now += one.at(i).now;
    sum.at(i).peak += one.at(i).peak;
  }
}

Json memory_json(const std::vector<RankMemory>& ranks) {
  RankMemory sum;
  Json rows = Json::array();
  for (const RankMemory& rank : ranks) {
    rows.push_back(json_of(rank));
    add(sum.arena, rank.arena);
    add(sum.pinned, rank.pinned);
    sum.peak_rss += rank.peak_rss;
  }
  return {{"total", json_of(sum)}, {"ranks", rows}, {"peak_rss", sum.peak_rss}};
}

/// Adds the results in metrics.jsonl.
void add_curves(const std::filesystem::path& metrics, bool of_images, Json& summary) {
  const std::vector<nlohmann::json> lines = io::read_metrics(metrics);
  const auto column = [](const char* key, std::span<const nlohmann::json> of) {
    std::vector<double> values;
    for (const nlohmann::json& line : of) {
      if (line.contains(key) && line[key].is_number()) {
        values.push_back(line[key].get<double>());
      }
    }
    return values;
  };
  const std::vector<double> losses = column("val_loss", lines);
  summary["final_val_loss"] = losses.empty() ? Json() : Json(losses.back());
  summary["best_val_loss"] = losses.empty() ? Json() : Json(*std::ranges::min_element(losses));
  for (const std::string key : {"val_top1", "val_top5"}) {
    if (const std::vector<double> shares = column(key.c_str(), lines); !shares.empty()) {
      summary["final_" + key] = shares.back();
      summary["best_" + key] = *std::ranges::max_element(shares);
    }
  }
  const char* rate = of_images ? "images_per_s" : "tokens_per_s";
  summary[rate] = io::median(column(rate, io::settled(lines))).value_or(0);
  summary["allreduce_bytes_per_step"] =
      lines.empty() ? int64_t{0} : lines.back().value("allreduce_bytes", int64_t{0});
}

/// The plan of the rank that needs most, comparable with memory.ranks.
Json planned_json(const std::vector<RankMemory>& ranks, const Fit& fit, bool copies_checkpoints) {
  const RankMemory& most = *std::ranges::max_element(
      ranks, {}, [](const RankMemory& rank) { return sum_of(rank.planned); });
  Json planned;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    planned[std::string(name_of(static_cast<Memory>(kind)))] = most.planned.at(kind);
  }
  planned["all"] = sum_of(most.planned);
  planned["process"] = most.process;
  if (copies_checkpoints) {
    planned["checkpoint_copy"] = fit.plan.checkpoint_copy;
  }
  if (most.pinned_planned > 0) {
    planned["pinned"] = most.pinned_planned;
  }
  planned["budget"] = fit.budget > 0 ? Json(fit.budget) : Json();
  planned["micro_batch"] = fit.choice.micro_batch;
  planned["recompute"] = name_of(fit.choice.recompute);
  for (const model::Recompute recompute : fit.by_rank) {
    planned["recompute_by_rank"].push_back(name_of(recompute));
  }
  return planned;
}

/// Bytes of one model copy. Replicas of a stage are equal except for shards, so the largest counts.
size_t model_state_of(const std::vector<RankMemory>& ranks, const parallel::Grid& grid) {
  size_t sum = 0;
  for (int stage = 0; stage < grid.pipeline; ++stage) {
    size_t largest = 0;
    for (int replica = 0; replica < grid.data; ++replica) {
      const auto rank = static_cast<size_t>(grid.rank_of({.stage = stage, .replica = replica}));
      largest = std::max(largest, ranks[rank].model_state);
    }
    sum += largest;
  }
  return sum;
}

/// Times of this rank, a step, longest first.
Json operation_times_json(kernels::OperationTimes& times, int64_t steps) {
  Json rows = Json::array();
  for (const kernels::OperationRow& row : times.rows()) {
    const auto calls = static_cast<double>(row.calls);
    rows.push_back({{"operation", row.text()},
                    {"ms_per_step", row.seconds * 1e3 / static_cast<double>(steps)},
                    {"calls", row.calls},
                    {"gflops_per_s", row.cost.flops * calls / row.seconds * 1e-9},
                    {"gb_per_s", row.cost.bytes * calls / row.seconds * 1e-9}});
  }
  return {{"steps", steps}, {"rows", std::move(rows)}};
}

/// The choices of the run's start (docs/decided.md). `storage` lists the pruned weights of rank 0.
Json choices_of(const Run& run) {
  Json choices = layout_json(run);
  if (run.plan->layout.grid.data > 1) {
    choices["reduction"] = run.data_parallel->reduction();
  }
  choices["storage"] = Json::object();
  for (const sparse::Parameter& parameter : run.stage->store().parameters()) {
    if (!parameter.full()) {
      choices["storage"][parameter.spec.name] = sparse::effective_storage(parameter).name;
    }
  }
  return choices;
}

Json summary_of(const SummaryInput& input, const std::vector<RankMemory>& ranks) {
  const Run& run = input.run;
  const parallel::Grid& grid = run.plan->layout.grid;
  const Stage& stage = *run.stage;
  Json summary;
  add_curves(run.directory->root() / "metrics.jsonl", run.plan->problem.classifies_images(),
             summary);
  summary["steps"] = run.step;
  summary["finished"] = input.finished;
  summary["memory"] = memory_json(ranks);
  summary["planned_peak"] = planned_json(ranks, run.plan->fit, run.copies_checkpoints);
  const size_t state = model_state_of(ranks, grid);
  summary["model_state_bytes"] = state;
  summary["model_state_bytes_per_parameter"] =
      static_cast<double>(state) / static_cast<double>(run.totals.size);
  summary["zero"] = stage.store().options().sharding ? run.config().parallel.zero : 0;
  summary["parameters"] = run.totals.size;
  summary["kept_parameters"] = run.totals.kept;
  summary["prunable_parameters"] = run.totals.sparsity.prunable;
  summary["sparsity"] = run.totals.sparsity.sparsity();
  summary["ranks"] = ranks.size();
  summary["grid"] = {{"data", grid.data}, {"pipeline", grid.pipeline}};
  if (!input.pipeline.is_null()) {
    summary["pipeline"] = input.pipeline;
  }
  summary["backend"] = stage.kernels().name;
  summary["threads"] = run.backend->stream().threads();
  summary["dtype"] = run.config().train.dtype;
  if (const Json uses = kernels::library_uses(); !uses.empty()) {
    summary["libraries"] = uses;
  }
  if (run.operation_times && input.timed_steps > 0) {
    summary["operation_times"] = operation_times_json(*run.operation_times, input.timed_steps);
  }
  summary["activations"] = stage.cost().activations;
  summary["flops_per_micro_batch"] = stage.cost().flops;
  summary["git"] = input.git;
  summary["choices"] = choices_of(run);
  summary["manifest"] = json_of(run.manifest);
  if (!input.codec_choice.empty()) {
    summary["codec_choice"] = input.codec_choice;
  }
  return summary;
}

template <class T>
std::span<const std::byte> object_bytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Json metrics_line(const StepReport& report) {
  Json line{{"step", report.step},
            {"loss", report.loss},
            {"lr", report.lr},
            {"grad_norm", report.grad_norm},
            {"step_ms", report.seconds * 1e3},
            {report.of_images ? "images_per_s" : "tokens_per_s", report.predictions_per_s},
            {"compute_ms", report.times.compute * 1e3},
            {"wait_ms", report.times.waited * 1e3},
            {"collective_ms", report.times.collective * 1e3},
            {"update_ms", report.times.update * 1e3},
            {"comm_bytes_sent", report.bytes_sent},
            {"allreduce_bytes", report.allreduce_bytes},
            {"p2p_bytes", report.p2p_bytes},
            {"sparsity", report.sparsity}};
  if (report.loss_scale != 1) {
    line["loss_scale"] = report.loss_scale;
  }
  if (report.trial_seconds > 0) {
    line["trial_ms"] = report.trial_seconds * 1e3;
  }
  if (report.teacher_loss) {
    line["teacher_loss"] = *report.teacher_loss;
  }
  if (report.mask_distance) {
    line["mask_distance"] = *report.mask_distance;
  }
  if (report.val_loss) {
    line["val_loss"] = *report.val_loss;
  }
  if (report.val_top1) {
    line["val_top1"] = *report.val_top1;
  }
  if (report.val_top5) {
    line["val_top5"] = *report.val_top5;
  }
  return line;
}

Json layout_json(const Run& run) {
  const io::Config& config = run.config();
  const Layout& layout = run.plan->layout;
  Json json{{"ranks", run.comm.size()},
            {"stages", layout.grid.pipeline},
            {"replicas", layout.grid.data},
            {"micro_batch", run.plan->micro_batch()},
            {"recompute", name_of(run.plan->fit.choice.recompute)},
            {"threads", run.backend->stream().threads()},
            {"kernels", run.manifest.kernels},
            {"storage", config.sparse.storage.fallback},
            {"dtype", config.train.dtype}};
  if (layout.pipelined() || layout.asynchronous()) {
    json["schedule"] = layout.schedule.name;
  }
  if (layout.grid.data > 1) {
    json["reduction"] = config.parallel.reduction;
    json["codec"] = config.parallel.codec.fallback;
    json["zero"] = config.parallel.zero;
  }
  return json;
}

void write_summary(const SummaryInput& input) {
  parallel::Communicator& comm = input.run.comm;
  std::vector<RankMemory> ranks(static_cast<size_t>(comm.size()));
  const RankMemory mine = memory_of(input.run);
  parallel::all_gather(comm, object_bytes(mine), std::as_writable_bytes(std::span(ranks)));
  if (comm.rank() == 0) {
    const parallel::Busy busy(comm);
    io::write_json_atomically(input.run.directory->root() / "summary.json",
                              summary_of(input, ranks));
  }
}

void write_traces(const std::filesystem::path& path, const Trace& trace,
                  parallel::Communicator& comm) {
  // Clocks of one machine agree; those of several machines are aligned at this barrier.
  parallel::barrier(comm);
  const double here = now_seconds();
  Json events = Json::array();
  for (const TraceEvent& event : trace.events()) {
    events.push_back(
        {static_cast<int>(event.track), event.name, event.begin - here, event.end - here});
  }
  const std::vector<uint8_t> packed = Json::to_cbor(events);
  const auto gathered = parallel::gather(comm, std::as_bytes(std::span(packed)));
  if (comm.rank() != 0) {
    return;
  }
  std::vector<std::vector<TraceEvent>> all;
  for (const auto& block : gathered) {
    const auto* begin = reinterpret_cast<const uint8_t*>(block.data());
    auto& list = all.emplace_back();
    for (const auto& event : Json::from_cbor(begin, begin + block.size())) {
      list.push_back({static_cast<Track>(event[0].get<int>()), event[1].get<std::string>(),
                      event[2].get<double>(), event[3].get<double>()});
    }
  }
  double first = 0;
  for (const auto& list : all) {
    for (const TraceEvent& event : list) {
      first = std::min(first, event.begin);
    }
  }
  std::vector<io::RankTrace> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ranks.push_back({.rank = static_cast<int>(rank), .events = all[rank], .clock_offset = -first});
  }
  const parallel::Busy busy(comm);
  io::write_trace(path, ranks);
}

}  // namespace espalier::train
