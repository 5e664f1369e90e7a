// Memory of whole runs: usage equals the plan, runs that start pruned never hold dense state, and a
// budget is met or refused before the start.
#include <algorithm>

#include "parallel/pipeline/schedule/registry.h"
#include "pruning/registry.h"
#include "src/train/memory/budget.h"
#include "src/train/memory/planner.h"
#include "src/train/memory/storage_choice.h"
#include "tests/support/failure.h"
#include "tests/support/method_kinds.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::budget_test {
namespace {

using namespace testing;

/// Pruned from the start, with weights large enough for 8-bit moments.
io::Config small_config(const TempDir& dir, const std::string& method) {
  io::Config made = tiny_config(dir);
  apply_settings(made, "model.width=128 train.steps=3");
  made.pruning.method = method;
  apply_settings(made, "pruning.sparsity=0.75 pruning.scope=layer pruning.block=8");
  if (testing::moves(pruning::method_of(made.pruning))) {
    made.pruning.to_step = 2;  // 100 steps between two moves: none
  }
  made.sparse.storage.fallback = "sparse";
  return made;
}

/// Trains, then calls `look` with the trainer; returns all notes in one text.
std::string train(const io::Config& config, const std::function<void(train::Trainer&)>& look) {
  std::string notes;
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(
        config, comm,
        {.resume = "none", .on_note = [&](const std::string& text) { notes += text + '\n'; }});
    trainer.run();
    look(trainer);
  });
  return notes;
}

void expect_planned(const io::Config& config) {
  train(config, [](train::Trainer& trainer) {
    const Arena& arena = trainer.arena();
    const train::MemoryPlan& plan = trainer.fit().plan;
    for (const Memory kind :
         {Memory::weight, Memory::gradient, Memory::master, Memory::moment, Memory::activation}) {
      EXPECT_EQ(plan.last.at(static_cast<size_t>(kind)), arena.use(kind).now) << name_of(kind);
    }
    // The size of a Golomb code depends on the mask: the plan has its expected value.
    const auto index = static_cast<double>(arena.use(Memory::index).now);
    EXPECT_NEAR(static_cast<double>(plan.last.at(static_cast<size_t>(Memory::index))), index,
                0.01 * index);
    EXPECT_GE(static_cast<double>(train::sum_of(plan.peak)) + 0.01 * index,
              static_cast<double>(arena.total().peak));
    const sparse::StateParts parts = trainer.stage().store().parts();
    EXPECT_EQ(parts.value + parts.copies + parts.gradient + parts.low + parts.master +
                  parts.moments + parts.scales + parts.pruning + parts.index,
              arena.model_state_bytes());
    EXPECT_EQ(plan.parts.copies, parts.copies);
    EXPECT_EQ(plan.parts.scales, parts.scales);
  });
}

using Held = std::tuple<std::string, int64_t, std::string>;
class Ledger : public ::testing::TestWithParam<Held> {
 protected:
  io::Config config(const std::string& method) const {
    const auto& [storage, state_bits, dtype] = GetParam();
    io::Config made = small_config(dir_, storage == "block" ? "block" : method);
    apply_settings(made, fmt::format("sparse.storage={} optimizer.state_bits={} train.dtype={}",
                                     storage, state_bits, dtype));
    return made;
  }
  TempDir dir_;
};

TEST_P(Ledger, PlanEqualsUseOfARunThatStartsPruned) { expect_planned(config("random")); }

TEST_P(Ledger, PlanEqualsUseOfARunThatIsPrunedLater) {
  io::Config made = config("magnitude");
  made.pruning.at_step = 2;
  expect_planned(made);
}

INSTANTIATE_TEST_SUITE_P(
    All, Ledger,
    ::testing::Combine(::testing::Values("dense", "expanded", "sparse", "block"),
                       ::testing::Values(32, 8), ::testing::Values("fp32", "bf16")));

using LedgerOfNetworks = RunTest;

