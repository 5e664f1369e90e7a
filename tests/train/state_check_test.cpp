// A bit of state that flips between two updates ends the run: the error names parameter, array,
// rank and steps, and can be retried.
#include "src/train/exchange/agreement.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::state_check_test {
namespace {

using namespace testing;

/// An array of a parameter, on one rank.
struct Found {
  std::string parameter;
  Tensor tensor;
};
using Find = std::function<Tensor(sparse::Store&, const sparse::Parameter&)>;

struct Case {
  const char* kind;
  Find find;
  std::string settings{};
};

const std::string kPrune =
    "pruning.method=magnitude pruning.sparsity=0.5 pruning.at_step=2 sparse.index=int32";
const std::string kEightBits = "optimizer.state_bits=8";

std::vector<Case> cases() {
  const auto coded = [](const Tensor& t) { return t.dtype == DType::uint8 ? t : Tensor(); };
  return {
      {"value", [](auto& store, const auto& p) { return store.part(store.value(), p); }},
      {"dense copy", [](auto&, const auto& p) { return p.copied() ? p.dense : Tensor(); }, kPrune},
      {"low half", [](auto& store, const auto& p) { return store.state(p).low; },
       "train.dtype=bf16"},
      {"moment1", [](auto& store, const auto& p) { return store.state(p).moment1; }},
      {"moment2", [](auto& store, const auto& p) { return store.state(p).moment2; }},
      {"moment1", [coded](auto& store, const auto& p) { return coded(store.state(p).moment1); },
       kEightBits},
      {"scales of moment1", [](auto& store, const auto& p) { return store.state(p).scale1; },
       kEightBits},
      {"scales of moment2", [](auto& store, const auto& p) { return store.state(p).scale2; },
       kEightBits},
      {"index", [](auto&, const auto& p) { return p.index.memory()[0]; }, kPrune},
      {"kept tiles", [](auto&, const auto& p) { return p.tiles ? p.tiles->memory()[1] : Tensor(); },
       kPrune + " sparse.storage=tiles"},
      {"index", [](auto&, const auto& p) { return p.index.memory()[1]; },
       kPrune + " sparse.index=bitmap"},
      {"error feedback", [](auto& store, const auto& p) { return store.part(store.feedback(), p); },
       "parallel.codec=table:4 parallel.codec_min_size=0 parallel.error_feedback=true"},
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
    run_with(config, ranks,
             [&](train::Trainer& trainer, parallel::Communicator& comm, int64_t step) {
               if (comm.rank() == ranks - 1 && step == at) {
                 act(trainer);
               }
             });
  } catch (const Failure& failure) {
    return failure;
  }
  return Failure("");
}

using StateCheck = RunTest;

TEST_F(StateCheck, NamesAFlippedBitOfEachArray) {
  for (const Case& one : cases()) {
    for (const int ranks : {1, 3}) {
      for (const int64_t zero : {0, 1}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, zero {}", one.kind, ranks, zero));
        config = tiny_config(dir);
        config.parallel.zero = zero;
        apply_settings(config, "parallel.check_every=0 train.steps=8");
        apply_settings(config, one.settings);
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
TEST_F(StateCheck, NoCheckpointHoldsAFlippedBit) {
  config.train.steps = 8;
  const Failure failure = failure_of_run(config, 1, 8, [](train::Trainer& trainer) {
    flip(trainer.stage().store().state(trainer.stage().store().parameters()[0]).moment2);
  });
  EXPECT_THAT(failure.what(), HasSubstr("(moment2) changed on rank 0 between steps 8 and 9"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run" / "checkpoints" / "step-000008.h5"));
}

TEST_F(StateCheck, IsASetting) {
  config.parallel.check_state = false;
  const Failure failure = failure_of_run(config, 1, 5, [](train::Trainer& trainer) {
    flip(trainer.stage().store().state(trainer.stage().store().parameters()[0]).moment2);
  });
  EXPECT_STREQ(failure.what(), "");
}

using CompareRanks = RunTest;

TEST_F(CompareRanks, NamesIndicesAndScales) {
  // "random" needs no values: its masks exist before the first step.
  const Find exact_copy = [](auto&, const auto& p) {
    return p.spec.name == "norm.bias" ? p.dense : Tensor();
  };
  const std::vector<Case> arrays{
      {"index", [](auto&, const auto& p) { return p.index.memory()[0]; },
       kPrune + " pruning.method=random pruning.at_step=0"},
      {"scales of moment2", [](auto& store, const auto& p) { return store.state(p).scale2; },
       kEightBits},
      {"exact copy", exact_copy, "train.dtype=bf16"},
      {"exact copy", exact_copy, "train.dtype=bf16 parallel.zero=1"}};
  for (const Case& one : arrays) {
    config = tiny_config(dir);
    apply_settings(config, one.settings);
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
