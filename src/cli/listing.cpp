#include "src/cli/listing.h"

#include <algorithm>

#include "src/cli/console.h"
#include "src/cli/output.h"
#include "src/train/pruner.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What data would fix, assumed where the config does not say it.
struct AssumedProblem {
  train::ProblemShape shape;
  std::string note;  ///< empty: nothing was assumed
};

AssumedProblem assume_problem(const io::Config& config) {
  if (config.data.kind == "images") {
    return {{.classes = 10, .features = 784, .rows = 1, .input_dtype = DType::fp32},
            "28 x 28 pixels and 10 classes, as in MNIST: the data were not read"};
  }
  constexpr int64_t kByteTokens = 256;
  constexpr int64_t kGpt2Tokens = 50257;
  AssumedProblem problem{{.classes = kByteTokens,
                          .features = config.model.context,
                          .rows = config.model.context,
                          .input_dtype = DType::int32},
                         ""};
  if (config.data.kind == "bytes") {
    return problem;
  }
  if (config.model.vocabulary > 0) {
    problem.shape.classes = config.model.vocabulary;
  } else if (config.data.kind == "chars") {
    problem.note =
        "a vocabulary of 256, the most that kind \"chars\" can have: the data were not read";
  } else {
    problem.shape.classes = kGpt2Tokens;
    problem.note =
        "GPT-2's vocabulary of 50257: model.vocabulary is not set, the data were not read";
  }
  return problem;
}

std::string network_text(const io::Config& config, int64_t classes) {
  if (config.model.kind == "gpt") {
    return fmt::format("gpt, {} layers, {} heads, width {}, context {}, vocabulary {}",
                       config.model.layers, config.model.heads, config.model.width,
                       config.model.context, classes);
  }
  return fmt::format("mlp, hidden {}, {} classes", fmt::join(config.model.hidden, " "), classes);
}

double final_sparsity(const io::PruningConfig& pruning) {
  return pruning.method == "nm"
             ? 1.0 - static_cast<double>(pruning.n) / static_cast<double>(pruning.m)
             : pruning.sparsity;
}

int64_t micro_batch_of(const io::Config& config) {
  return config.train.micro_batch > 0 ? config.train.micro_batch : config.train.global_batch;
}

/// Bytes by category after a whole dry step, so that scratch of the passes counts, too.
Json memory_of(train::Stage& stage, size_t tape_bytes, int64_t micro_batch) {
  stage.forward_backward({.samples = micro_batch});
  const Arena& arena = stage.stream().arena();
  Json memory;
  size_t total = tape_bytes;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const auto category = static_cast<Memory>(kind);
    if (category == Memory::communication) {
      continue;  // depends on the ranks
    }
    const size_t bytes =
        arena.use(category).now + (category == Memory::activation ? tape_bytes : 0);
    memory[std::string(name_of(category))] = bytes;
  }
  total += arena.total().now;
  memory["all"] = total;
  memory["model_state"] = arena.model_state_bytes();
  memory["model_state_bytes_per_parameter"] = static_cast<double>(arena.model_state_bytes()) /
                                              static_cast<double>(stage.store().total_size());
  return memory;
}

/// How many elements each parameter keeps at the configured sparsity, evenly over layers.
std::vector<int64_t> planned_kept(const sparse::Store& store, const std::vector<bool>& prunable,
                                  double sparsity) {
  std::vector<int64_t> kept;
  for (size_t p = 0; p < prunable.size(); ++p) {
    const int64_t size = store.parameters()[p].size();
    kept.push_back(prunable[p] ? pruning::kept_count(size, sparsity) : size);
  }
  return kept;
}

int64_t count_prunable(const sparse::Store& store, const std::vector<bool>& prunable) {
  int64_t count = 0;
  for (size_t p = 0; p < prunable.size(); ++p) {
    count += prunable[p] ? store.parameters()[p].size() : 0;
  }
  return count;
}