/// Also with tables of rotary positions, which the blocks of a network share.
TEST_F(LedgerOfNetworks, PlanEqualsUseOfDecoders) {
  for (const std::string recompute : {"none", "selective", "full"}) {
    for (const std::string family : {"llama", "qwen3", "neox", "gemma", "gemma3"}) {
      SCOPED_TRACE(fmt::format("{} {}", family, recompute));
      io::Config made = small_config(dir, "random");
      take_family(made.model, family);
      made.train.recompute = recompute;
      expect_planned(made);
    }
  }
}

using LedgerOfMethods = RunTest;

TEST_F(LedgerOfMethods, PlansKeptTiles) {
  for (const int64_t at_step : {0, 2}) {
    io::Config made = small_config(dir, at_step == 0 ? "random" : "magnitude");
    apply_settings(made, fmt::format("pruning.at_step={} sparse.storage=sparse", at_step));
    expect_planned(made);
    size_t less = 0;
    train(made, [&](train::Trainer& trainer) { less = trainer.arena().use(Memory::index).now; });
    made.sparse.storage.fallback = "tiles";
    expect_planned(made);
    size_t most = 0;
    train(made, [&](train::Trainer& trainer) { most = trainer.arena().use(Memory::index).now; });
    EXPECT_GT(most, 2 * less) << "tiles are kept";
    // Of some weights only.
    made.sparse.storage = {.fallback = "sparse", .patterns = {{"blocks.*.mlp.*", "tiles"}}};
    expect_planned(made);
    train(made, [&](train::Trainer& trainer) {
      EXPECT_GT(trainer.arena().use(Memory::index).now, less);
      EXPECT_LT(trainer.arena().use(Memory::index).now, most);
      for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
        EXPECT_EQ(parameter.tiles != nullptr,
                  !parameter.full() && parameter.spec.name.find(".mlp.") != std::string::npos)
            << parameter.spec.name;
      }
    });
  }
}

using LedgerOfSchedules = RunTest;

/// One rank runs its schedule: with several micro-batches at a time, several chunks, or deferred
/// gradients of weights.
TEST_F(LedgerOfSchedules, PlanEqualsUseOnOneRank) {
  for (const parallel::ScheduleEntry* schedule : parallel::schedules()) {
    if (!schedule->synchronous || schedule->by_arrival()) {
      continue;
    }
    SCOPED_TRACE(schedule->name);
    io::Config made = small_config(dir, "random");
    apply_settings(made, "model.layers=4 train.global_batch=8 train.micro_batch=2");
    made.parallel.schedule = schedule->name;
    made.parallel.virtual_stages = 2;
    expect_planned(made);
  }
}

TEST_F(LedgerOfMethods, PlansRecomputeGradualAndMovingMasks) {
  for (const std::string recompute : {"selective", "full"}) {
    io::Config made = small_config(dir, "random");
    made.train.recompute = recompute;
    expect_planned(made);
  }
  io::Config rounded = small_config(dir, "random");
  apply_settings(rounded, "train.dtype=bf16 sparse.storage=expanded");
  expect_planned(rounded);
  rounded.train.master_copy = false;  // updates round, too
  expect_planned(rounded);
  io::Config gradual = small_config(dir, "magnitude");
  apply_settings(gradual, "train.steps=8 pruning.from_step=2 pruning.to_step=6 pruning.every=2");
  expect_planned(gradual);
  for (const pruning::Method* method : pruning::methods()) {
    io::Config made = small_config(dir, std::string(method->name));
    if (testing::moves(*method)) {
      apply_settings(made, "train.steps=8 pruning.to_step=7 pruning.every=2");
    }
    if (testing::learns(*method)) {
      apply_settings(made, "train.steps=4 pruning.at_step=2");
    }
    if (testing::waits(*method)) {
      apply_settings(made, "train.steps=8 pruning.to_step=7 pruning.every=1");
      made.optimizer.lr = 1e-2;  // masks change until to_step
    }
    if (testing::scores(*method) || testing::moves(*method) || testing::learns(*method) ||
        testing::waits(*method)) {
      expect_planned(made);
    }
  }
}

