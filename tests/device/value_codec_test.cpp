// ZeRO-1's coded new values, from device to device: values of ranks, and the bytes that they send,
// equal those of ranks on the CPU and of the same run through the host. Master copies are in the
// device's memory. Checkpoints can be exchanged in both directions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/device/told.h"
#include "tests/simt/device.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using testing::TempDir;

/// Ranks with NCCL between their devices; devices advance while hosts wait for messages.
struct Linked {
  testing::FakeNccl nccl;
  Linked() {
    testing::while_ranks_wait() = simt::drive_queues;
    nccl.connect(true);
  }
  ~Linked() { testing::while_ranks_wait() = {}; }
};

using Common = std::map<std::string, std::vector<float>>;

/// Final state of a rank, and rank 0's metrics of each step, including sent bytes.
struct End {
  testing::Outcome state;
  Common common;  ///< the values that compute reads, which follow those of `state`
  std::vector<nlohmann::json> told;
  bool operator==(const End&) const = default;
};

/// Result of the last rank.
End end_of(const io::Config& config, int ranks, const train::TrainerOptions& options) {
  End end;
  parallel::run_ranks(
      ranks,
      [&](parallel::Communicator& comm) {
        train::TrainerOptions mine = options;
        mine.resume = mine.resume.empty() ? "none" : mine.resume;
        train::Trainer trainer(config, comm, mine);
        trainer.run();
        testing::Outcome state = testing::outcome_of(trainer);
        Common common;
        for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
          common[parameter.spec.name] = trainer.stage().store().values(parameter);
        }
        if (comm.rank() + 1 == ranks) {
          end.state = std::move(state);
          end.common = std::move(common);
        }
      },
      {.timeout = 60, .while_waiting = testing::while_ranks_wait()});
  end.told = testing::told(config);
  return end;
}

End here(const io::Config& config, int ranks, train::TrainerOptions options = {}) {
  options.kernels = &kernels::by_name("cpu");
  return end_of(config, ranks, options);
}

End there(io::Config config, int ranks, train::TrainerOptions options = {}) {
  options.kernels = &testing::late_table();
  config.parallel.device_link = "nccl";  // otherwise there is none
  return end_of(config, ranks, options);
}

class ValueCodes : public ::testing::TestWithParam<std::string> {
 protected:
  io::Config config(const std::string& codec) const {
    io::Config made = testing::tiny_config(dir_);
    made.train.dtype = GetParam();
    made.parallel.zero = 1;
    made.parallel.value_codec.fallback = codec;
    made.parallel.codec_min_size = 64;
    made.optimizer.clip = 0.05;
    return made;
  }
  TempDir dir_;
  Linked linked_;
};

TEST_P(ValueCodes, OfEachKindAreThoseOfTheCpu) {
  for (const char* codec :
       {"bf16", "fp16", "fp8-e5m2", "fp8-e4m3", "dynamic8", "dynamic8-bnb", "static8", "mantissa8",
        "linear8", "maxmin:2", "maxmin:4:64", "table:4", "sign", "topk:0.1:256"}) {
    SCOPED_TRACE(codec);
    io::Config made = config(codec);
    made.train.steps = 4;
    const End want = here(made, 2);
    EXPECT_NE(want.common, want.state.values) << "codes lose something";
    EXPECT_EQ(there(made, 2), want);
  }
}

struct Way {
  const char* name;
  int ranks;
  void (*apply)(io::Config& config);
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"pruned", 3, testing::prune_sparse},
      {"gradual", 3, testing::prune_gradually},
      {"rigl", 2, testing::move_masks},
      {"gradients in codes", 2,
       [](io::Config& config) {
         testing::prune_expanded(config);
         config.parallel.codec.fallback = "maxmin:4";
         config.parallel.error_feedback = config.train.dtype != "fp16";  // its scale moves
         config.parallel.rounding = "stochastic";
       }},
      {"offloaded, 8 bits", 2,
       [](io::Config& config) {
         testing::prune_gradually(config);
         config.model.width = 64;  // parameters that are large enough for coded moments
         config.optimizer.state_bits = 8;
         config.optimizer.offload = true;
       }},
      {"sgd, not overlapped", 3,
       [](io::Config& config) {
         config.optimizer.kind = "sgd";
         config.parallel.overlap = false;
       }},
      {"one owner", 3,  // small buckets: some ranks own whole parameters
       [](io::Config& config) {
         testing::prune(config);
         config.parallel.bucket_mb = 1e-4;
       }},
      {"by pattern", 2,
       [](io::Config& config) {
         config.train.gradient_dtype = "fp32";
         config.parallel.value_codec = {.fallback = "fp32", .patterns = {{"*.mlp.*", "sign"}}};
       }},
      {"pipeline, tied", 4,
       [](io::Config& config) {
         config.model.tie_embeddings = true;
         config.parallel.pipeline = 2;
         config.parallel.partition = {2, 2};
         config.train.micro_batch = 3;
       }},
  };
  return all;
}

