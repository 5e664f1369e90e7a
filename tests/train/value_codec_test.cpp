// ZeRO-1's coded new values (src/train/stage/wire_formats.h): ranks hold the same bits, the owner
// keeps coding errors and sends them later, bytes match the formula, and all other features of a
// run work.
#include <cmath>

#include "parallel/reduction/sra.h"
#include "parallel/wire/codec.h"
#include "src/config/parse.h"
#include "src/core/rng.h"
#include "src/train/stage/wire_formats.h"
#include "tests/support/codec_samples.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::value_codec_test {
namespace {

using namespace testing;

io::Config coded(const TempDir& dir, const std::string& codec, const std::string& dtype = "fp32") {
  io::Config config = tiny_config(dir);
  apply_settings(
      config, fmt::format("train.dtype={} parallel.zero=1 parallel.value_codec={}", dtype, codec));
  return config;
}

/// max |master copy - replicated values|. Collective.
double largest_lag(sparse::Store& store) {
  double largest = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::vector<float> master = store.master(parameter);
    const std::vector<float> common = store.values(parameter);
    for (size_t k = 0; k < master.size(); ++k) {
      largest = std::max(largest, std::abs(double{master[k]} - double{common[k]}));
    }
  }
  return largest;
}

using CodedValues = RunTest;

TEST_F(CodedValues, EveryCodecKeepsReplicasEqualAndLearnsAsWell) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const auto outcome = [&](const std::string& codec) {
      config = coded(dir, codec, dtype);
      apply_settings(config, "train.steps=40 parallel.check_every=1");
      return run(config, 3);
    };
    const Outcome plain = outcome("fp32");
    for (const std::string& codec : lossy_codecs()) {
      SCOPED_TRACE(dtype + " " + codec);
      const Outcome got = outcome(codec);
      ASSERT_EQ(got.losses.size(), plain.losses.size());
      EXPECT_EQ(got.losses.front(), plain.losses.front()) << "the first loss precedes any message";
      EXPECT_NE(got.values, plain.values);
      const bool coarse = codec.starts_with("sign") ||
                          codec.starts_with("topk");  // their values initially lag behind
      EXPECT_NEAR(got.val_loss, plain.val_loss, (coarse ? 0.03 : 0.003) * plain.val_loss);
    }
  }
}

/// With no codec for any parameter, or on one rank, the run equals one with uncoded values.
TEST_F(CodedValues, WithoutACodecNoBitChanges) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    io::Config none = coded(dir, "fp32", dtype);
    const Outcome plain = run(none, 3);
    none.parallel.value_codec.patterns = {{"*", "linear8"}, {"*", "fp32"}};
    EXPECT_EQ(run(none, 3), plain);
    none.parallel.zero = 0;
    none.parallel.value_codec.patterns.clear();
    EXPECT_EQ(run(coded(dir, "linear8", dtype), 1), run(none, 1));
  }
}

TEST_F(CodedValues, ScattersDoNotDependOnTheReduction) {
  config = coded(dir, "linear8");
  const Outcome sra = run(config, 3);
  for (const char* const reduction : {"all-to-all", "hierarchical", "mpi"}) {
    config.parallel.reduction = reduction;
    EXPECT_EQ(run(config, 3), sra) << reduction;
  }
}

/// Values that follow a moving target through the wire alone, with a slice for each rank.
class Follower {
 public:
  Follower(parallel::Communicator& comm, const std::string& codec)
      : comm_(comm), wire_(kernels::by_name("cpu"), stream_) {
    const int64_t slice = kCount / comm.size();
    for (int rank = 0; rank < comm.size(); ++rank) {
      edges_.push_back(rank * slice);
      const int64_t end = rank + 1 == comm.size() ? kCount : (rank + 1) * slice;
      segments_.push_back({.first = edges_.back(),
                           .count = end - edges_.back(),
                           .format = parallel::format_of(parallel::parse_codec(codec)),
                           .sends_difference = true});
    }
    edges_.push_back(kCount);
    parallel::WireSegment& mine = segments_[static_cast<size_t>(comm.rank())];
    mine.target = Tensor(target_.data() + mine.first, DType::fp32, Shape{mine.count});
    wire_.set_segments(segments_);
  }