class StartsPruned : public ::testing::TestWithParam<std::string> {
 protected:
  io::Config config() const { return small_config(dir_, GetParam()); }
  TempDir dir_;
};

TEST_P(StartsPruned, HoldsNoMoreThanItsKeptElementsEver) {
  for (const std::string storage : {"sparse", "expanded"}) {
    io::Config made = config();
    made.sparse.storage.fallback = storage;
    train(made, [](train::Trainer& trainer) {
      for (const Memory kind :
           {Memory::weight, Memory::gradient, Memory::master, Memory::moment, Memory::index}) {
        EXPECT_EQ(trainer.arena().use(kind).peak, trainer.arena().use(kind).now) << name_of(kind);
      }
      EXPECT_LT(trainer.stage().store().total_kept(), trainer.stage().store().total_size() * 3 / 5);
    });
  }
}

/// The masks equal those that the pruner computes for a dense store before the first step.
TEST_P(StartsPruned, KeepsTheElementsOfADenseStart) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    io::Config made = config();
    made.train.dtype = dtype;
    const train::ProblemShape problem{.features = made.model.context, .rows = made.model.context};
    Arena arena;
    Stream stream(arena, 1);
    train::Stage stage(made, problem, stream, kernels::by_name("auto"), {});
    stage.store().initialise(static_cast<uint64_t>(made.train.seed));
    train::InitialMasks start = train::initial_masks(made, train::specs_of(stage.store()));
    ASSERT_TRUE(start.pruned);
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::Pruner(made, stage.store()).change(0, comm, [](const train::PassSamples&) {});
    });
    for (size_t p = 0; p < start.kept.size(); ++p) {
      const sparse::Parameter& parameter = stage.store().parameters()[p];
      EXPECT_EQ(start.masks(p), parameter.index.mask()) << parameter.spec.name;
      EXPECT_EQ(start.kept[p], parameter.kept()) << parameter.spec.name;
    }
  }
}

/// Masks and initial values do not depend on the number of threads, nor on which rank initialises
/// which.
TEST_P(StartsPruned, IsTheSameForAnyNumberOfThreads) {
  const io::Config made = config();
  const train::ProblemShape problem{.features = made.model.context, .rows = made.model.context};
  const auto specs = model::parameters_of(model::make_layers(made.model, problem));
  const train::InitialMasks alone = train::initial_masks(made, specs);
  std::vector<sparse::Mask> masks;
  for (size_t p = 0; p < specs.size(); ++p) {
    masks.push_back(alone.masks(p));
  }
  for (const int threads : {2, 5}) {
    const train::InitialMasks together = train::initial_masks(made, specs, {}, threads);
    for (size_t p = 0; p < specs.size(); ++p) {
      EXPECT_EQ(together.masks(p), masks[p]) << specs[p].name;
    }
    const train::InitialMasks some = train::initial_masks(made, specs, {}, threads);
    if (GetParam() == "random") {
      for (const size_t p : {size_t{3}, size_t{9}, size_t{2}, specs.size() - 3}) {
        EXPECT_EQ(some.masks(p), masks[p]) << specs[p].name;
      }
    }
  }
  const sparse::ParameterSpec large{
      .name = "large", .shape = {700, 900}, .initial = sparse::Initial::normal, .deviation = 1};
  const sparse::Index all = sparse::Index::full(large.shape.count());
  EXPECT_EQ(sparse::initial_values(large, all, 5, 4), sparse::initial_values(large, all, 5));
}