TEST_P(ValueCodes, OfRunsAreThoseOfTheCpu) {
  for (const auto& [name, ranks, apply] : ways()) {
    SCOPED_TRACE(name);
    io::Config made = config("maxmin:3");
    apply(made);
    EXPECT_EQ(there(made, ranks), here(made, ranks));
  }
}

/// Checkpoints from the CPU to the device, back, and on: each holds the replicated values and the
/// master copy.
TEST_P(ValueCodes, GoOnElsewhere) {
  io::Config made = config("maxmin:2");
  testing::prune_sparse(made);
  made.train.checkpoint_every = 3;
  End whole = here(made, 3);
  for (const bool begins_here : {true, false}) {
    made.run.out += "-elsewhere";
    bool is_here = begins_here;
    End end;
    for (const int64_t stop : {3, 7, 0}) {  // before and after the pruning
      const train::TrainerOptions options{.resume = stop == 3 ? "none" : "auto",
                                          .stop_after = stop};
      end = is_here ? here(made, 3, options) : there(made, 3, options);
      is_here = !is_here;
    }
    EXPECT_EQ(end.state.values, whole.state.values);
    EXPECT_EQ(end.state.moments, whole.state.moments);
    EXPECT_EQ(end.common, whole.common);
    EXPECT_EQ(end.told.back(), whole.told.back());
  }
}

/// NCCL's own sums have other bits; values are still coded.
TEST_P(ValueCodes, BesideNcclsOwnSums) {
  io::Config made = config("linear8");
  const End want = here(made, 3);
  made.parallel.reduction = "nccl";
  made.parallel.check_every = 1;
  const End got = there(made, 3);
  EXPECT_NE(got.common, got.state.values);
  EXPECT_EQ(got.told.back().at("comm_bytes_sent"), want.told.back().at("comm_bytes_sent"));
  EXPECT_NEAR(got.told.back().at("loss"), want.told.back().at("loss"), 1e-3);
}

/// Master copies are in the memory where values are encoded, except offloaded ones; all memory is
/// as planned, to the byte, also while masks change.
TEST_P(ValueCodes, HoldWhatWasPlanned) {
  for (const char* link : {"nccl", "host"}) {
    for (const bool offload : {false, true}) {
      for (const char* method : {"none", "magnitude"}) {
        SCOPED_TRACE(fmt::format("{}, offload {}, {}", link, offload, method));
        io::Config made = config("linear8");
        made.model.width = 64;
        made.optimizer.offload = offload;
        made.parallel.device_link = link;
        made.pruning.method = method;
        made.pruning.scope = "layer";  // elements kept are known beforehand
        made.pruning.sparsity = 0.5;
        made.pruning.at_step = 3;
        made.train.steps = 5;
        const bool on_device = std::string(link) == "nccl" && !offload;
        const auto body = [&](parallel::Communicator& comm) {
          train::Trainer trainer(made, comm, {.resume = "none", .kernels = &testing::late_table()});
          trainer.run();
          const train::MemoryPlan& plan = trainer.fit().plan;
          Arena& arena = trainer.arena();
          constexpr auto kMaster = static_cast<size_t>(Memory::master);
          const size_t copies = trainer.stage().store().parts().master;
          EXPECT_GT(copies, 0U);
          EXPECT_EQ(arena.use(Memory::master).now >= copies, on_device);
          EXPECT_EQ(arena.use(Memory::master).now, plan.last.at(kMaster));
          EXPECT_EQ(arena.host().use(Memory::master).now >= copies, !on_device);
          for (const auto& [use, planned] :
               {std::pair{&arena, &plan.peak}, {&arena.host(), &plan.pinned}}) {
            EXPECT_EQ(use->at_peak(Memory::master), planned->at(kMaster));
          }
          if (made.parallel.device_link == "nccl") {
            EXPECT_EQ(arena.use(Memory::communication).peak,
                      plan.peak.at(static_cast<size_t>(Memory::communication)));
          }
        };
        parallel::run_ranks(2, body, {.while_waiting = testing::while_ranks_wait()});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ValueCodes, ::testing::Values("fp32", "bf16", "fp16"));

}  // namespace
}  // namespace espalier
