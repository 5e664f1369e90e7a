// Before a checkpoint replaces older ones, replicas are compared, its numbers are finite, and it is
// read back. The ranks of a run verify the newest one together: all find damage in any part of it.
#include <fstream>
#include <limits>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "sparse/index/file_index.h"
#include "sparse/index/registry.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "src/train/checkpoint/newest_checkpoint.h"
#include "src/train/masks/mask_files.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::testing::checkpoint_save_test {
namespace {

namespace fs = std::filesystem;

io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  config.parallel.check_every = 0;
  apply_settings(config, "train.checkpoint_every=4 train.keep_checkpoints=1");
  return config;
}

struct CheckpointSave : RunTest {
  CheckpointSave() { config = config_for(dir); }
};

TEST_F(CheckpointSave, ReplicasThatDifferAreNotSaved) {
  config.parallel.check_state = false;  // it finds the change first
  const std::string message = failure_of([&] {
    run_with(config, 2, [](train::Trainer& trainer, parallel::Communicator& comm, int64_t step) {
      if (comm.rank() == 1 && step == 6) {
        sparse::Store& store = trainer.stage().store();
        std::vector<float> moment = store.moment(store.parameters().front(), 0);
        moment[0] += 1;
        store.set_moment(store.parameters().front(), 0, moment);
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("ranks hold different bits of"));
  EXPECT_THAT(names_in(dir / "run/checkpoints"), ElementsAre("step-000004.h5"));
}

/// A disk that changes one bit of what is written to the second checkpoint.
class FlippingFiles : public io::FileSystem {
 public:
  int open(const fs::path& path, int flags) override {
    const int file = FileSystem::open(path, flags);
    if (path.filename().string().starts_with("step-000008.h5.tmp")) {
      flips_ = file;
    }
    return file;
  }
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override {
    std::string changed(static_cast<const char*>(data), bytes);
    if (file == flips_ && bytes > 1000) {
      changed[500] = static_cast<char>(changed[500] ^ 1);
      flips_ = -1;
    }
    return FileSystem::write(file, changed.data(), bytes, offset);
  }

 private:
  int flips_ = -1;
};

TEST_F(CheckpointSave, AFileThatCannotBeReadBackReplacesNone) {
  const Outcome undisturbed = run(config);
  fs::remove_all(dir / "run");
  {
    FlippingFiles files;
    const io::FileSystemScope scope(files);
    try {
      run(config);
      FAIL() << "the damage was not found";
    } catch (const Failure& failure) {
      EXPECT_TRUE(failure.retryable());
      EXPECT_THAT(failure.what(), HasSubstr("step-000008.h5 was written but cannot be read back"));
      EXPECT_THAT(failure.what(), HasSubstr("is damaged (checksum"));
    }
  }
  EXPECT_THAT(names_in(dir / "run/checkpoints"),
              ElementsAre("step-000004.h5", "step-000008.h5.damaged"));
  const Outcome resumed = run(config, 1, {.resume = "auto"});
  EXPECT_EQ(resumed.values, undisturbed.values);
  EXPECT_EQ(resumed.moments, undisturbed.moments);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The loss of step 8 is finite; its update spoils the state that is saved then.
TEST_F(CheckpointSave, AnUpdateThatSpoilsTheStateReplacesNoCheckpoint) {
  for (const bool background : {true, false}) {
    config.train.checkpoint_background = background;
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("background {}, {} ranks", background, ranks));
      const Outcome undisturbed = run(config, ranks);
      fs::remove_all(dir / "run");
      std::string name;
      const std::string message = failure_of([&] {
        const auto spoil = [&](train::Trainer& trainer, parallel::Communicator& comm,
                               int64_t step) {
          if (step != 7) {
            return;
          }
          sparse::Store& store = trainer.stage().store();
          const sparse::Parameter& parameter = store.parameters()[2];
          std::vector<float> moment = store.moment(parameter, 1);
          moment.back() = kInfinity;  // an update of 0: parameters stay finite
          store.set_moment(parameter, 1, moment);
          trainer.data_parallel().clear_state_check();
          if (comm.rank() == 0) {
            name = parameter.spec.name;
          }
        };
        run_with(config, ranks, spoil);
      });
      EXPECT_THAT(message, HasSubstr(fmt::format("'{}' (moment2) has a NaN or an infinity after "
                                                 "step 8: training has diverged",
                                                 name)));
      EXPECT_THAT(names_in(dir / "run/checkpoints"), ElementsAre("step-000004.h5"));
      const Outcome resumed = run(config, ranks, {.resume = "auto"});
      EXPECT_EQ(resumed.values, undisturbed.values);
      EXPECT_EQ(resumed.moments, undisturbed.moments);
    }
  }
}

/// Each array of a checkpoint with a number that is not finite, and the error's name of the array.
TEST_F(CheckpointSave, EachArrayMustBeFinite) {
  using Spoil = std::function<void(train::Trainer&, const sparse::Parameter&)>;
  const auto set_first = [](std::vector<float> values, float value) {
    values.front() = value;
    return values;
  };
  const auto set_value = [&](float value) -> Spoil {
    return [&set_first, value](train::Trainer& trainer, const sparse::Parameter& parameter) {
      sparse::Store& store = trainer.stage().store();
      store.set_values(const_cast<sparse::Parameter&>(parameter),
                       set_first(store.master(parameter), value));
    };
  };
  const auto set_moment = [&](int which) -> Spoil {
    return [&set_first, which](train::Trainer& trainer, const sparse::Parameter& parameter) {
      sparse::Store& store = trainer.stage().store();
      store.set_moment(parameter, which, set_first(store.moment(parameter, which), kNan));
    };
  };
  struct Array {
    std::string name;
    std::string settings;
    Spoil spoil;
    bool vector = false;
  };
  const std::vector<Array> arrays{
      {"values", "", set_value(kNan)},
      {"values", "", set_value(-kInfinity)},
      {"values", "train.dtype=fp16", set_value(1e6F)},
      {"values", "train.dtype=bf16", set_value(kNan)},
      {"master copy", "", set_value(kInfinity), true},
      {"moment1", "", set_moment(0)},
      {"moment2", "", set_moment(1)},
      {"pruning1", "prune pruning.method=movement",
       [&](train::Trainer& trainer, const sparse::Parameter& parameter) {
         sparse::Store& store = trainer.stage().store();
         store.set_pruning_array(parameter, 0,
                                 set_first(store.pruning_array(parameter, 0), kInfinity));
       }},
      {"error feedback", "parallel.codec=maxmin:4 parallel.error_feedback=true",
       [](train::Trainer& trainer, const sparse::Parameter& parameter) {
         const sparse::Store& store = trainer.stage().store();
         store.part(store.feedback(), parameter).span<float>().back() = kNan;
       }},
  };
  for (const Array& array : arrays) {
    for (const bool copies : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, copies {}", array.name, copies));
      config = config_for(dir);
      apply_settings(config, array.settings);
      const fs::path file = dir / "saved.h5";
      parallel::run_ranks(2, [&](parallel::Communicator& comm) {
        train::Trainer trainer(config, comm, {.resume = "none"});
        sparse::Store& store = trainer.stage().store();
        const auto parameter = std::ranges::find_if(store.parameters(), [&](const auto& one) {
          return (one.spec.shape.rank() == 1) == array.vector &&
                 (array.vector || one.spec.prunable);
        });
        ASSERT_NE(parameter, store.parameters().end());
        const auto save = [&](int64_t step) {
          train::Background background(copies);
          train::CheckpointSave(file, store, {.step = step, .config = config}, comm,
                                {.owners = trainer.plan().owners, .copies = copies}, background)
              .finish();
        };
        save(1);
        array.spoil(trainer, *parameter);
        EXPECT_THAT(failure_of([&] { save(2); }),
                    HasSubstr(fmt::format("'{}' ({}) has a NaN or an infinity after step 2",
                                          parameter->spec.name, array.name)));
      });
      EXPECT_EQ(io::CheckpointReader(file).meta().step, 1);
      EXPECT_EQ(names_in(dir / "").back(), "text.txt");  // no temporary file stays
    }
  }
}

/// Earlier versions wrote any encoding.
TEST_F(CheckpointSave, MasksAreReadInEveryEncoding) {
  Arena arena;
  const sparse::IndexShape shape{.cols = 16, .height = 2, .width = 2, .n = 2, .m = 4};
  sparse::Mask mask(256, false);
  for (int64_t i = 0; i < mask.size(); ++i) {
    mask.set(i, i / 2 % 2 == i / 32 % 2);  // two of four, in blocks of 2 x 2
  }
  std::vector<float> values(static_cast<size_t>(mask.kept()), 1);
  for (const sparse::Encoding* encoding : sparse::encodings()) {
    if (*encoding == sparse::Encoding::full) {
      continue;
    }
    const bool in_memory = encoding->coding != nullptr;
    const sparse::Index index(arena, mask, in_memory ? *encoding : sparse::Encoding::bitmap, shape);
    const sparse::FileIndex coded = sparse::to_file(index, *encoding);
    EXPECT_EQ(coded.encoding, *encoding);
    const fs::path path = dir / (std::string(encoding->name) + ".h5");
    io::CheckpointWriter writer(path);
    writer.write_meta({});
    writer.write_parameter({.name = "w",
                            .shape = Shape{16, 16},
                            .encoding = std::string(encoding->name),
                            .nnz = mask.kept(),
                            .values = Tensor(values.data(), DType::fp32, Shape{mask.kept()}),
                            .index = coded.bytes});
    writer.commit();
    EXPECT_EQ(train::read_mask(io::CheckpointReader(path), "w"), mask) << encoding->name;
  }
}

/// A run with checkpoints of steps 4 and 8.
fs::path make_checkpoints(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config, "train.steps=8 train.checkpoint_every=4 train.keep_checkpoints=2");
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer(config, comm, {.resume = "none"}).run();
  });
  return fs::path(config.run.out) / "checkpoints";
}

