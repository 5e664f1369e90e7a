// ZeRO-1's coded new values, from device to device: values of ranks, and the bytes that they send,
// equal those of ranks on the CPU and of the same run through the host. Master copies are in the
// device's memory. Checkpoints can be exchanged in both directions.
#include "src/kernels/wire_codec.h"
#include "tests/device/late_runs.h"

namespace espalier::value_codec_test {
namespace {

using testing::RanksWay;
using testing::TempDir;

using Common = std::map<std::string, std::vector<float>>;

/// Final state of a rank, and rank 0's metrics of each step, including sent bytes.
struct End {
  testing::Outcome state;
  Common common;  ///< the values that compute reads, which follow those of `state`
  std::vector<nlohmann::json> metrics;
  bool operator==(const End&) const = default;
};

/// Result of the last rank.
End end_of(const io::Config& config, int ranks, const train::TrainerOptions& options) {
  End end;
  testing::on_ranks(ranks, [&](parallel::Communicator& comm) {
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
  });
  end.metrics = testing::metrics_without_times(config);
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

/// ZeRO-1 whose new values are sent in a code.
void code_values(io::Config& config, const std::string& codec) {
  config.parallel.zero = 1;
  config.parallel.value_codec.fallback = codec;
  config.parallel.codec_min_size = 64;
  config.optimizer.clip = 0.05;
}

const std::vector<std::string>& dtypes() {
  static const std::vector<std::string> all{"fp32", "bf16", "fp16"};
  return all;
}

class ValueCodes : public ::testing::Test {
 protected:
  io::Config config(const std::string& dtype, const std::string& codec) const {
    io::Config made = testing::tiny_config(dir_);
    made.train.dtype = dtype;
    code_values(made, codec);
    return made;
  }
  const TempDir dir_;
  const testing::LinkedDevices linked_;
};

/// Each code in one type; tests of sums combine them (nccl_sums_test.cpp).
TEST_F(ValueCodes, OfEachKindAreThoseOfTheCpu) {
  size_t turn = 0;
  for (const kernels::WireCodec* codec : kernels::wire_codecs()) {
    if (codec->name == "fp32") {
      continue;  // loses nothing
    }
    const std::string& dtype = dtypes()[turn++ % 3];
    SCOPED_TRACE(fmt::format("{} of {}", codec->name, dtype));
    io::Config made = config(dtype, std::string(codec->name));
    made.train.steps = 3;
    const End want = here(made, 2);
    EXPECT_NE(want.common, want.state.values) << "codes lose something";
    EXPECT_EQ(there(made, 2), want);
  }
}

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {3, "prune_sparse"},
      {3, "prune_gradually"},
      {2, "move_masks"},
      {2, "prune_expanded codec:maxmin:4 parallel.rounding=stochastic"},
      // Parameters that are large enough for coded moments.
      {2, "prune_gradually model.width=64 optimizer.state_bits=8 optimizer.offload=true"},
      {3, "optimizer.kind=sgd parallel.overlap=false"},
      {3, "prune parallel.bucket_mb=1e-4"},  // some ranks own whole parameters
      {2, R"(train.gradient_dtype=fp32 parallel.value_codec={default="fp32","*.mlp.*"="sign"})"},
      {4, "stages:1f1b model.tie_embeddings=true"},
  };
  return all;
}

/// Six steps, with changes of masks at 2, 3, 4 and 5.
TEST_F(ValueCodes, OfRunsAreThoseOfTheCpu) {
  std::vector<RanksWay> all;
  for (const RanksWay& way : ways()) {  // in two of the three types
    all.insert(all.end(), {way, way});
  }
  testing::for_ways(
      all, 6,
      [](io::Config config, int ranks) {
        const auto own = config.parallel.value_codec;
        code_values(config, "maxmin:3");
        config.parallel.value_codec = own.patterns.empty() ? config.parallel.value_codec : own;
        if (config.parallel.codec.fallback != "fp32") {
          config.parallel.error_feedback = config.train.dtype != "fp16";  // whose scale moves
        }
        EXPECT_EQ(there(config, ranks), here(config, ranks));
      },
      dtypes());
}

/// Checkpoints from the CPU to the device, back, and on: each holds the replicated values and the
/// master copy.
TEST_F(ValueCodes, GoOnElsewhere) {
  for (const std::string& dtype : dtypes()) {
    io::Config made = config(dtype, "maxmin:2");
    made.run.out += dtype;
    testing::prune_sparse(made);
    made.train.steps = 8;
    made.train.checkpoint_every = 3;
    const End whole = here(made, 3);
    made.run.out += "-elsewhere";
    End end;
    for (const int64_t stop : {2, 3, 6, 0}) {  // before and after the pruning
      const train::TrainerOptions options{.resume = stop == 2 ? "none" : "auto",
                                          .stop_after = stop};
      end = stop == 2 || stop == 6 ? here(made, 3, options) : there(made, 3, options);
    }
    EXPECT_EQ(end.state.values, whole.state.values);
    EXPECT_EQ(end.state.moments, whole.state.moments);
    EXPECT_EQ(end.common, whole.common);
    EXPECT_EQ(end.metrics.back(), whole.metrics.back());
  }
}

/// NCCL's own sums have other bits; values are still coded.
TEST_F(ValueCodes, BesideNcclsOwnSums) {
  io::Config made = config("bf16", "linear8");
  const End want = here(made, 3);
  made.parallel.reduction = "nccl";
  made.parallel.check_every = 1;
  const End got = there(made, 3);
  EXPECT_NE(got.common, got.state.values);
  EXPECT_EQ(got.metrics.back().at("comm_bytes_sent"), want.metrics.back().at("comm_bytes_sent"));
  EXPECT_NEAR(got.metrics.back().at("loss"), want.metrics.back().at("loss"), 1e-3);
}

/// Master copies are in the memory where values are encoded, except offloaded ones; all memory is
/// as planned, to the byte, also while masks change.
TEST_F(ValueCodes, HoldWhatWasPlanned) {
  size_t turn = 0;
  for (const std::string link : {"nccl", "host"}) {
    for (const bool offload : {false, true}) {
      for (const char* method : {"none", "magnitude"}) {
        io::Config made = config(dtypes()[turn++ % 3], "linear8");
        SCOPED_TRACE(
            fmt::format("{}, offload {}, {}, {}", link, offload, method, made.train.dtype));
        made.model.width = 64;
        made.optimizer.offload = offload;
        made.parallel.device_link = link;
        made.pruning.method = method;
        made.pruning.scope = "layer";  // elements kept are known beforehand
        made.pruning.sparsity = 0.5;
        made.pruning.at_step = 2;
        made.train.steps = 4;
        const bool on_device = link == "nccl" && !offload;
        testing::train_late(made, 2, [&](train::Trainer& trainer, const auto&) {
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
          if (link == "nccl") {
            EXPECT_EQ(arena.use(Memory::communication).peak,
                      plan.peak.at(static_cast<size_t>(Memory::communication)));
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace espalier::value_codec_test
