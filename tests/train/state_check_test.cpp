// A bit of state that flips between two updates ends the run: the error names parameter, array,
// rank and steps, and can be retried.
#include <gmock/gmock.h>

#include "src/train/exchange/agreement.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::state_check_test {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

/// An array of a parameter, on one rank.
struct Found {
  std::string parameter;
  Tensor tensor;
};
using Find = std::function<Tensor(sparse::Store&, const sparse::Parameter&)>;

struct Case {
  const char* kind;
  Find find;
  std::function<void(io::Config&)> set = [](io::Config&) {};
};

void use_bf16(io::Config& config) { config.train.dtype = "bf16"; }
void use_8_bits(io::Config& config) { config.optimizer.state_bits = 8; }
void prune(io::Config& config) {
  config.pruning.method = "magnitude";
  config.pruning.sparsity = 0.5;
  config.pruning.at_step = 2;
  config.sparse.index.fallback = "int32";
}
void prune_with_bitmaps(io::Config& config) {
  prune(config);
  config.sparse.index.fallback = "bitmap";
}
void keep_tiles(io::Config& config) {
  prune(config);
  config.sparse.storage.fallback = "sparse";
  config.sparse.keep_tiles = true;
}
void use_feedback(io::Config& config) {
  config.parallel.codec.fallback = "table:4";
  config.parallel.codec_min_size = 0;
  config.parallel.error_feedback = true;
}

std::vector<Case> cases() {
  const auto coded = [](const Tensor& t) { return t.dtype == DType::uint8 ? t : Tensor(); };
  return {
      {"value", [](auto& store, const auto& p) { return store.part(store.value(), p); }},
      {"dense copy", [](auto&, const auto& p) { return p.copied() ? p.dense : Tensor(); }, prune},
      {"low half", [](auto& store, const auto& p) { return store.state(p).low; }, use_bf16},
      {"moment1", [](auto& store, const auto& p) { return store.state(p).moment1; }},
      {"moment2", [](auto& store, const auto& p) { return store.state(p).moment2; }},
      {"moment1", [coded](auto& store, const auto& p) { return coded(store.state(p).moment1); },
       use_8_bits},
      {"scales of moment1", [](auto& store, const auto& p) { return store.state(p).scale1; },
       use_8_bits},
      {"scales of moment2", [](auto& store, const auto& p) { return store.state(p).scale2; },
       use_8_bits},
      {"index", [](auto&, const auto& p) { return p.index.memory()[0]; }, prune},
      {"kept tiles", [](auto&, const auto& p) { return p.tiles ? p.tiles->memory()[1] : Tensor(); },
       keep_tiles},
      {"index", [](auto&, const auto& p) { return p.index.memory()[1]; }, prune_with_bitmaps},
      {"error feedback", [](auto& store, const auto& p) { return store.part(store.feedback(), p); },
       use_feedback},
  };
}

/// The first parameter, from the end of the network, whose array this rank holds.
std::optional<Found> find(sparse::Store& store, const Find& array) {
  const auto parameters = store.parameters();
  for (size_t p = parameters.size(); p-- > 0;) {
    const Tensor tensor = array(store, parameters[p]);
    if (tensor && tensor.count() > 0) {
      return Found{parameters[p].spec.name, tensor};
    }
  }
  return {};
}

void flip(const Tensor& tensor) { *static_cast<uint8_t*>(tensor.data) ^= 1; }

/// The failure of a run in which `act` is called on the last rank after step `at`.
Failure failure_of_run(const io::Config& config, int ranks, int64_t at,
                       const std::function<void(train::Trainer&)>& act) {
  try {
    parallel::run_ranks(ranks,
                        [&](parallel::Communicator& comm) {
                          train::Trainer* running = nullptr;
                          train::TrainerOptions options{.resume = "none"};
                          options.on_step = [&](const train::StepReport& report) {
                            if (comm.rank() == ranks - 1 && report.step == at) {
                              act(*running);
                            }
                          };
                          train::Trainer trainer(config, comm, options);
                          running = &trainer;
                          trainer.run();
                        },
                        {.timeout = 60});
  } catch (const Failure& failure) {
    return failure;
  }
  return Failure("");
}

TEST(StateCheck, NamesAFlippedBitOfEachArray) {
  for (const Case& one : cases()) {
    for (const int ranks : {1, 3}) {
      for (const int64_t zero : {0, 1}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, zero {}", one.kind, ranks, zero));
        const TempDir dir;
        io::Config config = tiny_config(dir);
        config.parallel.zero = zero;
        config.parallel.check_every = 0;
        config.train.steps = 8;
        one.set(config);
        std::string name;
        const Failure failure = failure_of_run(config, ranks, 5, [&](train::Trainer& trainer) {
          const auto found = find(trainer.stage().store(), one.find);
          ASSERT_TRUE(found);
          name = found->parameter;
          flip(found->tensor);
        });
        EXPECT_TRUE(failure.retryable());
        EXPECT_THAT(failure.what(),
                    HasSubstr(fmt::format("bits of '{}' ({}) changed on rank {} between steps 5 "
                                          "and 6: faulty memory",
                                          name, one.kind, ranks - 1)));
      }
    }
  }
}

/// The last checkpoint of a run, too, is written only from verified state.
TEST(StateCheck, NoCheckpointHoldsAFlippedBit) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.steps = 8;
  const Failure failure = failure_of_run(config, 1, 8, [](train::Trainer& trainer) {
    flip(trainer.stage().store().state(trainer.stage().store().parameters()[0]).moment2);
  });
  EXPECT_THAT(failure.what(), HasSubstr("(moment2) changed on rank 0 between steps 8 and 9"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run" / "checkpoints" / "step-000008.h5"));
}

TEST(StateCheck, IsASetting) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.parallel.check_state = false;
  const Failure failure = failure_of_run(config, 1, 5, [](train::Trainer& trainer) {
    flip(trainer.stage().store().state(trainer.stage().store().parameters()[0]).moment2);
  });
  EXPECT_STREQ(failure.what(), "");
}

TEST(CompareRanks, NamesIndicesAndScales) {
  const auto prune_at_start = [](io::Config& config) {
    prune(config);
    config.pruning.method = "random";  // needs no values: masks exist before the first step
    config.pruning.at_step = 0;
  };
  const std::array<Case, 2> arrays{
      Case{"index", [](auto&, const auto& p) { return p.index.memory()[0]; }, prune_at_start},
      Case{"scales of moment2", [](auto& store, const auto& p) { return store.state(p).scale2; },
           use_8_bits}};
  for (const Case& one : arrays) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    one.set(config);
    std::string name;
    const auto compare = [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = "none"});
      sparse::Store& store = trainer.stage().store();
      if (comm.rank() == 2) {
        const auto found = find(store, one.find);
        name = found.value().parameter;
        flip(found->tensor);
      }
      train::compare_ranks(store, comm);
    };
    try {
      parallel::run_ranks(3, compare);
      ADD_FAILURE() << "no error";
    } catch (const Failure& failure) {
      EXPECT_TRUE(failure.retryable());
      EXPECT_THAT(failure.what(),
                  HasSubstr(fmt::format("ranks hold different bits of '{} ({})' (not the same on "
                                        "rank 2)",
                                        name, one.kind)));
    }
  }
}

}  // namespace
}  // namespace espalier::state_check_test