/// All registered methods that make masks before the first step.
std::vector<std::string> first_methods() {
  std::vector<std::string> found;
  for (const pruning::Method* method : pruning::methods()) {
    if (testing::prunes(*method) && !pruning::reads_scores(*method) && !testing::waits(*method)) {
      found.emplace_back(method->name);
    }
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Methods, StartsPruned, ::testing::ValuesIn(first_methods()));

using StartsPrunedFromFile = RunTest;

TEST_F(StartsPrunedFromFile, WithoutDenseState) {
  io::Config first = small_config(dir, "random");
  train(first, [](train::Trainer&) {});
  io::Config made = small_config(dir, "file");
  made.pruning.file = (dir / "run/checkpoints/step-000003.h5").string();
  made.run.out = (dir / "second").string();
  train(made, [](train::Trainer& trainer) {
    const Arena& arena = trainer.arena();
    EXPECT_EQ(arena.use(Memory::weight).peak, arena.use(Memory::weight).now);
    EXPECT_LT(trainer.stage().store().total_kept(), trainer.stage().store().total_size() / 2);
  });
}

std::string mebibytes(size_t bytes) { return std::to_string(bytes / 1048576 + 1) + "MiB"; }

size_t needed(const io::Config& config) {
  size_t bytes = 0;
  train(config, [&](train::Trainer& trainer) { bytes = trainer.fit().plan.needed(); });
  return bytes;
}

using Budget = RunTest;

TEST_F(Budget, IsKeptBySmallerMicroBatchesAndThenByRecompute) {
  io::Config made = small_config(dir, "none");
  made.model.context = 64;
  const size_t all = needed(made);
  made.train.micro_batch = 1;
  const size_t least = needed(made);
  ASSERT_GT(all, least + (size_t{8} << 20));
  made.train.micro_batch = 0;
  made.train.memory_budget = mebibytes((all + least) / 2);
  std::string notes = train(made, [&](train::Trainer& trainer) {
    const train::Fit& fit = trainer.fit();
    EXPECT_LT(fit.choice.micro_batch, 12);
    EXPECT_GT(fit.choice.micro_batch, 1);
    EXPECT_EQ(fit.choice.recompute, model::Recompute::none);
    EXPECT_LE(fit.plan.needed(), fit.budget);
    EXPECT_LE(trainer.arena().total().peak, fit.arena_limit());
  });
  EXPECT_THAT(notes, AllOf(HasSubstr("train.memory_budget"), HasSubstr("micro_batch = ")));
  apply_settings(made, "train.micro_batch=12 train.recompute=auto");
  notes = train(made, [&](train::Trainer& trainer) {
    EXPECT_EQ(trainer.fit().choice.micro_batch, 12);
    EXPECT_NE(trainer.fit().choice.recompute, model::Recompute::none);
  });
  EXPECT_THAT(notes, HasSubstr("recompute = "));
}

TEST_F(Budget, ThatIsLargeEnoughChangesNothing) {
  io::Config made = small_config(dir, "random");
  const testing::Outcome free = testing::run(made);
  made.train.memory_budget = "16GiB";
  EXPECT_EQ(testing::run(made), free);
}

TEST_F(Budget, ThatNoStageFitsNamesTheStages) {
  io::Config made = small_config(dir, "random");
  apply_settings(made, "parallel.pipeline=2 train.memory_budget=20MiB");
  const std::string said = failure_of([&] {
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      train::Trainer trainer(made, comm, {.resume = "none"});
    });
  });
  EXPECT_THAT(said, AllOf(HasSubstr("train.memory_budget = \"20MiB\" is too small"),
                          HasSubstr("of 2 stages, 0, 1 are above the budget, stage "),
                          HasSubstr("more stages than parallel.pipeline = 2")));
}

TEST_F(Budget, TooSmallFailsBeforeTheFirstStepWithFixes) {
  io::Config made = small_config(dir, "magnitude");
  apply_settings(made, "pruning.scope=global sparse.storage=dense train.memory_budget=65MiB");
  const std::string said = failure_of([&] { train(made, [](train::Trainer&) { FAIL(); }); });
  EXPECT_THAT(said, AllOf(HasSubstr("train.memory_budget = \"65MiB\" is too small"),
                          HasSubstr("a rank needs "), HasSubstr("moment "),
                          HasSubstr("program and temporaries "),
                          HasSubstr("the least for this model and state is ")));
  EXPECT_THAT(said, AllOf(HasSubstr("prune from the start"), HasSubstr("sparse.storage"),
                          HasSubstr("train.dtype = \"bf16\""), HasSubstr("state_bits = 8"),
                          HasSubstr("train.recompute = \"auto\"")));
  apply_settings(
      made, "train.dtype=bf16 optimizer.state_bits=8 train.recompute=full train.micro_batch=1");
  const std::string nothing_left =
      failure_of([&] { train(made, [](train::Trainer&) { FAIL(); }); });
  EXPECT_THAT(nothing_left,
              AllOf(HasSubstr("is too small"), Not(HasSubstr("state_bits")), Not(HasSubstr("bf16")),
                    Not(HasSubstr("the least for")), HasSubstr("train.master_copy = false (")));
}

