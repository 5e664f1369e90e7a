// Parametrization supar in whole runs: how far an update moves the logits depends neither on width
// nor on density; pipelines, ZeRO-1 and resumes change no bit while the density changes.
#include <algorithm>
#include <cmath>

#include "src/core/rng.h"
#include "src/train/stage/stage.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::train::parametrization_run_test {
namespace {

using namespace espalier::testing;

constexpr int64_t kVocabulary = 29;
constexpr int64_t kContext = 16;
constexpr int64_t kSamples = 8;

/// The mean distance that 4 updates move the logits of one sequence.
double movement(const std::string& parametrization, int64_t width, double density) {
  io::Config config;
  apply_settings(config, fmt::format("model.layers=2 model.width={}", width));
  config.model.heads = width / 16;
  config.model.context = kContext;
  config.train.parametrization = parametrization;
  config.train.base_width = 64;
  config.optimizer.weight_decay = config.optimizer.clip = 0;
  Arena arena;
  Stream stream(arena, 1);
  const ProblemShape problem{.classes = kVocabulary, .features = kContext, .rows = kContext};
  std::vector<sparse::ParameterSpec> specs =
      model::parameters_of(model::make_layers(config.model, problem));
  Stage stage(config, problem, stream, kernels::by_name("auto"),
              {.micro_batch = kSamples, .masks = [&](size_t p) {
                 sparse::Mask mask(specs[p].shape.count());
                 const uint64_t key = mix(7, p);
                 for (int64_t i = 0; specs[p].prunable && i < mask.size(); ++i) {
                   mask.set(
                       i, static_cast<double>(mix(key, static_cast<uint64_t>(i)) >> 11) * 0x1p-53 <
                              density);
                 }
                 return mask;
               }});
  stage.store().initialise(1, [&](const sparse::Parameter& parameter) {
    return stage.parametrization().factors_of(parameter).initial_scale;
  });
  std::vector<int32_t> sequence(kContext);
  for (size_t i = 0; i < sequence.size(); ++i) {
    sequence[i] = static_cast<int32_t>(i * i % kVocabulary);
  }
  const auto logits = [&] {
    const auto found = stage.predict(sequence).span<float>();
    return std::vector<float>(found.begin(), found.end());
  };
  const std::vector<float> before = logits();
  for (int64_t step = 0; step < 4; ++step) {
    const auto inputs = stage.inputs(kSamples).span<int32_t>();
    const auto targets = stage.targets(kSamples).span<int32_t>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>((i * i + i / kContext) % kVocabulary);
      targets[i] = static_cast<int32_t>(((i + 1) * (i + 1) + i / kContext) % kVocabulary);
    }
    stage.forward_backward({.samples = kSamples});
    EXPECT_TRUE(stage.result(stage.update(step, 2e-3)).applied);
  }
  const std::vector<float> after = logits();
  double sum = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    sum += std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i]));
  }
  return sum / static_cast<double>(before.size());
}

/// The largest movement over widths and densities ÷ the least one.
double spread(const std::string& parametrization) {
  double most = 0;
  double least = INFINITY;
  for (const auto& [width, density] :
       {std::pair<int64_t, double>{64, 1}, {256, 1}, {64, 0.1}, {256, 0.1}}) {
    const double moved = movement(parametrization, width, density);
    most = std::max(most, moved);
    least = std::min(least, moved);
  }
  return most / least;
}

using ParametrizationRuns = RunTest;

TEST_F(ParametrizationRuns, AnUpdateMovesLogitsAlikeInEveryWidthAndDensity) {
  EXPECT_LT(spread("supar"), 1.7);
  EXPECT_GT(spread("standard"), 3);
}

/// The density falls in the run, so that factors change.
io::Config pruned_gradually(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  prune_gradually(config);
  apply_settings(config, "train.parametrization=supar train.base_width=16");
  return config;
}

TEST_F(ParametrizationRuns, ChangeResultsAndResumeWithoutABreak) {
  config = pruned_gradually(dir);
  const Outcome whole = run(config);
  EXPECT_EQ(run_with_breaks(config, 1, {6}), whole);
  config.train.parametrization = "standard";
  EXPECT_NE(run(config), whole);
}

TEST_F(ParametrizationRuns, FullDensityAtTheBaseWidthIsStandard) {
  const Outcome standard = run(config);
  config.train.parametrization = "supar";
  config.train.base_width = config.model.width;
  EXPECT_EQ(run(config), standard);
}

TEST_F(ParametrizationRuns, RanksAndStagesChangeNoBit) {
  config = pruned_gradually(dir);
  config.train.micro_batch = 3;
  const Outcome serial = run(config);
  io::Config stages = config;
  in_two_stages(stages, "1f1b");
  EXPECT_EQ(run(stages, 2).losses, serial.losses);
  const Outcome replicas = run(config, 2);
  config.parallel.zero = 1;
  EXPECT_EQ(run(config, 2), replicas);
}

/// A run that starts pruned says what the mask changes by default, and what bounds its first steps.
TEST_F(ParametrizationRuns, SaysWhatFollowsFromTheMask) {
  const auto notes_of = [&] {
    std::string notes;
    run(config, 1, notes);
    return notes;
  };
  EXPECT_THAT(notes_of(), Not(HasSubstr("pruned parameters")));
  apply_settings(config,
                 "pruning.method=random pruning.at_step=0 pruning.sparsity=0.75 "
                 "sparse.index=bitmap optimizer.warmup_steps=7 optimizer.clip=0.5");
  EXPECT_THAT(notes_of(),
              AllOf(HasSubstr("factors of train.parametrization = \"supar-lr\""),
                    HasSubstr("pruned parameters: index bitmap (8); learning rate rises over 7 "
                              "steps, gradient norm at most 0.5")));
  config.optimizer.clip = 0;
  EXPECT_THAT(notes_of(), HasSubstr("gradients are not clipped"));
}

}  // namespace
}  // namespace espalier::train::parametrization_run_test
