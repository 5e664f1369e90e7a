// The manifest of a run: choices by timing are restored, changes that alter results are refused,
// and differences between ranks are found before the first step.
#include "src/train/checkpoint/manifest.h"

#include <sched.h>

#include <fstream>

#include "io/run/metrics.h"
#include "src/config/parse.h"
#include "src/core/cpus.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/codec_choice/adaprec.h"
#include "src/train/exchange/agreement.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::manifest_test {
namespace {

using namespace testing;
using train::Manifest;

/// Rewrites a checkpoint with other attributes.
void edit_meta(const std::filesystem::path& path,
               const std::function<void(io::CheckpointMeta&)>& edit) {
  const io::CheckpointReader reader(path);
  io::CheckpointMeta meta = reader.meta();
  edit(meta);
  io::CheckpointWriter writer(path);
  writer.write_meta(meta);
  for (const std::string& name : reader.names()) {
    const io::StoredParameter info = reader.info(name);
    std::vector<float> values(static_cast<size_t>(info.nnz));
    const Tensor view(values.data(), DType::fp32, Shape{info.nnz});
    reader.values(name, view);
    const std::vector<uint8_t> index = reader.index(name);
    writer.write_parameter({.name = name,
                            .shape = info.shape,
                            .encoding = info.encoding,
                            .nnz = info.nnz,
                            .values = view,
                            .index = index});
    for (const std::string& kind : info.optimizer) {
      reader.optimizer(name, kind, view);
      writer.write_optimizer(name, kind, view);
    }
  }
  writer.commit();
}

void edit_manifest(const std::filesystem::path& path,
                   const std::function<void(nlohmann::json&)>& edit) {
  edit_meta(path, [&](io::CheckpointMeta& meta) {
    auto manifest = nlohmann::json::parse(meta.extra.at("manifest"));
    edit(manifest);
    meta.extra["manifest"] = manifest.dump();
  });
}

/// Resumes and collects notes.
Outcome resume(const io::Config& config, int ranks, std::string& notes) {
  return run(config, ranks, notes, {.resume = "auto"});
}

/// Pruned from the start, with storages chosen by timing.
io::Config timed_config(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config, "pruning.method=random pruning.at_step=0 sparse.storage=auto");
  return config;
}

TEST(ManifestText, IsReadBack) {
  const Manifest written{.train_data = "5 bytes, xxHash64 1",
                         .seed = int64_t{1} << 53,
                         .micro_batch = 3,
                         .kernels = "cpu",
                         .storages = {{"a", "sparse"}, {"b", "dense"}}};
  const std::string text = train::json_of(written).dump();
  EXPECT_EQ(train::json_of(train::manifest_of(text, "FILE")).dump(), text);
  for (const std::string damaged : {"", "[]", "{}", "{\"seed\":", "3"}) {
    EXPECT_THAT(failure_of([&] { train::manifest_of(damaged, "FILE"); }),
                AllOf(HasSubstr("FILE: manifest: "), HasSubstr("the file is damaged")));
  }
  EXPECT_THAT(failure_of([&] {
                train::manifest_of(std::string(text).replace(text.find("3"), 1, "x"), "FILE");
              }),
              HasSubstr("damaged"));
}

class CheckResume : public ::testing::Test {
 protected:
  std::vector<std::string> notes(const std::vector<std::string>& accepted = {}) const {
    return train::check_resume({.config = before_, .manifest = &was_, .file = "FILE"}, now_, is_,
                               accepted);
  }
  std::string failure(const std::vector<std::string>& accepted = {}) const {
    return failure_of([&] { notes(accepted); });
  }
  io::Config before_, now_;
  Manifest was_, is_;
};