TEST_F(Budget, IsTheLimitOfTheArena) {
  Arena arena;
  arena.set_limit(1000);
  const Buffer first = arena.allocate(Memory::weight, "first", DType::uint8, Shape{600});
  const std::string said =
      failure_of([&] { arena.allocate(Memory::activation, "second", DType::uint8, Shape{500}); });
  EXPECT_THAT(said, AllOf(HasSubstr("second"), HasSubstr("weight")));
  EXPECT_EQ(arena.total().now, first.tensor().bytes());
}

train::StorageGroup group_of(size_t weights) {
  using sparse::Storage;
  return {.shape = Shape{100, 100},
          .density = 0.1,
          .parameters = std::vector<size_t>(weights),
          .timings = {{.storage = Storage::dense, .seconds = 1, .bytes = 100, .scratch = 40},
                      {.storage = Storage::expanded, .seconds = 3, .bytes = 20, .scratch = 60},
                      {.storage = Storage::sparse, .seconds = 2, .bytes = 20, .scratch = 10}}};
}

TEST_F(Budget, ForbidsStoragesThatDoNotFit) {
  std::vector<train::StorageGroup> groups{group_of(2), group_of(3)};
  EXPECT_EQ(train::planned_bytes(groups), 5U * 20 + 10);
  train::choose_storages(groups, {});
  EXPECT_EQ(groups[0].chosen + groups[1].chosen, 0U);
  EXPECT_THAT(train::storage_table(groups), Not(HasSubstr("does not fit")));
  EXPECT_THAT(train::storage_table(groups), HasSubstr("sparse takes 2.0 times as long as dense"));
  groups[0].timings[2].seconds = groups[1].timings[2].seconds = 1;
  EXPECT_THAT(train::storage_table(groups), Not(HasSubstr("times as long as dense")));
  groups[0].timings[2].seconds = groups[1].timings[2].seconds = 2;
  train::choose_storages(groups, 540);  // both dense: 5 x 100 + 40
  EXPECT_EQ(groups[0].chosen + groups[1].chosen, 0U);
  train::choose_storages(groups, 539);
  EXPECT_EQ(groups[0].chosen + groups[1].chosen, 2U) << "one is sparse";
  EXPECT_THAT(train::storage_table(groups), HasSubstr("sparse (the fastest does not fit"));
  train::choose_storages(groups, 110);
  EXPECT_EQ(groups[0].chosen + groups[1].chosen, 4U);
  EXPECT_THAT(failure_of([&] { train::choose_storages(groups, 109); }),
              HasSubstr("no storage fits train.memory_budget"));
}

/// Times within 5 % of the fastest are the same: the fewest bytes decide.
TEST_F(Budget, PrefersTheSmallestOfTheFastestStorages) {
  using sparse::Storage;
  std::vector<train::StorageGroup> groups{
      {.parameters = {0},
       .timings = {{.storage = Storage::dense, .seconds = 1, .bytes = 100, .scratch = 0},
                   {.storage = Storage::expanded, .seconds = 1.02, .bytes = 20, .scratch = 90},
                   {.storage = Storage::sparse, .seconds = 1.04, .bytes = 20, .scratch = 0},
                   {.storage = Storage::tiles, .seconds = 0.99, .bytes = 28, .scratch = 0}}}};
  const auto chosen = [&](std::optional<size_t> budget) {
    train::choose_storages(groups, budget);
    return groups.front().timings[groups.front().chosen].storage.name;
  };
  EXPECT_EQ(chosen({}), "expanded");
  EXPECT_FALSE(groups.front().limited);
  EXPECT_EQ(chosen(110), "expanded");
  EXPECT_EQ(chosen(109), "tiles") << "sparse takes 1.05 times as long";
  EXPECT_FALSE(groups.front().limited) << "the chosen one is faster";
  groups.front().timings[3].seconds = 1.01;
  EXPECT_EQ(chosen({}), "expanded") << "the faster one of equal bytes";
  EXPECT_EQ(chosen(109), "sparse");
  EXPECT_TRUE(groups.front().limited);
  groups.front().timings[3].seconds = 0.9;
  EXPECT_EQ(chosen({}), "tiles");
  EXPECT_EQ(chosen(27), "sparse");
  EXPECT_TRUE(groups.front().limited);
}

