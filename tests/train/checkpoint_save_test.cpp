// Before a checkpoint replaces older ones, replicas are compared, its numbers are finite, and it is
// read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "io/files/raw_file.h"
#include "sparse/index/file_index.h"
#include "sparse/index/registry.h"
#include "src/train/masks/mask_files.h"
#include "src/train/run/checkpoint_save.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::testing::checkpoint_save_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  config.parallel.check_every = 0;
  config.train.checkpoint_every = 4;
  config.train.keep_checkpoints = 1;
  return config;
}

TEST(CheckpointSave, ReplicasThatDifferAreNotSaved) {
  const TempDir dir;
  io::Config config = config_for(dir);
  config.parallel.check_state = false;  // it finds the change first
  const std::string message = failure_of([&] {
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      train::Trainer* trainer = nullptr;
      train::TrainerOptions options{.resume = "none"};
      options.on_step = [&](const train::StepReport& report) {
        if (comm.rank() == 1 && report.step == 6) {
          sparse::Store& store = trainer->stage().store();
          const sparse::Parameter& parameter = store.parameters().front();
          std::vector<float> moment = store.moment(parameter, 0);
          moment[0] += 1;
          store.set_moment(store.parameters().front(), 0, moment);
        }
      };
      train::Trainer made(config, comm, std::move(options));
      trainer = &made;
      made.run();
    });
  });
  EXPECT_THAT(message, HasSubstr("ranks hold different bits of"));
  EXPECT_EQ(names_in(dir / "run/checkpoints"), (std::vector<std::string>{"step-000004.h5"}));
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

TEST(CheckpointSave, AFileThatCannotBeReadBackReplacesNone) {
  const TempDir dir;
  const io::Config config = config_for(dir);
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
  EXPECT_EQ(names_in(dir / "run/checkpoints"),
            (std::vector<std::string>{"step-000004.h5", "step-000008.h5.damaged"}));
  const Outcome resumed = run(config, 1, {.resume = "auto"});
  EXPECT_EQ(resumed.values, undisturbed.values);
  EXPECT_EQ(resumed.moments, undisturbed.moments);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The loss of step 8 is finite; its update spoils the state that is saved then.
TEST(CheckpointSave, AnUpdateThatSpoilsTheStateReplacesNoCheckpoint) {
  const TempDir dir;
  io::Config config = config_for(dir);
  for (const bool background : {true, false}) {
    config.train.checkpoint_background = background;
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("background {}, {} ranks", background, ranks));
      const Outcome undisturbed = run(config, ranks);
      fs::remove_all(dir / "run");
      std::string name;
      const std::string message = failure_of([&] {
        parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
          train::Trainer* trainer = nullptr;
          train::TrainerOptions options{.resume = "none"};
          options.on_step = [&](const train::StepReport& report) {
            if (report.step != 7) {
              return;
            }
            sparse::Store& store = trainer->stage().store();
            const sparse::Parameter& parameter = store.parameters()[2];
            std::vector<float> moment = store.moment(parameter, 1);
            moment.back() = kInfinity;  // an update of 0: parameters stay finite
            store.set_moment(parameter, 1, moment);
            trainer->data_parallel().clear_state_check();
            if (comm.rank() == 0) {
              name = parameter.spec.name;
            }
          };
          train::Trainer made(config, comm, std::move(options));
          trainer = &made;
          made.run();
        });
      });
      EXPECT_THAT(message, HasSubstr(fmt::format("'{}' (moment2) has a NaN or an infinity after "
                                                 "step 8: training has diverged",
                                                 name)));
      EXPECT_EQ(names_in(dir / "run/checkpoints"), (std::vector<std::string>{"step-000004.h5"}));
      const Outcome resumed = run(config, ranks, {.resume = "auto"});
      EXPECT_EQ(resumed.values, undisturbed.values);
      EXPECT_EQ(resumed.moments, undisturbed.moments);
    }
  }
}

/// Each array of a checkpoint with a number that is not finite, and the error's name of the array.
TEST(CheckpointSave, EachArrayMustBeFinite) {
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
    std::function<void(io::Config&)> set{};
    Spoil spoil;
    bool vector = false;
  };
  const std::vector<Array> arrays{
      {"values", {}, set_value(kNan)},
      {"values", {}, set_value(-kInfinity)},
      {"values", [](io::Config& config) { config.train.dtype = "fp16"; }, set_value(1e6F)},
      {"values", [](io::Config& config) { config.train.dtype = "bf16"; }, set_value(kNan)},
      {"master copy", {}, set_value(kInfinity), true},
      {"moment1", {}, set_moment(0)},
      {"moment2", {}, set_moment(1)},
      {"pruning1",
       [](io::Config& config) {
         prune(config);
         config.pruning.method = "movement";
       },
       [&](train::Trainer& trainer, const sparse::Parameter& parameter) {
         sparse::Store& store = trainer.stage().store();
         store.set_pruning_array(parameter, 0,
                                 set_first(store.pruning_array(parameter, 0), kInfinity));
       }},
      {"error feedback",
       [](io::Config& config) {
         config.parallel.codec.fallback = "maxmin:4";
         config.parallel.error_feedback = true;
       },
       [](train::Trainer& trainer, const sparse::Parameter& parameter) {
         const sparse::Store& store = trainer.stage().store();
         store.part(store.feedback(), parameter).span<float>().back() = kNan;
       }},
  };
  for (const Array& array : arrays) {
    for (const bool copies : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, copies {}", array.name, copies));
      const TempDir dir;
      io::Config config = config_for(dir);
      if (array.set) {
        array.set(config);
      }
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
TEST(CheckpointSave, MasksAreReadInEveryEncoding) {
  const TempDir dir;
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

}  // namespace
}  // namespace espalier::testing::checkpoint_save_test