TEST_F(CheckResume, RefusesWhatChangesResultsSilently) {
  EXPECT_THAT(notes(), IsEmpty());
  was_.train_data = "5 bytes";
  is_.train_data = "6 bytes";
  EXPECT_THAT(failure(), AllOf(HasSubstr("FILE is of a run with other data"),
                               HasSubstr("data.train had 5 bytes and has 6 bytes"),
                               HasSubstr("--accept-changes data")));
  apply_settings(now_, "train.seed=9 train.global_batch=36");
  is_.mask_file = "7 bytes";
  is_.validation_data = "8 bytes";
  EXPECT_THAT(failure({"order"}),
              AllOf(HasSubstr("train.seed was 1 and is 9"), Not(HasSubstr("global_batch")),
                    HasSubstr("pruning.file had no file and has 7 bytes"),
                    HasSubstr("data.validation had no file and has 8 bytes"),
                    HasSubstr("--accept-changes data,masks,seed")));
  EXPECT_THAT(
      notes({"order", "seed", "data", "masks"}),
      ElementsAre(HasSubstr("accepted: data.train had"), HasSubstr("accepted: pruning.file had"),
                  HasSubstr("accepted: train.global_batch was 12 and is 36"),
                  HasSubstr("accepted: train.seed was 1 and is 9")));
}

TEST_F(CheckResume, ComparesEverySettingOfTheOrderAndFormOfData) {
  for (const std::string setting :
       {"train.global_batch=24", "model.context=3", "data.kind=chars",
        "data.validation_fraction=0.5", "data.format=cifar10", "data.mean=0.5",
        "data.deviation=0.5", "data.crop=4", "data.flip=true", "data.order=epochs"}) {
    now_ = before_;
    config::apply_override(now_, setting);
    EXPECT_THAT(failure(), HasSubstr("--accept-changes order")) << setting;
  }
}

/// "auto" stands for either type; only tokens have one.
TEST_F(CheckResume, ComparesTheTypeOfTokens) {
  const auto refused = [this](const std::string& kind, const std::string& was,
                              const std::string& is) {
    before_.data = {.kind = kind, .token_type = was};
    now_ = before_;
    now_.data.token_type = is;
    return failure().find("data.token_type was") != std::string::npos;
  };
  EXPECT_TRUE(refused("tokens", "uint16", "uint32"));
  EXPECT_FALSE(refused("tokens", "uint16", "auto"));
  EXPECT_FALSE(refused("tokens", "auto", "uint32"));
  EXPECT_FALSE(refused("bytes", "uint16", "uint32"));
}

TEST_F(CheckResume, ComparesTheParametrization) {
  for (const std::string value : {"standard", "supar-lr:64"}) {
    now_ = before_;
    now_.train.base_width = 0;
    config::apply_override(now_, "train.parametrization=" + value);
    EXPECT_THAT(failure(), HasSubstr("--accept-changes parametrization")) << value;
  }
}

TEST_F(CheckResume, NamesOtherSettingsThatAlterResultsAndTheMachine) {
  before_.optimizer.lr = 1e-3;
  apply_settings(now_, "optimizer.lr=0.5 run.out=elsewhere");
  now_.data.train = {"moved.txt"};
  apply_settings(now_, "train.checkpoint_every=7 parallel.zero=1");
  EXPECT_THAT(notes(), ElementsAre("settings differ from the checkpoint's: optimizer.lr was 0.001 "
                                   "and is 0.5"));
  now_ = before_;
  is_ = {.ranks = 2, .threads = 3, .kernels = "cpu", .mpi = "MPI"};
  EXPECT_THAT(notes(), ElementsAre(AllOf(
                           HasSubstr("ranks were 1 and are 2; threads were 1 and are 3; kernels "),
                           HasSubstr("and are MPI"), Not(HasSubstr("programs")))));
}

TEST_F(CheckResume, SaysThatAFileHasNoManifest) {
  const train::SavedRun old{.config = before_, .manifest = nullptr, .file = "FILE"};
  EXPECT_THAT(train::check_resume(old, now_, is_, {}),
              ElementsAre(HasSubstr("FILE has no manifest")));
  now_.train.seed = 2;
  EXPECT_THAT(failure_of([&] { train::check_resume(old, now_, is_, {}); }),
              HasSubstr("--accept-changes seed"));
  EXPECT_FALSE(train::timings_are_valid(old, before_, is_, train::Timed::storages));
}