std::string listing_text(const Json& found, const io::Config& config) {
  auto number = [&](const char* key) { return found[key].get<int64_t>(); };
  auto grouped_of = [&](const char* key) { return grouped(number(key)); };
  std::vector<std::vector<std::string>> head{{"network", found["network"].get<std::string>()},
                                             {"parameters", grouped_of("parameters")},
                                             {"prunable", grouped_of("prunable_parameters")}};
  const bool prunes = found.contains("pruned");
  if (prunes) {
    head.push_back({fmt::format("kept at {}", percent(found["sparsity"].get<double>())),
                    grouped_of("kept_parameters")});
  }
  head.push_back(
      {"flops", fmt::format("{:.3g} a step of {} sequences", found["flops_per_step"].get<double>(),
                            config.train.global_batch)});
  size_t width = 0;
  for (const auto& row : head) {
    width = std::max(width, row[0].size());
  }
  std::string text;
  for (const auto& row : head) {
    text += fmt::format("{:<{}}  {}\n", row[0], width, row[1]);
  }
  if (found.contains("assumed")) {
    text += fmt::format("assumed: {}\n", found["assumed"].get<std::string>());
  }
  text += fmt::format("\nmemory of a rank, {}, micro-batch of {}\n", config.train.dtype,
                      number("micro_batch"));
  std::vector<std::vector<std::string>> rows{{"", "dense"}};
  if (prunes) {
    rows.front().push_back(fmt::format("at {}", percent(found["sparsity"].get<double>())));
  }
  for (const auto& [key, dense] : found["dense"].items()) {
    auto shown = [&key = key](const Json& value) {
      return key == "model_state_bytes_per_parameter" ? fmt::format("{:.2f} B", value.get<double>())
                                                      : bytes_text(value.get<double>());
    };
    rows.push_back({key == "model_state_bytes_per_parameter" ? "  a parameter"
                    : key == "model_state"                   ? "model state"
                                                             : key,
                    shown(dense)});
    if (prunes) {
      rows.back().push_back(shown(found["pruned"][key]));
    }
  }
  return text + table(rows);
}

}  // namespace

std::string describe_run(const io::Config& config, train::Trainer& trainer,
                         const parallel::Communicator& comm) {
  train::Stage& stage = trainer.stage();
  const sparse::Store& store = stage.store();
  const std::vector<bool> prunable = train::prunable_of(store, config.pruning);
  const int64_t share = config.train.global_batch / comm.size();
  const int64_t micro = config.train.micro_batch > 0 ? config.train.micro_batch : share;
  return fmt::format(
      "{}\n{:.2f} M parameters, {:.2f} M of them prunable; {} kept now\n"
      "{} rank{} x {} thread{}, {}, {}; {} sequences a step = {} x {} micro-batch{} of {}\n"
      "memory of a rank: model state {}, activations {}",
      network_text(config, stage.problem().classes), 1e-6 * static_cast<double>(store.total_size()),
      1e-6 * static_cast<double>(count_prunable(store, prunable)),
      percent(static_cast<double>(store.total_kept()) / static_cast<double>(store.total_size())),
      comm.size(), comm.size() == 1 ? "" : "s", stage.stream().threads(),
      stage.stream().threads() == 1 ? "" : "s", stage.kernels().name, config.train.dtype,
      config.train.global_batch, comm.size(), share / micro, share == micro ? "" : "es", micro,
      bytes_text(static_cast<double>(trainer.arena().model_state_bytes())),
      bytes_text(static_cast<double>(trainer.arena().use(Memory::activation).now)));
}

Json listing(const io::Config& config) {
  const AssumedProblem problem = assume_problem(config);
  const int64_t micro_batch = micro_batch_of(config);
  const train::PassCost cost = train::measure_pass(config, problem.shape, micro_batch, true);
  Arena arena(true);
  Stream stream(arena, 1);
  train::Stage stage(config, problem.shape, stream, kernels::by_name("dry"),
                     {.micro_batch = micro_batch, .dry = true});
  const std::vector<bool> prunable = train::prunable_of(stage.store(), config.pruning);
  Json found{{"network", network_text(config, problem.shape.classes)},
             {"parameters", stage.store().total_size()},
             {"prunable_parameters", count_prunable(stage.store(), prunable)},
             {"micro_batch", micro_batch},
             {"flops_per_step", cost.flops * static_cast<double>(config.train.global_batch) /
                                    static_cast<double>(micro_batch)},
             {"tape_bytes", cost.tape_bytes},
             {"activations", cost.activations},
             {"dense", memory_of(stage, cost.tape_bytes, micro_batch)}};
  if (!problem.note.empty()) {
    found["assumed"] = problem.note;
  }
  if (config.pruning.method != "none" && config.pruning.method != "file") {
    const double sparsity = final_sparsity(config.pruning);
    stage.store().plan(planned_kept(stage.store(), prunable, sparsity));
    found["sparsity"] = sparsity;
    found["kept_parameters"] = stage.store().total_kept();
    found["pruned"] = memory_of(stage, cost.tape_bytes, micro_batch);
  }
  return found;
}

void print_listing(const io::Config& config, bool json) {
  const Json found = listing(config);
  if (json) {
    print_json(found);
  } else {
    print(listing_text(found, config));
  }
}

}  // namespace espalier::cli