  void send(const Tensor& common) {
    parallel::SraReduction gather(comm_, arena_, {.piece_bytes = 4096, .staging_bytes = 1 << 16});
    gather.start(
        {.data = common, .phases = parallel::Phases::gather, .edges = edges_, .wire = &wire_});
    gather.wait();
  }
  std::vector<float>& target() { return target_; }

  static constexpr int64_t kCount = 10'007;

 private:
  parallel::Communicator& comm_;
  Arena arena_;
  Stream stream_{arena_, 1};
  std::vector<float> target_ = std::vector<float>(kCount);
  std::vector<int64_t> edges_;
  std::vector<parallel::WireSegment> segments_;
  parallel::Wire wire_;
};

/// Sent values plus the remaining lag equal the target: the lag never exceeds the loss of one
/// encoding, however long targets move, and vanishes when they stop.
TEST_F(CodedValues, EncodingErrorsAreSentLater) {
  for (const std::string codec : {"linear8", "dynamic8", "maxmin:2", "maxmin:4", "fp8-e4m3"}) {
    parallel::run_ranks(3, [&](parallel::Communicator& comm) {
      Follower follower(comm, codec);
      std::vector<float>& target = follower.target();
      std::vector<float> common(target.size());
      const Tensor values(common.data(), DType::fp32, Shape{Follower::kCount});
      double step = 0;
      const auto lag = [&] {
        double largest = 0;
        for (size_t i = 0; i < target.size(); ++i) {
          largest = std::max(largest, std::abs(double{target[i]} - double{common[i]}));
        }
        return largest;
      };
      for (int t = 0; t < 300; ++t) {
        for (size_t i = 0; i < target.size();
             ++i) {  // the same on all ranks; each sends its own slice
          const float moved = 1e-3F * static_cast<float>(philox(7, t, i)[0] % 1000) / 1000;
          target[i] += moved;
          step = std::max(step, double{moved});
        }
        follower.send(values);
        // maxmin:2 loses up to a third of the largest change: 1/3 + 1/9 + … of a step.
        ASSERT_LE(lag(), (codec == "maxmin:2" ? 0.51 : 0.1) * step) << codec << " step " << t;
      }
      for (int t = 0; t < 60; ++t) {
        follower.send(values);
      }
      EXPECT_LE(lag(), 1e-7) << codec << ": an ulp of the values, which grow to 0.15";
    });
  }
}

/// In whole runs the lag stays as small as at the start, while weights keep changing.
TEST_F(CodedValues, LagDoesNotGrow) {
  config = coded(dir, "linear8");
  apply_settings(config, "train.steps=120 optimizer.schedule=constant");
  std::vector<double> lags;
  run_with(config, 2, [&](train::Trainer& trainer, parallel::Communicator& comm, int64_t) {
    const double lag = largest_lag(trainer.stage().store());
    if (comm.rank() == 0) {
      lags.push_back(lag);
    }
  });
  const double early = *std::max_element(lags.begin(), lags.begin() + 30);
  EXPECT_GT(early, 0);
  EXPECT_LE(*std::max_element(lags.begin() + 30, lags.end()), 1.5 * early);
  EXPECT_LT(early, 0.02 * config.optimizer.lr) << "a 254th of the largest change";
}

/// Bytes of the gather on rank `rank`, and those of uncoded values.
struct GatherBytes {
  int64_t coded = 0, plain = 0;
};