TEST_F(CheckResume, TimingsHoldForTheSameSettingsKernelsAndRanks) {
  const auto kept = [this] {
    const train::SavedRun saved{.config = before_, .manifest = &was_, .file = ""};
    std::string found;
    found += timings_are_valid(saved, now_, is_, train::Timed::storages) ? "storages " : "";
    found += timings_are_valid(saved, now_, is_, train::Timed::codecs) ? "codecs" : "";
    return found;
  };
  apply_settings(now_, "optimizer.lr=0.5 parallel.timeout_s=3");
  EXPECT_EQ(kept(), "storages codecs");
  is_.ranks = 2;
  EXPECT_EQ(kept(), "storages ");
  is_ = was_;
  now_.pruning.sparsity = 0.5;
  EXPECT_EQ(kept(), "codecs");
  now_ = before_;
  now_.parallel.codec.fallback = "maxmin:3";
  EXPECT_EQ(kept(), "storages ");
  now_ = before_;
  is_.kernels = "other";
  EXPECT_EQ(kept(), "");
}

struct ManifestResume : RunTest {
  ManifestResume() { config = timed_config(dir); }
};

/// The choice in the file differs from what the clock would choose.
TEST_F(ManifestResume, TakesTheStoragesOfTheCheckpoint) {
  const auto file = dir / "run/checkpoints/step-000006.h5";
  for (const std::string storage : {"expanded", "sparse"}) {
    for (const int ranks : {1, 2}) {
      run(config, ranks, {.stop_after = 6});
      std::map<std::string, std::string> storages;
      edit_manifest(file, [&](nlohmann::json& manifest) {
        for (auto& [name, chosen] : manifest["storages"].items()) {
          chosen = storage;
        }
        storages = manifest["storages"].get<std::map<std::string, std::string>>();
      });
      EXPECT_EQ(storages.size(), 8U) << "the matrices of two blocks";
      std::string notes;
      const Outcome resumed = resume(config, ranks, notes);
      EXPECT_THAT(notes, AllOf(HasSubstr("storages as in the checkpoint"),
                               Not(HasSubstr("storages, by time"))));
      const auto last =
          train::progress_of(io::CheckpointReader(dir / "run/checkpoints/step-000012.h5"));
      EXPECT_EQ(last.manifest->storages, storages);

      io::Config named = config;
      named.sparse.storage.fallback = storage;
      EXPECT_EQ(run(named, ranks, {.resume = file.string()}), resumed) << storage;
    }
  }
  // Masks of another density: the times of the checkpoint no longer hold.
  run(config, 1, {.stop_after = 6});
  config.pruning.sparsity = 0.5;
  std::string notes;
  resume(config, 1, notes);
  EXPECT_THAT(notes, HasSubstr("storages, by time"));
}

/// An attempt that was killed before its first checkpoint has chosen by the clock; the next one
/// repeats its bits.
TEST_F(ManifestResume, TakesTheStoragesOfAnAttemptWithoutCheckpoint) {
  const auto manifest_file = dir / "run/manifest.json";
  for (const std::string storage : {"expanded", "sparse"}) {
    for (const int ranks : {1, 2}) {
      const auto kill_attempt = [&] {
        run(config, ranks, {.stop_after = 3});
        std::filesystem::remove_all(dir / "run/checkpoints");
        std::filesystem::remove(dir / "run/summary.json");
        nlohmann::ordered_json manifest = read_json(manifest_file);
        EXPECT_EQ(manifest["storages"].size(), 8U);
        for (auto& [name, chosen] : manifest["storages"].items()) {
          chosen = storage;
        }
        io::write_json_atomically(manifest_file, manifest);
      };
      kill_attempt();
      std::string notes;
      const Outcome restarted = resume(config, ranks, notes);
      EXPECT_THAT(notes, AllOf(HasSubstr("storages as in the attempt before"),
                               Not(HasSubstr("storages, by time"))));
      io::Config named = config;
      named.sparse.storage.fallback = storage;
      EXPECT_EQ(run(named, ranks, {}), restarted) << storage;

      kill_attempt();
      std::ofstream(manifest_file) << "{";
      EXPECT_NO_THROW(resume(config, ranks, notes));
      EXPECT_THAT(notes, HasSubstr("storages, by time")) << "a manifest that cannot be read";
    }
  }
}

