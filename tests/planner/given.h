#pragma once
// A machine, and a run with everything that a plan reads, for tests of plans.
#include <fstream>

#include "src/planner/plans.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::planner {

inline constexpr const char* kMachine = R"(
name = "test"
source = "invented"
[device]
bandwidth = 1e11
memory = 1e10
product_share = 0.5
memory_share = 0.8
overhead_us = 2
[device.peak]
fp32 = 1e12
bf16 = 4e12
[[level]]
name = "node"
ranks = 4
latency_us = 3
bandwidth = 1e10
[[level]]
name = "cluster"
ranks = 64
latency_us = 10
bandwidth = 1e9
)";

inline Machine machine_of(const std::string& text) {
  const testing::TempDir dir;
  std::ofstream(dir / "m.toml") << text;
  return read_machine(dir / "m.toml");
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// A run with everything it needs.
struct Given {
  explicit Given(const io::Config& wanted)
      : Given(wanted, {.classes = 256,
                       .features = wanted.model.context,
                       .rows = wanted.model.context,
                       .input_dtype = DType::int32}) {}
  Given(io::Config wanted, const train::ProblemShape& shape)
      : config(std::move(wanted)),
        problem(shape),
        layers(model::make_layers(config.model, problem)),
        start(train::initial_masks(config, model::parameters_of(layers))) {}
  PlannedRun run() const { return {config, problem, layers, start}; }

  io::Config config;
  train::ProblemShape problem;
  model::Layers layers;
  train::InitialMasks start;
};

inline io::Config gpt(double sparsity = 0) {
  io::Config config;
  testing::apply_settings(config,
                          "model.layers=4 model.heads=2 model.width=64 model.context=32 "
                          "train.global_batch=16 train.micro_batch=2 sparse.storage=sparse");
  if (sparsity > 0) {
    testing::apply_settings(config, "pruning.method=random pruning.scope=layer pruning.at_step=0");
    config.pruning.sparsity = sparsity;
  }
  return config;
}

}  // namespace espalier::planner