/// Flips a bit of the first value of a dataset.
void damage(const fs::path& file, const std::string& name) {
  const io::CheckpointReader reader(file);
  std::vector<float> values(static_cast<size_t>(reader.info(name).nnz));
  reader.optimizer(name, "moment1",
                   Tensor(values.data(), DType::fp32, Shape{reader.info(name).nnz}));
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const std::string wanted(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  const size_t at = bytes.find(wanted);
  ASSERT_NE(at, std::string::npos) << "raw values stand in the file as they are in memory";
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(bytes[at] ^ 1));
}

io::NewestIntact newest(const fs::path& folder, int ranks) {
  io::NewestIntact found;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    io::NewestIntact mine = train::newest_intact_checkpoint(folder, comm);
    if (comm.rank() == 0) {
      found = std::move(mine);
    } else {
      EXPECT_FALSE(mine.file);
    }
  });
  return found;
}

using NewestCheckpoint = RunTest;

TEST_F(NewestCheckpoint, DamageInAnyPartIsFound) {
  const fs::path folder = make_checkpoints(dir);
  const fs::path last = folder / "step-000008.h5";
  const std::vector<std::string> names = io::CheckpointReader(last).names();
  ASSERT_GE(names.size(), 3U);
  fs::copy(last, dir / "intact.h5");
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(newest(folder, ranks).file, last);
    for (const std::string& name : {names.front(), names[names.size() / 2], names.back()}) {
      damage(last, name);
      const io::NewestIntact found = newest(folder, ranks);
      EXPECT_EQ(found.file, folder / "step-000004.h5") << ranks << " ranks, " << name;
      ASSERT_EQ(found.skipped.size(), 1U);
      EXPECT_THAT(found.skipped[0], HasSubstr(name));
      fs::copy_file(dir / "intact.h5", last, fs::copy_options::overwrite_existing);
    }
  }
}

TEST_F(NewestCheckpoint, AFolderWithoutCheckpointsHasNone) {
  const io::NewestIntact found = newest(dir / "missing", 2);
  EXPECT_FALSE(found.file);
  EXPECT_TRUE(found.skipped.empty());
}

}  // namespace
}  // namespace espalier::testing::checkpoint_save_test