/// The budget has room for the copies of checkpoints beside the planned storages. Larger storages
/// of the checkpoint take it: then no rank copies. With this many layers they are larger than the
/// memory of the trials, which a resumed run does not need.
TEST_F(ManifestResume, StoragesOfTheCheckpointMayTakeTheMemoryOfCopies) {
  for (const int ranks : {1, 2}) {
    config = timed_config(dir);
    apply_settings(config,
                   "model.width=64 model.layers=16 train.micro_batch=3 train.checkpoint_every=3 "
                   "train.keep_checkpoints=9 "
                   "parallel.schedule=1f1b parallel.timeout_s=10 pruning.sparsity=0.5");
    config.parallel.pipeline = ranks;
    run(config, ranks, {.stop_after = 6});
    const train::MemoryPlan plan = fit_of(config, ranks, "auto").plan;
    config.train.memory_budget = fmt::format("{}B", plan.needed() + plan.checkpoint_copy);
    std::filesystem::remove_all(dir / "run");
    run(config, ranks, {.stop_after = 6});
    EXPECT_TRUE(fit_of(config, ranks, "auto").copies_checkpoints);
    for (const bool larger : {false, true}) {
      edit_manifest(dir / "run/checkpoints/step-000006.h5", [&](nlohmann::json& manifest) {
        for (auto& [name, chosen] : manifest["storages"].items()) {
          chosen = larger ? "dense" : "sparse";
        }
      });
      std::string notes;
      resume(config, ranks, notes);
      EXPECT_THAT(notes, HasSubstr("storages as in the checkpoint"));
      const auto says_so = HasSubstr("has no room for the");
      EXPECT_THAT(notes, larger ? ::testing::Matcher<std::string>(says_so) : Not(says_so));
      EXPECT_EQ(
          testing::read_json(dir / "run/summary.json")["planned_peak"].contains("checkpoint_copy"),
          !larger);
      for (const char* later : {"step-000009.h5", "step-000012.h5"}) {
        std::filesystem::remove(dir / "run/checkpoints" / later);
      }
    }
  }
}

TEST_F(ManifestResume, TakesTheStoragesOfAllStages) {
  apply_settings(config, "train.micro_batch=3 parallel.pipeline=2");
  run(config, 2, {.stop_after = 6});
  const auto saved =
      train::progress_of(io::CheckpointReader(dir / "run/checkpoints/step-000006.h5"));
  EXPECT_EQ(saved.manifest->storages.size(), 8U);
  EXPECT_EQ(saved.manifest->stages, 2);
  EXPECT_EQ(saved.manifest->micro_batch, 3);
}

/// Codecs chosen by the clock, and what a resumed run then sends.
TEST_F(ManifestResume, TakesTheCodecsOfTheCheckpoint) {
  const auto file = dir / "run/checkpoints/step-000006.h5";
  for (const std::string codec : {"table:1", "fp8-e5m2:1024"}) {
    config = tiny_config(dir);
    apply_settings(config, "parallel.codec_min_size=64 parallel.codec=fastest");
    run(config, 2, {.stop_after = 6});
    io::Config named = config;
    named.parallel.codec.fallback = "fp32";
    edit_meta(file, [&](io::CheckpointMeta& meta) {
      std::string& choice = meta.extra.at("codec_choice");
      std::string edited;
      for (size_t begin = 0; begin < choice.size(); begin = choice.find(';', begin) + 1) {
        const std::string name = choice.substr(begin, choice.find('=', begin) - begin);
        edited += name + "=" + codec + ";";
        named.parallel.codec.patterns.emplace_back(name, codec);
      }
      choice = edited;
    });
    EXPECT_GT(named.parallel.codec.patterns.size(), 8U);
    std::string notes;
    const Outcome resumed = resume(config, 2, notes);
    EXPECT_THAT(notes, Not(HasSubstr("fastest codecs"))) << "nothing was timed";
    EXPECT_EQ(run(named, 2, {.resume = file.string()}), resumed) << codec;
    // On other ranks the link is another: codecs are timed.
    notes.clear();
    std::filesystem::remove(dir / "run/checkpoints/step-000012.h5");
    resume(config, 3, notes);
    EXPECT_THAT(notes, HasSubstr("fastest codecs"));
  }
}

