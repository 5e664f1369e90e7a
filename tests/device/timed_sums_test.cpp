// Codecs chosen by times, between devices. Sums are timed on the link until they complete, in
// planned memory. The run then uses the chosen codec. A peer lost during the timing ends the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <regex>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_api.h"
#include "parallel/wire/codec.h"
#include "src/core/mirror.h"
#include "src/kernels/cuda/table.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/reduction_timer.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/run/snapshot.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::TempDir;
using ::testing::ThrowsMessage;

constexpr auto kMessages = static_cast<size_t>(Memory::communication);

/// Ranks with NCCL between their devices.
class TimedSums : public ::testing::TestWithParam<std::string> {
 protected:
  TimedSums() {
    nccl_.connect(true);
    testing::while_ranks_wait() = simt::drive_queues;
    config_.train.dtype = GetParam();
    config_.parallel.codec_min_size = 64;
  }
  ~TimedSums() override { testing::while_ranks_wait() = {}; }

  TempDir dir_;
  testing::FakeNccl nccl_;
  io::Config config_ = testing::tiny_config(dir_);
};

INSTANTIATE_TEST_SUITE_P(DTypes, TimedSums, ::testing::Values("fp32", "bf16"));

void on_ranks(int ranks, const std::function<void(parallel::Communicator&)>& body) {
  parallel::run_ranks(ranks, body, {.while_waiting = simt::drive_queues});
}

/// A run between devices, and its notes.
struct Told {
  Outcome outcome;
  std::string notes;
  std::map<std::string, int64_t> open;  ///< kept elements of parameters whose codec was still open
  int64_t steps = 0;
};

Told run_linked(const io::Config& config, int ranks, train::TrainerOptions options = {}) {
  Told told;
  std::mutex mutex;
  options.resume = options.resume.empty() ? "none" : options.resume;
  options.kernels = &testing::late_table();
  options.on_note = [&](const std::string& note) {
    const std::scoped_lock lock(mutex);
    told.notes += note + "\n";
  };
  on_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions mine = options;
    mine.on_step = [&](const train::StepReport& report) {
      EXPECT_TRUE(std::isfinite(report.loss));
      told.steps += comm.rank() == 0 ? 1 : 0;
    };
    train::Trainer trainer(config, comm, mine);
    trainer.run();
    Outcome outcome = testing::outcome_of(trainer);
    if (comm.rank() == 0) {
      told.outcome = std::move(outcome);
      for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
        if (!train::gradient_format(config, trainer.stage(), parameter)) {
          told.open[parameter.spec.name] = parameter.kept();
        }
      }
    }
  });
  EXPECT_THAT(told.notes, HasSubstr("gradients go from GPU to GPU by NCCL"));
  told.outcome.losses.clear();
  return told;
}

/// The reference run on the CPU.
Outcome run_on_cpu(const io::Config& config, int ranks) {
  Outcome outcome = testing::run(config, ranks);
  outcome.losses.clear();
  outcome.val_loss = 0;
  return outcome;
}

TEST_P(TimedSums, OfFastestChooseWhatThenTravels) {
  for (const int zero : {0, 1}) {
    config_.parallel.codec.fallback = "fastest";
    config_.parallel.zero = zero;
    const Told told = run_linked(config_, 3);
    std::map<int64_t, std::string> by_size;
    const std::regex form("([0-9]+) elements: ([^,\n]+)");
    for (std::sregex_iterator it(told.notes.begin(), told.notes.end(), form), end; it != end;
         ++it) {
      by_size[std::stoll((*it)[1])] = (*it)[2];
    }
    io::Config named = config_;
    named.parallel.codec.fallback = "fp32";
    for (const auto& [name, size] : told.open) {
      ASSERT_TRUE(by_size.contains(size)) << told.notes;
      named.parallel.codec.patterns.emplace_back(name, by_size[size]);
    }
    EXPECT_GT(told.open.size(), 4U);
    EXPECT_EQ(told.outcome, run_on_cpu(named, 3)) << told.notes;
  }
}