GatherBytes gather_bytes(const io::Config& config, sparse::Store& store, int ranks, int rank,
                         const parallel::Partition& partition) {
  GatherBytes bytes;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const int64_t mine = store.shares(parameter)[static_cast<size_t>(rank)].count;
    const auto format = train::value_format(config, parameter.spec)
                            .value_or(parallel::plain_format(store.value().dtype));
    bytes.coded += (ranks - 1) * static_cast<int64_t>(kernels::wire_bytes(format, mine));
  }
  for (size_t bucket = 0; bucket < partition.buckets(); ++bucket) {
    bytes.plain += (ranks - 1) * partition.slice(bucket, rank).count *
                   static_cast<int64_t>(size_of(store.value().dtype));
  }
  return bytes;
}

TEST_F(CodedValues, BytesAreThoseOfTheFormula) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string codec : {"linear8:100", "maxmin:4", "fp8-e5m2", "topk:0.1:256"}) {
      for (const int ranks : {2, 3}) {
        SCOPED_TRACE(fmt::format("{} {} {}", dtype, codec, ranks));
        std::vector<int64_t> sent(static_cast<size_t>(ranks));
        const auto train_with = [&](const std::string& with, auto&& after) {
          config = coded(dir, with, dtype);
          config.parallel.value_codec.patterns = {{"head.*", "fp32"}};
          apply_settings(config, "pruning.method=random pruning.sparsity=0.5");
          parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
            train::Trainer trainer(config, comm, {.resume = "none"});
            const int64_t before = comm.sent(parallel::Traffic::allreduce).bytes;
            trainer.run();
            after(trainer, comm, comm.sent(parallel::Traffic::allreduce).bytes - before);
          });
        };
        train_with("fp32", [&](auto&, auto& comm, int64_t bytes) {
          sent[static_cast<size_t>(comm.rank())] = bytes;
        });
        train_with(codec, [&](auto& trainer, auto& comm, int64_t bytes) {
          sparse::Store& store = trainer.stage().store();
          const auto& shards = dynamic_cast<train::Shards&>(*store.options().sharding);
          const GatherBytes want =
              gather_bytes(config, store, ranks, comm.rank(), shards.partition());
          EXPECT_EQ(bytes - sent[static_cast<size_t>(comm.rank())],
                    config.train.steps * (want.coded - want.plain));
          EXPECT_LT(want.coded, want.plain) << dtype << " " << codec;
        });
      }
    }
  }
}

TEST_F(CodedValues, NeedsASharedOptimizerAndACodecOfValues) {
  const auto refused = [](const std::string& text) {
    return failure_of([&] { config::validate(config::parse(text, "run.toml")); });
  };
  EXPECT_THAT(refused("[parallel]\nvalue_codec = \"linear8\"\n"),
              ::testing::AllOf(HasSubstr("parallel.value_codec = \"linear8\""),
                               HasSubstr("set parallel.zero = 1")));
  EXPECT_THAT(refused("[parallel]\nvalue_codec = {default = \"fp32\", \"head.*\" = \"bf16\"}\n"),
              HasSubstr("set parallel.zero = 1"));
  for (const std::string codec : {"adaptive", "fastest", "adaprec", "linear9"}) {
    EXPECT_THAT(refused("[parallel]\nzero = 1\nvalue_codec = \"" + codec + "\"\n"),
                HasSubstr("parallel.value_codec"))
        << codec;
  }
  const auto format = [](const std::string& name, const Shape& shape) {
    io::Config made;
    made.parallel.zero = 1;
    made.parallel.value_codec = {.fallback = "maxmin:4", .patterns = {{"*.small.*", "linear8"}}};
    return train::value_format(made, {.name = name, .shape = shape}).has_value();
  };
  EXPECT_TRUE(format("blocks.0.mlp.expand.weight", Shape{128, 32}));
  EXPECT_FALSE(format("blocks.0.mlp.expand.weight", Shape{31, 32})) << "below codec_min_size";
  EXPECT_TRUE(format("blocks.0.small.weight", Shape{31, 32})) << "named by a pattern";
  EXPECT_FALSE(format("blocks.0.small.bias", Shape{4096})) << "vectors are exact";
}

}  // namespace
}  // namespace espalier::value_codec_test