TEST_F(ManifestResume, TakesTheDecisionWhetherToEncode) {
  const auto file = dir / "run/checkpoints/step-000006.h5";
  for (const std::string decision : {"yes", "no"}) {
    config = tiny_config(dir);
    config.parallel.codec_min_size = 64;
    apply_settings(config, "parallel.codec=maxmin:2 parallel.reduction=auto");
    run(config, 2, {.stop_after = 6});
    EXPECT_EQ(testing::read_json(dir / "run/summary.json")["choices"]["reduction"], "sra");
    edit_meta(file, [&](io::CheckpointMeta& meta) {
      std::string& choice = meta.extra.at("codec_choice");
      const size_t begin = choice.find("?=") + 2;
      EXPECT_THAT(choice, HasSubstr("embedding.token?="));
      choice.replace(begin, choice.find(':', begin) - begin, decision);
    });
    std::string notes;
    const Outcome resumed = resume(config, 2, notes);
    EXPECT_THAT(notes, Not(HasSubstr(" pay"))) << "nothing was timed";
    io::Config named = config;
    named.parallel.reduction = "sra";
    named.parallel.codec.fallback = decision == "yes" ? "maxmin:2" : "fp32";
    EXPECT_EQ(run(named, 2, {.resume = file.string()}), resumed) << decision;
  }
}

/// The last stage borrows the first parameter of the first stage, and decides for itself.
TEST_F(ManifestResume, KeepsTheDecisionsOfStagesThatShareAParameter) {
  config = tiny_config(dir);
  in_two_stages(config, "1f1b");
  apply_settings(config,
                 "model.tie_embeddings=true parallel.codec_min_size=64 parallel.codec=maxmin:2 "
                 "parallel.reduction=auto");
  run(config, 4, {.stop_after = 6});
  const auto file = dir / "run/checkpoints/step-000006.h5";
  const std::string choice = io::CheckpointReader(file).meta().extra.at("codec_choice");
  EXPECT_THAT(choice, HasSubstr("embedding.token?="));
  EXPECT_THAT(choice, HasSubstr("embedding.token*?="));
  std::string notes;
  resume(config, 4, notes);
  EXPECT_THAT(notes, Not(HasSubstr(" pay"))) << "nothing was timed";
}

/// After pruning more samples would fit the budget at once, and sums would have another order.
TEST_F(ManifestResume, KeepsTheMicroBatchThatABudgetChose) {
  config = tiny_config(dir);
  apply_settings(config,
                 "pruning.method=magnitude pruning.at_step=4 sparse.storage=sparse model.width=64");
  const size_t dense = fit_of(config).plan.needed();
  config.train.memory_budget = fmt::format("{} B", dense - 1);
  ASSERT_EQ(fit_of(config).choice.micro_batch, 6);
  const Outcome whole = run(config);
  run(config, 1, {.stop_after = 6});
  EXPECT_EQ(fit_of(config, 1, "auto").choice.micro_batch, 6);
  Outcome resumed = run(config, 1, {.resume = "auto"});
  resumed.losses = whole.losses;
  EXPECT_EQ(resumed, whole);
  config.train.memory_budget = fmt::format("{} B", dense);
  EXPECT_EQ(fit_of(config, 1, "auto").choice.micro_batch, 12) << "another budget";
}

using ManifestOfRanks = RunTest;

