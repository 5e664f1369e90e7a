// Training with a teacher: losses equal a reference with full logits, also in chunks; grids, ranks
// and resumes change no bit; the plan has the teacher's bytes; errors name cause and fix.
#include <cmath>

#include "parallel/pipeline/schedule/registry.h"
#include "src/config/dump.h"
#include "src/core/rng.h"
#include "src/train/run/source.h"
#include "src/train/stage/teacher.h"
#include "tests/support/failure.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::distillation_test {
namespace {

using namespace testing;
using train::ProblemShape;

io::Config inference_config(const io::Config& config) {
  io::Config made = config;
  made.train.dtype = "fp32";
  made.train.teacher.clear();
  return made;
}

/// A network without training, with memory and values.
struct Network {
  Network(const io::Config& config, const ProblemShape& problem, int64_t samples, uint64_t seed)
      : stream(arena, 1),
        stage(inference_config(config), problem, stream, kernels::by_name("auto"),
              {.micro_batch = samples, .training = false}) {
    stage.store().initialise(seed);
    for (sparse::Parameter& parameter : stage.store().parameters()) {
      std::vector<float> values = stage.store().values(parameter);
      std::ranges::transform(values, values.begin(), [](float x) { return 4 * x; });
      stage.store().set_values(parameter, values);
    }
  }
  Arena arena;
  Stream stream;
  train::Stage stage;
};

/// Writes a network of `config` as a checkpoint; with `pruned`, a quarter of each hidden weight.
void write_teacher(const std::filesystem::path& path, const io::Config& config,
                   const ProblemShape& problem, const std::string& vocabulary = "",
                   bool pruned = false, uint64_t seed = 7) {
  Network network(config, problem, 1, seed);
  sparse::Store& store = network.stage.store();
  std::vector<sparse::Mask> masks = store.masks();
  for (size_t p = 0; pruned && p < masks.size(); ++p) {
    for (int64_t i = 0; store.parameters()[p].spec.prunable && i < masks[p].size(); ++i) {
      masks[p].set(i, mix(p, static_cast<uint64_t>(i)) % 4 == 0);
    }
  }
  store.set_masks(masks);
  io::CheckpointWriter writer(path);
  io::CheckpointMeta meta{.config = config::to_toml(config)};
  if (!vocabulary.empty()) {
    meta.extra["vocabulary"] = vocabulary;
  }
  writer.write_meta(meta);
  for (const sparse::Parameter& parameter : store.parameters()) {
    std::vector<float> values = store.values(parameter);
    const sparse::FileIndex index = sparse::to_file(parameter.index);
    writer.write_parameter({.name = parameter.spec.name,
                            .shape = parameter.spec.shape,
                            .encoding = std::string(index.encoding.name),
                            .nnz = parameter.kept(),
                            .values = Tensor(values.data(), DType::fp32, Shape{parameter.kept()}),
                            .index = index.bytes});
  }
  writer.commit();
}

/// A wider and deeper network for the data of `student`, with a longer context.
io::Config teacher_config(const io::Config& student) {
  io::Config config = student;
  apply_settings(config, "model.layers=3 model.width=48 model.context=24");
  config.run.out = student.run.out + "-of-the-teacher";
  return config;
}

void use_teacher(io::Config& config, const std::filesystem::path& file) {
  config.train.teacher = file.string();
  apply_settings(config, "train.teacher_weight=0.6 train.teacher_temperature=2");
}

/// A student with a teacher in `dir`.
io::Config taught_config(const TempDir& dir, bool pruned = false) {
  io::Config config = tiny_config(dir);
  const auto source = train::open_source(config);
  ProblemShape problem = source->problem();
  const io::Config teacher = teacher_config(config);
  problem.features = problem.rows = teacher.model.context;
  write_teacher(dir / "teacher.h5", teacher, problem, source->characters().text(), pruned);
  use_teacher(config, dir / "teacher.h5");
  return config;
}

// Against a reference with full logits

std::vector<double> softmax(std::span<const float> row, double temperature) {
  const double top = static_cast<double>(*std::ranges::max_element(row));
  std::vector<double> p;
  double sum = 0;
  for (const float x : row) {
    sum += p.emplace_back(std::exp((static_cast<double>(x) - top) / temperature));
  }
  for (double& one : p) {
    one /= sum;
  }
  return p;
}

void fill(const Tensor& inputs, const Tensor& targets, int64_t classes) {
  for (int64_t i = 0; i < inputs.count(); ++i) {
    const uint64_t bits = mix(1, static_cast<uint64_t>(i));
    if (inputs.dtype == DType::int32) {
      inputs.get<int32_t>()[i] = static_cast<int32_t>(bits % static_cast<uint64_t>(classes));
    } else {
      inputs.get<float>()[i] = static_cast<float>(bits % 1000) / 500 - 1;
    }
  }
  for (int64_t i = 0; i < targets.count(); ++i) {
    targets.get<int32_t>()[i] =
        static_cast<int32_t>(mix(2, static_cast<uint64_t>(i)) % static_cast<uint64_t>(classes));
  }
}

/// Logits of all rows, one row a pass: its tape has room for no more.
std::vector<float> logits_of(Network& network, const Tensor& inputs, int64_t rows) {
  train::Part& part = *network.stage.parts().front();
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) {
    part.open(0, inputs.shape[0]);
    const auto values = part.logits(0, row, 1, inputs).span<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

struct Losses {
  double targets = 0, teacher = 0;
};

Losses expected_losses(std::span<const float> student, std::span<const float> teacher,
                       const Tensor& targets, int64_t classes, double t) {
  Losses sum;
  const auto n = static_cast<size_t>(classes);
  for (size_t r = 0; r < student.size() / n; ++r) {
    const auto own = softmax(student.subspan(r * n, n), 1);
    const auto p = softmax(student.subspan(r * n, n), t);
    const auto q = softmax(teacher.subspan(r * n, n), t);
    sum.targets -= std::log(own[static_cast<size_t>(targets.get<int32_t>()[r])]);
    for (size_t c = 0; c < n; ++c) {
      sum.teacher += t * t * q[c] * std::log(q[c] / p[c]);
    }
  }
  return sum;
}

struct Kind {
  std::string name;
  int64_t classes;
};

class Reference : public ::testing::TestWithParam<Kind> {};

/// 9000 classes: chunks of 32 rows, the last one of 16.
TEST_P(Reference, LossesEqualThoseOfFullLogits) {
  constexpr int64_t kSamples = 3;
  const TempDir dir;
  const bool gpt = GetParam().name == "gpt";
  const int64_t classes = GetParam().classes;
  io::Config config = tiny_config(dir);
  config.model.kind = GetParam().name;
  config.data.kind = gpt ? "tokens" : "images";
  config.model.hidden = {24, 24, 20};
  ProblemShape problem{.classes = classes, .features = 16, .rows = 16};
  io::Config teacher = teacher_config(config);
  teacher.model.hidden = {40, 40};
  ProblemShape wider = problem;
  if (gpt) {
    wider.features = wider.rows = teacher.model.context;
  } else {
    problem.rows = wider.rows = 1;
    problem.input_dtype = wider.input_dtype = DType::fp32;
  }
  write_teacher(dir / "teacher.h5", teacher, wider);
  use_teacher(config, dir / "teacher.h5");
  const auto file = train::open_teacher(config);
  ASSERT_TRUE(file.has_value());
  train::check_teacher_fits_data(*file, problem, {});

  Network teaching(teacher, wider, kSamples, 7);
  Network learning(config, problem, kSamples, 5);
  Arena arena;
  Stream stream(arena, 1);
  train::Stage stage(config, problem, stream, kernels::by_name("auto"),
                     {.micro_batch = kSamples, .teacher = &*file});
  train::load(io::CheckpointReader(file->path), stage.teacher()->store(), {});
  for (sparse::Parameter& parameter : stage.store().parameters()) {
    stage.store().set_values(
        parameter, learning.stage.store().values(learning.stage.store().find(parameter.spec.name)));
  }
  const Tensor inputs = stage.inputs(kSamples);
  const Tensor targets = stage.targets(kSamples);
  fill(inputs, targets, classes);
  const int64_t rows = kSamples * problem.rows;
  const Losses want = expected_losses(logits_of(learning, inputs, rows),
                                      logits_of(teaching, inputs, rows), targets, classes, 2);
  train::Part& part = *stage.parts().front();
  part.forward(0, {.samples = kSamples}, true);
  part.backward(0, false, {});
  const train::Part::Loss got = part.take_losses().front();
  EXPECT_NEAR(got.sum, want.targets, 1e-5 * want.targets);
  EXPECT_NEAR(got.teacher, want.teacher, 1e-4 * want.teacher);
  EXPECT_GT(want.teacher, 0.01) << "the networks differ";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Reference,
                         ::testing::Values(Kind{"gpt", 11}, Kind{"gpt", 9000}, Kind{"mlp", 7}),
                         [](const auto& kind) {
                           return fmt::format("{}_{}", kind.param.name, kind.param.classes);
                         });

// Runs

std::vector<double> teacher_losses(const io::Config& config) {
  std::vector<double> losses;
  for (const auto& line :
       io::read_metrics(std::filesystem::path(config.run.out) / "metrics.jsonl")) {
    losses.push_back(line.at("teacher_loss").get<double>());
  }
  return losses;
}

struct Distillation : RunTest {
  Distillation() { config = taught_config(dir); }
};

TEST_F(Distillation, ChangesTheUpdateButNotTheReportedLosses) {
  io::Config plain = config;
  plain.train.teacher.clear();
  const Outcome without = run(plain);
  const Outcome with = run(config);
  EXPECT_EQ(static_cast<int64_t>(teacher_losses(config).size()), config.train.steps);
  EXPECT_NEAR(with.losses.front(), without.losses.front(), 1e-5) << "of the same weights";
  EXPECT_GT(std::abs(with.losses.back() - without.losses.back()), 1e-3);
  plain.optimizer.lr = plain.optimizer.min_lr = 0;
  config.optimizer = plain.optimizer;
  EXPECT_EQ(run(config).val_loss, run(plain).val_loss) << "evaluations have no teacher";
}

TEST_F(Distillation, ATinyWeightIsAlmostNoTeacher) {
  config.train.teacher_weight = 1e-12;
  io::Config plain = config;
  plain.train.teacher.clear();
  const Outcome without = run(plain);
  const Outcome with = run(config);
  EXPECT_THAT(with.losses, AreNear(without.losses, 1e-5));
}

TEST_F(Distillation, LowersTheDivergenceFromTheTeacher) {
  apply_settings(config, "train.teacher_weight=1 train.steps=40 optimizer.lr=1e-2");
  run(config);
  const auto losses = teacher_losses(config);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

TEST_F(Distillation, EveryScheduleEqualsTheSerialRun) {
  apply_settings(config, "model.layers=4 train.micro_batch=1 train.steps=4");
  for (const std::string dtype : {"fp32", "bf16"}) {
    config.train.dtype = dtype;
    config.train.recompute = dtype == "fp32" ? "none" : "full";
    config.parallel.pipeline = 1;
    const Outcome serial = run_grid(config, 1);
    const auto losses = teacher_losses(config);
    for (const parallel::ScheduleEntry* entry : parallel::schedules()) {
      if (entry->synchronous) {
        SCOPED_TRACE(fmt::format("{} {}", entry->name, dtype));
        config.parallel.pipeline = 2;
        config.parallel.schedule = entry->name;
        expect_equal(run_grid(config, 2), serial);
        EXPECT_EQ(teacher_losses(config), losses);
      }
    }
  }
}

TEST_F(Distillation, AsynchronousScheduleReportsTheTeachersLoss) {
  apply_settings(config, "train.micro_batch=3 parallel.pipeline=2");
  for (const parallel::ScheduleEntry* entry : parallel::schedules()) {
    if (!entry->synchronous) {
      config.parallel.schedule = entry->name;
      run_grid(config, 2);
      const auto losses = teacher_losses(config);
      EXPECT_EQ(static_cast<int64_t>(losses.size()), config.train.steps) << entry->name;
      EXPECT_GT(losses.front(), 0.01) << entry->name;
    }
  }
}

TEST_F(Distillation, RanksAndMicroBatchesMatchOneRank) {
  apply_settings(config, "optimizer.kind=sgd optimizer.clip=0 optimizer.lr=0.1");
  const Outcome one = run(config, 1);
  const auto losses = teacher_losses(config);
  config.train.micro_batch = 2;
  for (const int ranks : {1, 2}) {
    const Outcome many = run(config, ranks);
    EXPECT_THAT(many.losses, AreNear(one.losses, 2e-6));
    EXPECT_THAT(teacher_losses(config), AreNear(losses, 1e-5));
    EXPECT_LT(largest_difference(many, one), 2e-6);
  }
  config.parallel.zero = 1;
  const Outcome replicas = run_grid(config, 2);
  apply_settings(config, "parallel.pipeline=2 parallel.schedule=1f1b");
  expect_equal(run_grid(config, 4), replicas);
}

TEST_F(Distillation, ResumeIsNoBreak) {
  config = taught_config(dir, true);
  apply_settings(config, "pruning.method=random pruning.sparsity=0.75 sparse.storage=sparse");
  const Outcome whole = run(config);
  EXPECT_EQ(run_with_breaks(config, 1, {5}), whole);
}

TEST_F(Distillation, ResumeRefusesAnotherTeacher) {
  run(config, 1, {.stop_after = 4});
  const auto moved = dir / "moved.h5";
  std::filesystem::rename(config.train.teacher, moved);
  config.train.teacher = moved.string();
  run(config, 1, {.resume = "auto", .stop_after = 6});
  const io::Config other = taught_config(dir, true);
  EXPECT_THAT(failure_of([&] { run(other, 1, {.resume = "auto"}); }),
              AllOf(HasSubstr("is of a run with other teacher"), HasSubstr("train.teacher had"),
                    HasSubstr("--accept-changes teacher")));
  run(other, 1, {.resume = "auto", .stop_after = 8, .accepted = {"teacher"}});
  io::Config none = config;
  none.train.teacher.clear();
  EXPECT_THAT(failure_of([&] { run(none, 1, {.resume = "auto"}); }), HasSubstr("has no file"));
}

/// Weights of the teacher that are resident, beside those of the student.
TEST_F(Distillation, ThePlanHasTheTeachersBytes) {
  for (const bool pruned : {false, true}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", pruned, dtype));
      config = taught_config(dir, pruned);
      apply_settings(config, fmt::format("train.dtype={} train.micro_batch=3", dtype));
      parallel::run_ranks(1, [&](parallel::Communicator& comm) {
        train::Trainer trainer(config, comm, {.resume = "none"});
        trainer.run();
        const Arena& arena = trainer.arena();
        const train::MemoryPlan& plan = trainer.fit().plan;
        for (const Memory kind : {Memory::weight, Memory::gradient, Memory::master, Memory::moment,
                                  Memory::activation}) {
          EXPECT_EQ(plan.last.at(static_cast<size_t>(kind)), arena.use(kind).now) << name_of(kind);
        }
        EXPECT_GE(train::sum_of(plan.peak), arena.total().peak);
        const sparse::StateParts teacher = trainer.stage().teacher()->store().parts();
        EXPECT_EQ(teacher.gradient + teacher.low + teacher.master + teacher.moments, 0U);
        EXPECT_GT(teacher.value, 0U);
        EXPECT_NEAR(static_cast<double>(plan.teacher),
                    static_cast<double>(teacher.value + teacher.copies + teacher.index),
                    0.02 * static_cast<double>(teacher.index));
      });
    }
  }
}

TEST_F(Distillation, OnlyTheLastStageHoldsTheTeacher) {
  config.parallel.pipeline = 2;
  config.parallel.partition = {2, 2};
  apply_settings(config, "train.micro_batch=3 train.steps=1");
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none"});
    trainer.run();
    EXPECT_EQ(trainer.stage().teacher() != nullptr, comm.rank() == 1);
  });
}