TEST_P(TimedSums, OfAutoChooseWhatThenTravels) {
  config_.parallel.codec.fallback = "maxmin:4";
  config_.parallel.reduction = "auto";
  const Told told = run_linked(config_, 2);
  io::Config named = config_;
  named.parallel.reduction = "sra";
  if (told.notes.find("does not pay") != std::string::npos) {
    named.parallel.codec.fallback = "fp32";
  } else {
    EXPECT_THAT(told.notes, HasSubstr("codec maxmin:4:128 pays from"));
  }
  EXPECT_EQ(told.outcome, run_on_cpu(named, 2)) << told.notes;
}

/// The first step chooses; checkpoints store the choice.
TEST_P(TimedSums, OfAdaptiveChooseWhatThenTravelsAlsoAfterAResume) {
  config_.parallel.codec.fallback = "adaptive";
  config_.parallel.codec_goal = "time";
  config_.parallel.error_feedback = true;
  const Told first = run_linked(config_, 2, {.stop_after = 6});
  const auto checkpoint = dir_ / "run/checkpoints/step-000006.h5";
  const std::string chosen = train::progress_of(io::CheckpointReader(checkpoint)).codec_choice;
  EXPECT_THAT(first.notes, HasSubstr("codecs chosen: "));
  const Told told = run_linked(config_, 2, {.resume = "auto"});
  io::Config named = config_;
  named.parallel.codec.fallback = "fp32";
  for (const auto& [name, size] : told.open) {
    const size_t at = (";" + chosen).find(";" + name + "=");
    ASSERT_NE(at, std::string::npos) << chosen;
    const size_t begin = at + name.size() + 1;
    named.parallel.codec.patterns.emplace_back(
        name, chosen.substr(begin, chosen.find(';', begin) - begin));
  }
  EXPECT_GT(told.open.size(), 4U);
  EXPECT_EQ(told.outcome, run_on_cpu(named, 2)) << chosen;
}

/// With the same codec twice the run is that codec's, on the CPU: trials change no state.
TEST_P(TimedSums, OfAdaPrecAreThoseOfItsTrials) {
  config_.parallel.error_feedback = true;
  config_.train.steps = 20;
  config_.parallel.codec.fallback = "maxmin:4";
  const Outcome want = run_on_cpu(config_, 2);
  config_.parallel.codec.fallback = "adaprec";
  config_.parallel.codec_candidates = {"maxmin:4", "maxmin:4:128"};  // the same
  config_.parallel.codec_every = 8;
  config_.parallel.codec_trial = 5;
  Told told = run_linked(config_, 2, {.stop_after = 9});
  EXPECT_THAT(told.notes, AllOf(HasSubstr("AdaPrec after step 0"), HasSubstr("after step 8")));
  told = run_linked(config_, 2, {.resume = "auto"});
  EXPECT_EQ(told.outcome, want);
}

/// Masks change: sums of other lengths are timed during the run.
TEST_P(TimedSums, OfOtherMasksAreTimedAnew) {
  testing::prune_gradually(config_);
  config_.pruning.sparsity = 0.8;
  for (const std::string codec : {"fastest", "maxmin:4", "adaptive"}) {
    config_.parallel.codec.fallback = codec;
    config_.parallel.codec_goal = "time";
    config_.parallel.codec_every = 4;
    config_.parallel.reduction = "auto";
    const Told told = run_linked(config_, 2);
    EXPECT_EQ(told.steps, config_.train.steps);
    const char* what = codec == "fastest" ? "fastest codecs: " : "codec maxmin:4";
    const size_t once = told.notes.find(what);
    ASSERT_NE(once, std::string::npos) << told.notes;
    EXPECT_NE(told.notes.find(what, once + 1), std::string::npos) << told.notes;
  }
}