/// Two machines, with two ranks and one. A rank with another count would time codecs that the
/// others restore, and wait for them.
TEST_F(ManifestOfRanks, CountsTheRanksOfTheFirstMachineOnAllOfThem) {
  parallel::run_ranks(3,
                      [](parallel::Communicator& comm) {
                        const Manifest manifest =
                            train::manifest_of_program("", kernels::by_name("cpu"), comm);
                        EXPECT_EQ(manifest.ranks_per_machine, 2) << "rank " << comm.rank();
                      },
                      {.ranks_a_node = 2});
}

/// After pruning fewer stages would fit the budget: "auto" must not choose again.
TEST_F(ManifestResume, KeepsTheStagesThatABudgetChose) {
  config = tiny_config(dir);
  apply_settings(config,
                 "train.micro_batch=3 model.width=64 pruning.method=magnitude pruning.at_step=4 "
                 "sparse.storage=sparse parallel.schedule=1f1b");
  const auto stages = [&](const std::string& resume) {
    int found = 0;
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      const train::Trainer trainer(config, comm, {.resume = resume});
      if (comm.rank() == 0) {
        found = trainer.layout().grid.pipeline;
      }
    });
    return found;
  };
  const size_t dense = fit_of(config, 2).plan.needed();
  config.parallel.pipeline = 0;
  config.train.memory_budget = fmt::format("{} B", dense - 1);
  ASSERT_EQ(stages("none"), 2);
  run(config, 2, {.stop_after = 6});
  EXPECT_EQ(stages("auto"), 2);
  config.train.memory_budget = fmt::format("{} B", dense);
  EXPECT_EQ(stages("auto"), 1) << "another budget";
}

/// Versions whose "auto" was always 1f1b did not resolve it.
TEST_F(ManifestResume, TakesAutoOfEarlierVersionsFor1f1b) {
  config = tiny_config(dir);
  in_two_stages(config, "1f1b");
  run(config, 2, {.stop_after = 6});
  edit_meta(dir / "run/checkpoints/step-000006.h5", [](io::CheckpointMeta& meta) {
    const std::string written = "\"1f1b\"";
    meta.config.replace(meta.config.find(written), written.size(), "\"auto\"");
  });
  config.parallel.schedule = "auto";
  config.parallel.partition = {};
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    const train::Trainer trainer(config, comm, {.resume = "auto"});
    EXPECT_EQ(trainer.layout().schedule.name, "1f1b");
    EXPECT_EQ(trainer.layout().partition(), (std::vector<int64_t>{2, 2}));
  });
}

TEST_F(ManifestOfRanks, WithOtherSettingsAreNamedBeforeTheFirstStep) {
  const auto message_of = [&](const std::string& override_of_rank_1) {
    return failure_of([&] {
      parallel::run_ranks(3, [&](parallel::Communicator& comm) {
        io::Config mine = config;
        if (comm.rank() == 1) {
          config::apply_override(mine, override_of_rank_1);
        }
        train::Trainer trainer(mine, comm, {.resume = "none"});
      });
    });
  };
  EXPECT_THAT(message_of("optimizer.lr=0.002"),
              HasSubstr("ranks have different settings of optimizer.lr (not the same on rank 1): "
                        "0.002 on rank 1, 0.001 on rank 0; start all ranks with the same config"));
  EXPECT_THAT(
      message_of("parallel.codec={default=\"fp32\", \"head.*\"=\"bf16\"}"),
      HasSubstr("ranks have different settings of parallel.codec (not the same on rank 1)"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

/// Memory of kernels depends on threads, which ranks may choose each for themselves.
TEST_F(ManifestOfRanks, WithOtherPlansAreNamedBeforeTheFirstStep) {
  config.model.context = 64;
  const auto needed = [&](int64_t threads) {
    config.run.threads = threads;
    return fit_of(config, 2).plan.needed();
  };
  const size_t of_one_thread = needed(1);
  ASSERT_GT(needed(8), of_one_thread);
  config.train.memory_budget = fmt::format("{} B", of_one_thread);
  const std::string message = failure_of([&] {
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      io::Config mine = config;
      mine.run.out = dir / "unequal";
      mine.run.threads = comm.rank() == 1 ? 8 : 1;
      train::Trainer trainer(mine, comm, {.resume = "none"});
    });
  });
  EXPECT_THAT(message, HasSubstr("ranks have different plans (not the same on rank 1)"));
  EXPECT_THAT(message, HasSubstr("micro_batch"));
  EXPECT_FALSE(std::filesystem::exists(dir / "unequal/metrics.jsonl"));
}

TEST_F(ManifestOfRanks, DivideTheCores) {
  const int cores = usable_cpu_count();
  for (const int ranks : {1, cores, cores + 1}) {
    config = tiny_config(dir);
    apply_settings(config, fmt::format("run.threads=0 train.global_batch={}", ranks));
    parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = "none"});
      EXPECT_EQ(trainer.stage().stream().threads(), std::max(cores / ranks, 1)) << ranks;
    });
  }
}