TEST_F(Budget, CountsTheSharedScratchOnce) {
  using sparse::Storage;
  std::vector<train::StorageGroup> groups{
      {.parameters = {0, 1, 2, 3, 4},
       .timings = {{.storage = Storage::dense, .seconds = 1, .bytes = 30, .scratch = 0},
                   {.storage = Storage::sparse, .seconds = 2, .bytes = 20, .scratch = 15}}}};
  // One parameter and its scratch take more in storage sparse (35 for 30), five take less.
  train::choose_storages(groups, 115);
  EXPECT_EQ(groups[0].chosen, 1U);
  EXPECT_TRUE(groups[0].limited);
  EXPECT_THAT(failure_of([&] { train::choose_storages(groups, 114); }),
              HasSubstr("need 115 bytes"));
  train::choose_storages(groups, 150);
  EXPECT_EQ(groups[0].chosen, 0U);
  EXPECT_FALSE(groups[0].limited);
}

/// The plan of the whole run, which counts more than state and workspace, confirms the choice.
TEST_F(Budget, ShrinksTheChoiceOfStoragesUntilThePlanFits) {
  const auto chosen_with = [](const std::function<size_t(size_t, size_t)>& needed) {
    std::vector<train::StorageGroup> groups{group_of(2), group_of(3)};
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::choose_storages_that_fit(
          groups, 540, 1000, [&] { return needed(groups[0].chosen, groups[1].chosen); }, comm);
    });
    return std::pair(groups[0].chosen, groups[1].chosen);
  };
  constexpr size_t kDense = 0;
  constexpr size_t kSparse = 2;
  EXPECT_EQ(chosen_with([](size_t, size_t) { return 1000; }), std::pair(kDense, kDense));
  EXPECT_EQ(chosen_with([](size_t first, size_t) { return first == kDense ? 1001 : 1000; }),
            std::pair(kSparse, kDense));
  EXPECT_EQ(chosen_with([](size_t first, size_t second) {
              return first == kSparse && second == kSparse ? 1000 : 1300;
            }),
            std::pair(kSparse, kSparse));
  EXPECT_EQ(chosen_with([](size_t, size_t) { return 9000; }), std::pair(kSparse, kSparse))
      << "as planned, if nothing else fits";
}