// Errors

std::string failure_with(const io::Config& config) {
  return failure_of([&] { run(config); });
}

using DistillationErrors = RunTest;

TEST_F(DistillationErrors, NameCauseAndFix) {
  const io::Config good = taught_config(dir);
  config = good;
  config.train.teacher = (dir / "none.h5").string();
  EXPECT_THAT(failure_with(config), AllOf(HasSubstr("there is no such file"), HasSubstr("name a")));
  config.train.teacher = (dir / "text.txt").string();
  EXPECT_NE(failure_with(config), "");
  config = good;
  config.model.context = 32;
  EXPECT_THAT(failure_with(config), HasSubstr("set a shorter model.context"));
  config = good;
  config.data.kind = "bytes";
  EXPECT_THAT(failure_with(config), HasSubstr("was trained with data.kind = \"chars\""));
  config = good;
  std::filesystem::create_directories(dir / "run/checkpoints");
  std::filesystem::rename(dir / "teacher.h5", dir / "run/checkpoints/teacher.h5");
  config.train.teacher = (dir / "run/checkpoints/teacher.h5").string();
  config.run.out = (dir / "run").string();
  EXPECT_THAT(failure_with(config), HasSubstr("set another run.out"));
}

TEST_F(DistillationErrors, OfTeachersOfOtherData) {
  config = taught_config(dir);
  const auto source = train::open_source(config);
  io::Config teacher = teacher_config(config);
  teacher.train.teacher.clear();
  ProblemShape problem = source->problem();
  problem.features = problem.rows = teacher.model.context;
  std::string others = source->characters().bytes();
  others.front() = '~';
  write_teacher(config.train.teacher, teacher, problem, io::Vocabulary(others).text());
  EXPECT_THAT(failure_with(config), HasSubstr("other characters"));
  problem.classes += 1;
  write_teacher(config.train.teacher, teacher, problem);
  EXPECT_THAT(failure_with(config), AllOf(HasSubstr("predicts"), HasSubstr("classes")));
  apply_settings(teacher, "model.kind=mlp data.kind=images");
  write_teacher(config.train.teacher, teacher,
                {.classes = 7, .features = 12, .rows = 1, .input_dtype = DType::fp32});
  EXPECT_THAT(failure_with(config), HasSubstr("was trained with model.kind = \"mlp\""));
  {
    io::CheckpointWriter writer(config.train.teacher);
    writer.write_meta({.config = config::to_toml(teacher_config(tiny_config(dir)))});
    writer.commit();
  }
  EXPECT_THAT(failure_with(config), HasSubstr("holds no weights"));
  {
    io::CheckpointWriter writer(config.train.teacher);
    writer.write_meta({});
    writer.commit();
  }
  EXPECT_THAT(failure_with(config), HasSubstr("without a config"));
}