/// While it lives, the calling thread runs on these CPUs only.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus) : before_(usable_cpus()) { set(cpus); }
  ~OnCpus() { set(before_); }
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

 private:
  static void set(const std::vector<int>& cpus) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int cpu : cpus) {
      CPU_SET(static_cast<size_t>(cpu), &mask);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(mask), &mask), 0);
  }
  std::vector<int> before_;
};

TEST_F(ManifestOfRanks, DivideTheCpusTheyMayUse) {
  const std::vector<int> all = usable_cpus();
  if (all.size() < 2) {
    GTEST_SKIP() << "needs two CPUs";
  }
  const auto count = static_cast<int>(all.size());
  const std::vector<int> one{all[0]};
  const std::vector<int> other(all.begin() + 1, all.end());
  struct Case {
    std::vector<std::vector<int>> cpus;  // of each rank
    int threads;
  };
  for (const Case& each :
       {Case{.cpus = {all, all}, .threads = count / 2}, Case{.cpus = {one}, .threads = 1},
        Case{.cpus = {other}, .threads = count - 1}, Case{.cpus = {one, other}, .threads = 1},
        Case{.cpus = {all, one}, .threads = 1}, Case{.cpus = {one, one}, .threads = 1}}) {
    config = tiny_config(dir);
    apply_settings(config, "run.threads=0 train.global_batch=2");
    parallel::run_ranks(static_cast<int>(each.cpus.size()), [&](parallel::Communicator& comm) {
      const OnCpus bound(each.cpus[static_cast<size_t>(comm.rank())]);
      train::Trainer trainer(config, comm, {.resume = "none"});
      EXPECT_EQ(trainer.stage().stream().threads(), each.threads);
    });
  }
}

/// A container with --cpus=1.5, as the root of a machine.
TEST_F(ManifestOfRanks, DivideTheQuotaOfAContainer) {
  if (usable_cpu_count() < 2) {
    GTEST_SKIP() << "needs two CPUs";
  }
  const auto root = dir / "machine";
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(root / "sys/fs/cgroup/job");
  std::ofstream(root / "proc/self/cgroup") << "0::/job\n";
  std::ofstream(root / "proc/self/mountinfo")
      << "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  std::ofstream(root / "proc/meminfo") << "MemTotal: 16000000 kB\n";
  const auto threads = [&](const std::string& quota) {
    std::ofstream(root / "sys/fs/cgroup/job/cpu.max") << quota << '\n';
    config = tiny_config(dir);
    config.run.threads = 0;
    int found = 0;
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = "none", .system_root = root});
      found = trainer.stage().stream().threads();
    });
    std::filesystem::remove_all(dir / "run");
    return found;
  };
  EXPECT_EQ(threads("max 100000"), usable_cpu_count());
  EXPECT_EQ(threads("150000 100000"), 1);
  EXPECT_EQ(threads("200000 100000"), 2);
  EXPECT_EQ(threads("1000 100000"), 1) << "at least one";
}

