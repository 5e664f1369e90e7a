// SAMO's argument with more ranks than cores: a pruned model has less state, so under one memory
// budget per rank it needs fewer pipeline stages, hence fewer bubbles and messages.
// - The planner chooses the stages.
// - The layers' times are measured, dense and 90 % sparse, on one thread.
// - Ranks (threads) sleep for these times; they exchange activations and sum gradients of the real
//   sizes.
// benchmarks/steps/stages.sh runs the same with real compute, on as many ranks as cores.
//
//   stages_benchmark [RANKS [BUDGET [LINK]]]    4, 200MiB, 0: seconds of latency per message
//
// GPT 6 layers / 6 heads / 384, context 256, bf16, global batch 16, micro-batches of 1. Prints one
// line per run and round, of rank 0, in ms: compute, bubble (the simulator's idle time), p2p
// (waiting beyond it), collective (sum of gradients over replicas).
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "benchmarks/steps/sleeping_work.h"
#include "parallel/reduction/buckets.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_communicator.h"
#include "src/train/memory/planner.h"
#include "src/train/stage/layout.h"

namespace espalier::train {
namespace {

constexpr int kRounds = 3;
constexpr int kSteps = 8;

io::Config config_of(bool pruned, const std::string& budget) {
  io::Config config;
  config.model.layers = config.model.heads = 6;
  config.model.width = 384;
  config.model.context = 256;
  config.train.global_batch = 16;
  config.train.micro_batch = 1;
  config.train.dtype = "bf16";
  config.train.memory_budget = budget;
  config.parallel.pipeline = 0;
  if (pruned) {
    config.pruning.method = "random";
    config.pruning.at_step = 0;
    config.pruning.sparsity = 0.9;
    config.sparse.storage.fallback = "sparse";
  }
  return config;
}

const ProblemShape kProblem{.classes = 65, .features = 256, .rows = 256};

struct Setting {
  std::string name;
  io::Config config;
  InitialMasks start;
  LayerTimes times;
  Plan plan;
};

Setting setting_of(bool pruned, int ranks, const std::string& budget) {
  Setting made{.name = pruned ? "pruned" : "dense", .config = config_of(pruned, budget)};
  const auto layers = model::make_layers(made.config.model, kProblem);
  for (const auto& layer : layers) {
    for (const sparse::ParameterSpec& spec : layer->parameters()) {
      const int64_t size = spec.shape.count();
      made.start.kept.push_back(pruned && spec.prunable ? size / 10 : size);
    }
  }
  made.start.pruned = pruned;
  kernels::Backend backend(kernels::by_name("auto"), 1);
  made.times = measured_times(made.config, kProblem, layers, made.start.kept, 1, backend);
  made.plan = make_plan({.config = made.config,
                         .problem = kProblem,
                         .layers = layers,
                         .start = made.start,
                         .times = made.times,
                         .ranks = ranks});
  for (const std::string& note : made.plan.notes) {
    fmt::print("{}: {}\n", made.name, note);
  }
  return made;
}

std::vector<parallel::StageTimes> stage_times(const Setting& setting) {
  std::vector<parallel::StageTimes> stages;
  const Layout& layout = setting.plan.layout;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    parallel::StageTimes sum{.forward = 0, .backward_input = 0, .backward_weight = 0};
    for (size_t i = layout.first_layer(stage); i < layout.ends[static_cast<size_t>(stage)]; ++i) {
      sum.forward += setting.times.layers[i].forward;
      sum.backward_input += setting.times.layers[i].backward_input;
      sum.backward_weight += setting.times.layers[i].backward_weight;
    }
    stages.push_back(sum);
  }
  return stages;
}

/// Kept elements of a pipeline rank.
int64_t kept_of(const Setting& setting, int rank) {
  const auto layers = model::make_layers(setting.config.model, kProblem);
  int64_t kept = 0;
  for (const size_t number : parameters_of(layers, setting.plan.layout.parts(rank), false)) {
    kept += setting.start.kept[number];
  }
  return kept;
}

struct StepOf {
  double whole = 0, compute = 0, waited = 0, collective = 0;  ///< seconds
  int64_t p2p_bytes = 0, allreduce_bytes = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

StepOf measure(const Setting& setting, int count, double latency) {
  const Layout& layout = setting.plan.layout;
  const size_t message =
      static_cast<size_t>(setting.config.model.width * kProblem.features) * sizeof(float);
  StepOf result;
  parallel::run_ranks(
      count,
      [&](parallel::Communicator& comm) {
        Arena arena;
        Stream stream(arena, 1);
        Ranks ranks(comm, layout.grid);
        const auto boundaries = static_cast<size_t>(layout.stages()) - 1;
        parallel::PipelineRunner runner(
            ranks.pipeline(), stream,
            layout.messages(std::vector<size_t>(boundaries, message), parallel::CarrierKind::host));
        parallel::SleepingWork work(stage_times(setting));
        parallel::HostBuckets buckets(ranks.data(), arena);
        const Buffer gradient = arena.allocate(Memory::gradient, "gradient", DType::bf16,
                                               Shape{kept_of(setting, ranks.stage())});
        std::vector<double> whole, waited, collective;
        for (int step = 0; step < kSteps; ++step) {
          parallel::barrier(comm);
          const auto before = comm.sent(parallel::Traffic::allreduce).bytes;
          const auto p2p_before = comm.sent(parallel::Traffic::point_to_point).bytes;
          const double begin = now_seconds();
          runner.run(layout.schedule, work);
          const double computed = now_seconds();
          buckets.begin(parallel::all_reduce_step(gradient.tensor(), {}));
          buckets.finish();
          parallel::barrier(comm);
          const double end = now_seconds();
          whole.push_back(end - begin);
          waited.push_back(runner.times().waited);
          collective.push_back(end - computed);
          if (comm.rank() == 0) {
            result.compute = runner.times().compute;
            result.allreduce_bytes = comm.sent(parallel::Traffic::allreduce).bytes - before;
            result.p2p_bytes = comm.sent(parallel::Traffic::point_to_point).bytes - p2p_before;
          }
        }
        if (comm.rank() == 0) {
          result.whole = median(whole);
          result.waited = median(waited);
          result.collective = median(collective);
        }
      },
      {.latency = latency});
  return result;
}

void report(int round, const Setting& setting, int ranks, double latency) {
  const Layout& layout = setting.plan.layout;
  const auto timeline = simulate(layout.schedule, parallel::Costs{.stages = stage_times(setting)});
  const StepOf step = measure(setting, ranks, latency);
  // If rank 0 finishes before the others, its wait at the end counts as bubble, too.
  const double bubble = timeline.idle(0);
  const double waits = step.whole - step.compute;
  const double collective = layout.grid.data > 1 ? step.collective : 0;
  const double tokens =
      static_cast<double>(setting.config.train.global_batch * kProblem.rows) / step.whole;
  fmt::print(
      "round={} run={} stages={} replicas={} layers={} tokens_per_s={:.0f} step_ms={:.1f} "
      "compute_ms={:.1f} bubble_ms={:.1f} p2p_ms={:.1f} collective_ms={:.1f} p2p_bytes={} "
      "allreduce_bytes={}\n",
      round, setting.name, layout.grid.pipeline, layout.grid.data, fmt::join(layout.ends, ","),
      tokens, step.whole * 1e3, step.compute * 1e3, bubble * 1e3,
      std::max(waits - bubble - collective, 0.0) * 1e3, collective * 1e3, step.p2p_bytes,
      step.allreduce_bytes);
  std::fflush(stdout);
}

}  // namespace
}  // namespace espalier::train

int main(int argc, char** argv) {
  using namespace espalier::train;
  try {
    const int ranks = argc > 1 ? std::stoi(argv[1]) : 4;
    const std::string budget = argc > 2 ? argv[2] : "200MiB";
    const double latency = argc > 3 ? std::stod(argv[3]) : 0;
    const std::vector<Setting> settings{setting_of(false, ranks, budget),
                                        setting_of(true, ranks, budget)};
    for (int round = 1; round <= kRounds; ++round) {
      for (const Setting& setting : settings) {
        report(round, setting, ranks, latency);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