/// With pipeline = "auto": a slow link makes the exchange of whole gradients slower than stages,
/// unless little is kept of them.
TEST_F(Budget, ChoosesTheStagesWithTheShortestStep) {
  config = small_config(dir, "none");
  apply_settings(config,
                 "model.width=256 model.layers=6 model.context=32 train.global_batch=16 "
                 "train.micro_batch=2 train.dtype=fp32 parallel.pipeline=0 "
                 "parallel.schedule=1f1b");
  const train::ProblemShape problem{.classes = 256,
                                    .features = config.model.context,
                                    .rows = config.model.context,
                                    .input_dtype = DType::int32};
  const auto plan_with = [&](const cost::Link& link, double layer_s) {
    const model::Layers layers = model::make_layers(config.model, problem);
    const train::InitialMasks start =
        train::initial_masks(config, model::parameters_of(layers), {}, 1);
    const train::LayerTimes times{
        .layers = std::vector<parallel::StageTimes>(
            layers.size(),
            {.forward = layer_s, .backward_input = layer_s, .backward_weight = layer_s}),
        .samples = config.train.micro_batch};
    const auto input_of = [&](const io::Config& of) {
      return train::PlanInput{.config = of,
                              .problem = problem,
                              .layers = layers,
                              .start = start,
                              .times = times,
                              .link = link,
                              .ranks = 4};
    };
    const train::Plan plan = train::make_plan(input_of(config));
    // The same stages as the least estimate of all, but for 5 %.
    double least = 1e9;
    double chosen = 0;
    io::Config fixed = config;
    for (const int64_t stages : {1, 2, 4}) {
      fixed.parallel.pipeline = stages;
      const train::PlanInput one = input_of(fixed);
      const double step = train::estimated_step(one, train::make_plan(one));
      least = std::min(least, step);
      chosen = stages == plan.pipeline ? step : chosen;
    }
    EXPECT_LE(chosen, least / 0.95);
    return plan.pipeline;
  };
  const cost::Link slow{.latency_s = 1e-4, .bytes_per_s = 1e7};
  EXPECT_EQ(plan_with({}, 1e-3), 1) << "a pipeline waits";
  EXPECT_GT(plan_with(slow, 1e-3), 1) << "19 MB of gradients, 0.5 MB of activations";
  apply_settings(
      config,
      "pruning.method=random pruning.at_step=0 pruning.sparsity=0.98 sparse.storage=sparse");
  EXPECT_EQ(plan_with(slow, 1e-2), 1) << "0.5 MB of gradients";
  config.parallel.schedule = "async";
  EXPECT_EQ(plan_with(slow, 1e-3), 1) << "as few as fit";
}

/// With schedule = "auto": another schedule than 1f1b where its idle time is a part of the step.
TEST_F(Budget, ChoosesTheScheduleWithTheShortestStep) {
  config = small_config(dir, "none");
  apply_settings(config, "model.layers=6 train.micro_batch=1 parallel.pipeline=2");
  const train::ProblemShape problem{.classes = 256,
                                    .features = config.model.context,
                                    .rows = config.model.context,
                                    .input_dtype = DType::int32};
  struct Chosen {
    std::string schedule, notes;
    double step;
    size_t needed;
  };
  cost::Link link;
  size_t host = std::numeric_limits<size_t>::max();
  const auto plan_with = [&](const std::string& settings) {
    io::Config of = config;
    apply_settings(of, settings);
    const model::Layers layers = model::make_layers(of.model, problem);
    const train::InitialMasks start = train::initial_masks(of, model::parameters_of(layers), {}, 1);
    constexpr double kSeconds = 1e-2;
    const train::LayerTimes times{
        .layers = std::vector<parallel::StageTimes>(
            layers.size(),
            {.forward = kSeconds, .backward_input = kSeconds, .backward_weight = kSeconds})};
    train::PlanInput input{.config = of,
                           .problem = problem,
                           .layers = layers,
                           .start = start,
                           .times = times,
                           .link = link,
                           .ranks = static_cast<int>(of.parallel.pipeline),
                           .host = host};
    const train::Plan plan = train::make_plan(input);
    size_t most = 0;  // planned again under the choices of the plan
    for (input.rank = 0; input.rank < input.ranks; ++input.rank) {
      most = std::max(most, train::plan_with_storages(input, plan, {}).needed());
    }
    EXPECT_EQ(most, plan.fit.plan.needed()) << settings;
    return Chosen{.schedule = plan.layout.schedule.name,
                  .notes = fmt::format("{}", fmt::join(plan.notes, "; ")),
                  .step = train::estimated_step(input, plan),
                  .needed = plan.fit.plan.needed()};
  };
  for (const int batch : {2, 4, 16, 128}) {
    for (const double latency : {0.0, 5e-3, 0.1}) {
      link.latency_s = latency;
      config.train.global_batch = batch;
      std::string expected = "1f1b";
      double shortest = 0.98 * plan_with("parallel.schedule=1f1b").step;
      for (const std::string schedule : {"zb-h1", "zb-v"}) {
        const double step = plan_with("parallel.schedule=" + schedule).step;
        expected = step < shortest ? schedule : expected;
        shortest = std::min(shortest, step);
      }
      EXPECT_EQ(plan_with("").schedule, expected) << batch << " samples, latency " << latency;
    }
  }
  link = {};
  EXPECT_EQ(plan_with("").schedule, "1f1b") << "idle for 0.8 % of a step";
  config.train.global_batch = 4;
  EXPECT_EQ(plan_with("").schedule, "zb-v");
  EXPECT_THAT(plan_with("").notes, HasSubstr("parallel.schedule = \"auto\": zb-v, whose step is "));
  EXPECT_EQ(plan_with("parallel.schedule=1f1b").notes, "");
  EXPECT_EQ(plan_with("parallel.pipeline=1").schedule, "1f1b");
  // Two stages a rank are impossible, or change results.
  for (const char* settings : {"model.layers=1", "parallel.partition=[4,4]",
                               "model.tie_embeddings=true", "parallel.activation_codec=bf16"}) {
    EXPECT_EQ(plan_with(settings).schedule, "zb-h1") << settings;
  }
  const size_t least = plan_with("parallel.schedule=1f1b").needed;
  ASSERT_LT(least, plan_with("").needed);
  const Chosen limited = plan_with(fmt::format("train.memory_budget={}B", least));
  EXPECT_NE(limited.schedule, "zb-v");
  EXPECT_LE(limited.needed, least);
  EXPECT_THAT(limited.notes, Not(HasSubstr("recompute")));
  host = least;
  EXPECT_NE(plan_with("").schedule, "zb-v");
}