/// The teacher reads the student's inputs.
TEST_F(DistillationErrors, OfTeachersOfOtherImages) {
  config = taught_config(dir);
  config.model.kind = "vision";
  config.model.network = {"conv 2 3"};
  config.model.image = {4, 3, 1};
  config.data.kind = "images";
  io::Config teacher = config;
  teacher.train.teacher.clear();
  ProblemShape problem{
      .classes = 7, .features = 12, .rows = 1, .input_dtype = DType::fp32, .image = Shape{4, 3, 1}};
  const auto open_with = [&](const std::vector<double>& mean,
                             const std::vector<double>& deviation) {
    teacher.data.mean = mean;
    teacher.data.deviation = deviation;
    write_teacher(config.train.teacher, teacher, problem);
    return failure_of([&] { train::open_teacher(config); });
  };
  EXPECT_EQ(open_with({}, {}), "");
  EXPECT_THAT(open_with({0.5}, {}), AllOf(HasSubstr("was trained with data.mean = \"[0.5]\""),
                                          HasSubstr("this run has \"[]\"")));
  EXPECT_THAT(open_with({}, {0.5}), HasSubstr("data.deviation"));
  open_with({}, {});
  const auto file = train::open_teacher(config);
  train::check_teacher_fits_data(*file, problem, {});
  problem.image = Shape{3, 4, 1};
  EXPECT_THAT(failure_of([&] { train::check_teacher_fits_data(*file, problem, {}); }),
              AllOf(HasSubstr("reads images of [4, 3, 1]"), HasSubstr("[3, 4, 1]")));
}

/// The checkpoint of a run whose teacher changed would hold what another teacher taught.
TEST_F(Distillation, NamesAFlippedBitOfTheTeacher) {
  for (const bool pruned : {false, true}) {
    config = taught_config(dir, pruned);
    apply_settings(config, "train.steps=8 train.checkpoint_every=4");
    const auto train = [&] {
      run_with(config, 1, [](train::Trainer& trainer, parallel::Communicator&, int64_t step) {
        if (step == 5) {
          const Tensor& values = trainer.stage().teacher()->store().value();
          static_cast<uint8_t*>(values.data)[values.bytes() / 2] ^= 1;
        }
      });
    };
    EXPECT_THAT(failure_of(train), AllOf(HasSubstr("bits of the teacher's '"),
                                         HasSubstr("changed on rank 0 since they were loaded")));
    EXPECT_TRUE(std::filesystem::exists(dir / "run/checkpoints/step-000004.h5"));
    EXPECT_FALSE(std::filesystem::exists(dir / "run/checkpoints/step-000008.h5"));
    config.parallel.check_state = false;
    EXPECT_NO_THROW(train());
  }
}

}  // namespace
}  // namespace espalier::distillation_test