/// Parts with asynchronous steps also have their codecs timed.
TEST_P(TimedSums, OfAsynchronousParts) {
  config_.parallel.codec.fallback = "fastest";
  config_.parallel.pipeline = 2;
  config_.parallel.partition = {2, 2};
  config_.parallel.schedule = "async";
  config_.parallel.drain_every = 4;
  config_.train.micro_batch = 3;
  EXPECT_THAT(run_linked(config_, 4).notes, AllOf(HasSubstr("stage 0: fastest codecs: "),
                                                  HasSubstr("stage 1: fastest codecs: ")));
}

struct Plan {
  std::string codec;
  std::string reduction = "sra";
  int zero = 0;
  bool feedback = false;
  bool exact = false;  ///< all choices give the same values
};

TEST_P(TimedSums, HoldNoMoreThanWasPlanned) {
  for (const Plan& way :
       {Plan{.codec = "fastest"}, Plan{.codec = "fastest", .zero = 1, .feedback = true},
        Plan{.codec = "maxmin:4", .reduction = "auto", .exact = true},
        Plan{.codec = "topk:0.9:64", .reduction = "auto", .zero = 1, .exact = true},
        Plan{.codec = "maxmin:2", .reduction = "auto", .feedback = true}, Plan{.codec = "adaptive"},
        Plan{.codec = "adaptive", .reduction = "auto", .feedback = true},
        Plan{.codec = "adaprec", .exact = true},
        Plan{.codec = "adaprec", .zero = 1, .feedback = true, .exact = true}}) {
    io::Config config = config_;
    config.parallel.codec.fallback = way.codec;
    config.parallel.codec_goal = "time";
    config.parallel.codec_trial = 5;
    config.parallel.codec_candidates = {"table:1", "fp32", "topk:0.5", "maxmin:8:64"};
    config.parallel.reduction = way.reduction;
    config.parallel.zero = way.zero;
    config.parallel.error_feedback = way.feedback;
    on_ranks(3, [&](parallel::Communicator& comm) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", way.codec, way.reduction, way.zero, way.feedback));
      train::Trainer trainer(config, comm, {.resume = "none", .kernels = &testing::late_table()});
      trainer.run();
      const train::MemoryPlan& plan = trainer.fit().plan;
      const size_t planned = plan.peak.at(kMessages);
      const size_t used = trainer.arena().use(Memory::communication).peak;
      EXPECT_GT(used, 0U);
      EXPECT_LE(used, planned);
      EXPECT_TRUE(!way.exact || used == planned) << used << " of " << planned;
      EXPECT_LT(planned, 3 * used);
      EXPECT_LE(trainer.arena().total().peak, plan.needed());
      EXPECT_LE(
          trainer.arena().host().use(Memory::communication).peak,
          plan.pinned.at(kMessages) + 8192);  // copies of the inputs and losses of micro-batches
    });
  }
}

/// The plan covers any choice of "fastest": each matrix coded while all others are sent
/// uncompressed.
TEST_P(TimedSums, OfFastestArePlannedForAnyChoice) {
  const auto planned = [&] {
    size_t bytes = 0;
    on_ranks(3, [&](parallel::Communicator& comm) {
      const train::Trainer trainer(config_, comm,
                                   {.resume = "none", .kernels = &testing::late_table()});
      if (comm.rank() == 0) {
        bytes = trainer.fit().plan.peak.at(kMessages);
      }
    });
    return bytes;
  };
  for (const int zero : {0, 1}) {
    config_.parallel.zero = zero;
    config_.parallel.codec.patterns.clear();
    config_.parallel.codec.fallback = "fastest";
    const size_t most = planned();
    config_.parallel.codec.fallback = "fp32";
    for (const char* name : {"embedding.token", "blocks.0.mlp.expand.weight", "head.weight"}) {
      config_.parallel.codec.patterns = {{name, "maxmin:4"}};
      EXPECT_LE(planned(), most) << name;
    }
  }
}