TEST_F(ManifestOfRanks, WithOtherKernelsAreNamedBeforeTheFirstStep) {
  const std::string message = failure_of([&] {
    parallel::run_ranks(3, [&](parallel::Communicator& comm) {
      train::Trainer trainer(
          tiny_config(dir), comm,
          {.resume = "none", .kernels = comm.rank() == 1 ? &kernels::by_name("dry") : nullptr});
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("different kernels (not the same on rank 1): dry on rank 1"),
                             HasSubstr("on rank 0; set ESPALIER_KERNELS")));
  EXPECT_FALSE(std::filesystem::exists(dir / "run/metrics.jsonl"));
}

TEST_F(ManifestOfRanks, WithOtherProgramsOrLibrariesAreNamed) {
  for (const auto& [what, words] :
       {std::pair{"program", "different programs"}, std::pair{"gemm", "different libraries"},
        std::pair{"hdf5", "different libraries"}, std::pair{"mpi", "different libraries"}}) {
    const std::string message = failure_of([&] {
      parallel::run_ranks(3, [&](parallel::Communicator& comm) {
        auto json = train::json_of({});
        json[what] = comm.rank() == 2 ? "B" : "A";
        train::compare_program(train::manifest_of(json.dump(), ""), comm);
      });
    });
    EXPECT_THAT(message, AllOf(HasSubstr(words),
                               HasSubstr("(not the same on rank 2): B on rank 2, A on rank 0; "),
                               HasSubstr("on all machines")));
  }
}

TEST_F(ManifestOfRanks, WithOtherInputsAreNamed) {
  for (const std::string what : {"train_data", "validation_data", "mask_file"}) {
    const std::string message = failure_of([&] {
      parallel::run_ranks(2, [&](parallel::Communicator& comm) {
        auto json = train::json_of({});
        json[what] = comm.rank() == 0 ? "A" : "B";
        train::compare_inputs(train::manifest_of(json.dump(), ""), {}, comm);
      });
    });
    EXPECT_THAT(message, HasSubstr("(not the same on rank 1): B on rank 1, A on rank 0; copy"));
  }
  const std::string message = failure_of([&] {
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      const auto file = dir / fmt::format("{}.h5", comm.rank());
      std::ofstream(file) << "checkpoint of rank " << comm.rank();
      train::compare_inputs({}, {.resume = file}, comm);
    });
  });
  EXPECT_THAT(message, HasSubstr("different checkpoints to resume from (not the same on rank 1)"));
}

using AdaPrecRounds = RunTest;

/// Only a loss or norm that is not finite ends a trial, on all ranks; other failures end the run.
TEST_F(AdaPrecRounds, DoNotSwallowTheFailureOfOneRank) {
  apply_settings(config, "parallel.codec=adaprec:100:5:fp32+maxmin:4 train.steps=100");
  std::filesystem::create_directories(config.run.out);
  const auto round = [&](const std::function<void(int rank)>& train_step) {
    return failure_of([&] {
      parallel::run_ranks(2, [&](parallel::Communicator& comm) {
        Arena arena;
        Stream stream(arena, 1);
        sparse::Store store(stream, kernels::by_name("cpu"), {{.name = "w", .shape = {4, 4}}}, {});
        train::AdaPrec adaprec(config, comm, store,
                               {.use = [](const std::string&) {},
                                .train = [&](int64_t) { train_step(comm.rank()); },
                                .evaluate = [] { return 1.0; }},
                               -1);
        adaprec.round(20);
      });
    });
  };
  EXPECT_THAT(round([](int) { throw train::Diverged("the loss is NaN"); }),
              HasSubstr("diverged with every precision"));
  EXPECT_THAT(round([](int rank) { check(rank != 1, "no memory on rank 1"); }),
              HasSubstr("no memory on rank 1"));
}

using Progress = RunTest;

TEST_F(Progress, ACheckpointThatNamesNoParametrizationHasTheOldOne) {
  io::CheckpointWriter writer(dir / "old.h5");
  writer.write_meta({.step = 3, .config = "[data]\ntrain = [\"x\"]\n", .extra = {}});
  writer.commit();
  const auto progress = train::progress_of(io::CheckpointReader(dir / "old.h5"));
  EXPECT_EQ(progress.config.train.parametrization, "standard");
  EXPECT_EQ(io::Config().train.parametrization, "supar-lr");
}

}  // namespace
}  // namespace espalier::manifest_test