/// A choice of storages is planned as a config that names them: masks of the start and of steps.
TEST_F(Budget, PlansChosenStoragesLikeThoseOfTheConfig) {
  for (const int64_t at_step : {0, 2}) {
    io::Config made = small_config(dir, "magnitude");
    made.pruning.at_step = at_step;
    const train::ProblemShape problem{.features = made.model.context, .rows = made.model.context};
    const model::Layers layers = model::make_layers(made.model, problem);
    const train::InitialMasks start =
        train::initial_masks(made, model::parameters_of(layers), {}, 1);
    const train::LayerTimes times = train::estimated_times(made, problem, nullptr);
    const auto needed = [&](const io::Config& of, std::string_view storage) {
      const train::PlanInput input{.config = of,
                                   .problem = problem,
                                   .layers = layers,
                                   .start = start,
                                   .times = times,
                                   .place = kernels::planning(kernels::by_name("auto"))};
      std::map<std::string, std::string> storages;
      for (const sparse::ParameterSpec& spec : model::parameters_of(layers)) {
        storages[spec.name] = storage;
      }
      const train::Plan plan = train::make_plan(input);
      return storage.empty() ? plan.fit.plan.needed()
                             : train::plan_with_storages(input, plan, storages).needed();
    };
    io::Config automatic = made;
    automatic.sparse.storage.fallback = "auto";
    for (const std::string storage : {"dense", "expanded", "sparse", "tiles"}) {
      made.sparse.storage.fallback = storage;
      EXPECT_EQ(needed(automatic, storage), needed(made, "")) << storage << ", step " << at_step;
    }
    EXPECT_GE(needed(automatic, "dense"), needed(automatic, "sparse") + (at_step == 0 ? 1 : 0))
        << "pruned later, all begin with dense state";
  }
}

TEST_F(Budget, IsPassedToTheChoiceOfStorages) {
  io::Config made = small_config(dir, "random");
  apply_settings(made, "model.width=256 sparse.storage=auto");
  const size_t bytes = needed(made);
  made.train.memory_budget = mebibytes(bytes);
  train(made, [](train::Trainer& trainer) {
    // Timing decides which is faster; in any case not all can be dense.
    EXPECT_TRUE(std::ranges::any_of(
        trainer.stage().store().parameters(), [](const sparse::Parameter& parameter) {
          return !parameter.full() && parameter.storage != sparse::Storage::dense;
        }));
    EXPECT_LE(trainer.arena().total().peak, trainer.fit().arena_limit());
  });
}

}  // namespace
}  // namespace espalier::budget_test