/// The kernels of table cuda in the harness; `check_every` compares replicas.
TEST(TimedSumsOfCuda, AreThoseOfARun) {
  testing::FakeNccl nccl;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.model.layers = 1;
  config.model.context = 8;
  config.train.global_batch = 4;
  config.train.steps = 2;
  config.train.eval_batches = 1;
  config.parallel.check_every = 1;
  const std::map<std::string, std::string> told{
      {"fastest", "fastest codecs: "}, {"adaptive", "codecs chosen: "}, {"topk:0.1", "pay"}};
  for (const auto& [codec, words] : told) {
    config.parallel.codec.fallback = codec;
    config.parallel.codec_goal = "time";
    config.parallel.reduction = codec == "topk:0.1" ? "auto" : "sra";
    on_ranks(2, [&](parallel::Communicator& comm) {
      train::TrainerOptions options{.resume = "none", .kernels = &kernels::cuda_simt::table()};
      std::string notes;
      options.on_note = [&](const std::string& note) { notes += note + "\n"; };
      train::Trainer trainer(config, comm, options);
      trainer.run();
      EXPECT_LE(trainer.arena().total().peak, trainer.fit().plan.needed());
      if (comm.rank() == 0) {
        EXPECT_THAT(notes, AllOf(HasSubstr("from GPU to GPU"), HasSubstr(words)));
      }
    });
  }
}

std::vector<float> numbers(Stream& stream, const Tensor& tensor) {
  const Mirror mirror(stream, tensor);
  mirror.read();
  std::vector<float> all;
  with_number(tensor.dtype, [&]<class Number>(Number) {
    for (const Number x : mirror.host().span<Number>()) {
      all.push_back(to_float(x));
    }
  });
  return all;
}

/// Separate collectives beside those of a run that has not begun.
struct Beside {
  Beside(const io::Config& config, parallel::Communicator& with)
      : comm(with),
        trainer(config, with, {.resume = "none", .kernels = &testing::late_table()}),
        collectives(train::device_collectives(config, with, trainer.stage())),
        timer(with, *collectives, trainer.stage().store().gradient().dtype) {}

  Stream& stream() { return trainer.stage().stream(); }
  std::vector<float> gradient() { return numbers(stream(), trainer.stage().store().gradient()); }

  parallel::Communicator& comm;
  train::Trainer trainer;
  std::unique_ptr<train::ReplicaCollectives> collectives;
  train::ReductionTimer timer;
};

TEST_P(TimedSums, AreTimedToTheirEndAndLeaveNothingBehind) {
  on_ranks(2, [&](parallel::Communicator& comm) {
    Beside me(config_, comm);
    const DType dtype = me.trainer.stage().store().gradient().dtype;
    const int64_t count = me.trainer.stage().store().flat_size();
    auto& device = dynamic_cast<simt::GuardedQueue&>(*me.stream().queue()).device();
    const auto idle = [&] {
      return std::ranges::all_of(device.queues(), [](const auto* q) { return q->waiting() == 0; });
    };
    const kernels::WireFormat plain = parallel::plain_format(dtype);
    const kernels::WireFormat code = parallel::format_of(parallel::parse_codec("maxmin:4"));
    const std::vector<parallel::WireSegment> segments{{.first = 0, .count = 7, .format = code}};
    const Buffer lost = me.stream().arena().allocate(Memory::communication, "what codecs lost",
                                                     DType::fp32, Shape{count});
    me.collectives->gradient_wire().set_segments(segments);
    me.collectives->gradient_wire().set_feedback(lost.tensor());
    me.collectives->gradient_wire().set_key(9);
    for (const kernels::WireFormat& format : {plain, code}) {
      const auto reduction = me.collectives->timed_reduction(format, count / 4);
      EXPECT_TRUE(idle());
      const std::vector<float> before = me.gradient();
      parallel::barrier(comm);
      reduction->reduce();
      EXPECT_TRUE(idle());
      const std::vector<float> after = me.gradient();
      for (int64_t i = 0; format == plain && i < count / 4; ++i) {
        ASSERT_EQ(after[i], 2 * before[i]) << "both ranks have drawn the same";
      }
      EXPECT_NE(after, before);
      reduction->encode_decode();
      EXPECT_TRUE(idle());
      EXPECT_NE(me.gradient()[static_cast<size_t>(count) / 4 + 32], 0) << "codes lie behind";
      reduction->end();
      const std::vector<float> left = me.gradient();
      EXPECT_THAT(std::vector<float>(left.begin(), left.begin() + count / 4), Each(0.0F));
      EXPECT_EQ(me.collectives->gradient_wire().segments().front().count, 7);
      EXPECT_EQ(me.collectives->gradient_wire().feedback().data, lost.tensor().data);
      EXPECT_THAT(numbers(me.stream(), lost.tensor()), Each(0.0F));
      EXPECT_EQ(me.collectives->gradient_wire().key(), 9U);
      me.trainer.stage().kernels().fill(me.stream(),
                                        {.x = me.trainer.stage().store().gradient(), .value = 0});
      me.stream().synchronize();
    }
    std::vector<double> found{me.timer.seconds(plain, count), me.timer.seconds(code, 100),
                              me.timer.codec_seconds(code, 200), me.timer.link(count).latency_s};
    EXPECT_THAT(found, Each(::testing::Ge(0.0)));
    std::vector<double> others = found;
    parallel::all_reduce_small(comm, others, parallel::Combine::max);
    EXPECT_EQ(found, others) << "all ranks get the same";
  });
}

/// Rank 0 times a sum; rank 1 runs `other`.
void lose_rank_1(const io::Config& config, const ::testing::Matcher<std::string>& message,
                 const std::function<void(parallel::Communicator&)>& other) {
  std::atomic<bool> over{false};
  try {
    on_ranks(2, [&](parallel::Communicator& comm) {
      Beside me(config, comm);
      parallel::barrier(comm);
      comm.set_timeout(0.4);
      if (comm.rank() == 1) {
        other(comm);
        while (!over) {
          std::this_thread::yield();
        }
        return;
      }
      const kernels::WireFormat code = parallel::format_of(parallel::parse_codec("maxmin:4"));
      EXPECT_THAT(([&] { me.timer.seconds(code, 1000); }),
                  ThrowsMessage<parallel::PeerLost>(message));
      EXPECT_TRUE(comm.broken());
      over = true;
    });
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "the disk is full");
  }
}

TEST_P(TimedSums, EndWithASilentPeer) {
  lose_rank_1(config_,
              HasSubstr("rank 1 did not answer rank 0 within 0.4 s while timing sums of gradients"),
              [](parallel::Communicator& comm) { parallel::barrier(comm); });
  lose_rank_1(config_, HasSubstr("rank 1 did not answer"), [](parallel::Communicator&) {});
}

TEST_P(TimedSums, EndWithAPeerThatFails) {
  lose_rank_1(config_, HasSubstr("rank 1 has failed: the disk is full"),
              [](parallel::Communicator& comm) {
                parallel::barrier(comm);
                fail("the disk is full");
              });
}

TEST_P(TimedSums, EndARunWithAnErrorOfNccl) {
  config_.parallel.codec.fallback = "fastest";
  const auto run = [&] {
    on_ranks(2, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config_, comm, {.resume = "none", .kernels = &testing::late_table()});
      parallel::barrier(comm);
      nccl_.fail(0, parallel::nccl::kRemoteError);
      trainer.run();
    });
  };
  EXPECT_THAT(run, ThrowsMessage<Failure>(HasSubstr("failed while timing sums of gradients")));
}

}  // namespace
}  // namespace espalier
