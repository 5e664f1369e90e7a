// Codecs chosen by times, between devices. Sums are timed on the link until they complete, in
// planned memory. The run then uses the chosen codec. A peer lost during the timing ends the run.
#include <atomic>
#include <cmath>
#include <regex>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_api.h"
#include "parallel/wire/codec.h"
#include "src/core/mirror.h"
#include "src/kernels/cuda/table.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/reduction_timer.h"
#include "src/train/exchange/replica_route.h"
#include "tests/device/late_runs.h"

namespace espalier::reduction_timer_test {
namespace {

using ::testing::Each;
using testing::Outcome;
using testing::TempDir;
using ::testing::ThrowsMessage;

constexpr auto kMessages = static_cast<size_t>(Memory::communication);

/// Ranks with NCCL between their devices. Each test has one of the types.
class ReductionTimer : public ::testing::Test {
 protected:
  void take_type(const std::string& dtype) { config_.train.dtype = dtype; }

  const TempDir dir_;
  const testing::LinkedDevices linked_;
  io::Config config_ = [this] {
    io::Config config = testing::tiny_config(dir_);
    config.parallel.codec_min_size = 64;
    config.train.steps = 8;
    return config;
  }();
};

/// A run between devices, and its notes.
struct Noted {
  Outcome outcome;
  std::string notes;
  std::map<std::string, int64_t> open;  ///< kept elements of parameters whose codec was still open
  int64_t steps = 0;
};

Noted run_linked(const io::Config& config, int ranks, train::TrainerOptions options = {}) {
  Noted noted;
  std::mutex mutex;
  options = testing::late_options(options);
  options.on_note = [&](const std::string& note) {
    const std::scoped_lock lock(mutex);
    noted.notes += note + "\n";
  };
  testing::on_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions mine = options;
    mine.on_step = [&](const train::StepReport& report) {
      EXPECT_TRUE(std::isfinite(report.loss));
      noted.steps += comm.rank() == 0 ? 1 : 0;
    };
    train::Trainer trainer(config, comm, mine);
    trainer.run();
    Outcome outcome = testing::outcome_of(trainer);
    if (comm.rank() == 0) {
      noted.outcome = std::move(outcome);
      for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
        if (!train::gradient_format(config, trainer.stage(), parameter)) {
          noted.open[parameter.spec.name] = parameter.kept();
        }
      }
    }
  });
  EXPECT_THAT(noted.notes, HasSubstr("gradients go from GPU to GPU by NCCL"));
  noted.outcome.losses.clear();
  return noted;
}

/// The reference run on the CPU.
Outcome run_on_cpu(const io::Config& config, int ranks) {
  Outcome outcome = testing::run(config, ranks);
  outcome.losses.clear();
  outcome.val_loss = 0;
  return outcome;
}

TEST_F(ReductionTimer, OfFastestChooseWhatThenTravels) {
  for (const int zero : {0, 1}) {
    take_type(zero == 0 ? "fp32" : "bf16");
    config_.parallel.codec.fallback = "fastest";
    config_.parallel.zero = zero;
    const Noted noted = run_linked(config_, 3);
    std::map<int64_t, std::string> by_size;
    const std::regex form("([0-9]+) elements: ([^,\n]+)");
    for (std::sregex_iterator it(noted.notes.begin(), noted.notes.end(), form), end; it != end;
         ++it) {
      by_size[std::stoll((*it)[1])] = (*it)[2];
    }
    io::Config named = config_;
    named.parallel.codec.fallback = "fp32";
    for (const auto& [name, size] : noted.open) {
      ASSERT_TRUE(by_size.contains(size)) << noted.notes;
      named.parallel.codec.patterns.emplace_back(name, by_size[size]);
    }
    EXPECT_GT(noted.open.size(), 4U);
    EXPECT_EQ(noted.outcome, run_on_cpu(named, 3)) << noted.notes;
  }
}

TEST_F(ReductionTimer, OfAutoChooseWhatThenTravels) {
  take_type("bf16");
  config_.parallel.codec.fallback = "maxmin:4";
  config_.parallel.reduction = "auto";
  const Noted noted = run_linked(config_, 2);
  io::Config named = config_;
  named.parallel.reduction = "sra";
  if (noted.notes.find("does not pay") != std::string::npos) {
    named.parallel.codec.fallback = "fp32";
  } else {
    EXPECT_THAT(noted.notes, HasSubstr("codec maxmin:4:128 pays from"));
  }
  EXPECT_EQ(noted.outcome, run_on_cpu(named, 2)) << noted.notes;
}

/// The first step chooses; checkpoints store the choice.
TEST_F(ReductionTimer, OfAdaptiveChooseWhatThenTravelsAlsoAfterAResume) {
  config_.parallel.codec.fallback = "adaptive-time";
  config_.parallel.error_feedback = true;
  const Noted first = run_linked(config_, 2, {.stop_after = 6});
  const auto checkpoint = dir_ / "run/checkpoints/step-000006.h5";
  const std::string chosen = train::progress_of(io::CheckpointReader(checkpoint)).codec_choice;
  EXPECT_THAT(first.notes, HasSubstr("codecs chosen: "));
  const Noted noted = run_linked(config_, 2, {.resume = "auto"});
  io::Config named = config_;
  named.parallel.codec.fallback = "fp32";
  for (const auto& [name, size] : noted.open) {
    const size_t at = (";" + chosen).find(";" + name + "=");
    ASSERT_NE(at, std::string::npos) << chosen;
    const size_t begin = at + name.size() + 1;
    named.parallel.codec.patterns.emplace_back(
        name, chosen.substr(begin, chosen.find(';', begin) - begin));
  }
  EXPECT_GT(noted.open.size(), 4U);
  EXPECT_EQ(noted.outcome, run_on_cpu(named, 2)) << chosen;
}

/// With the same codec twice the run is that codec's, on the CPU: trials change no state.
TEST_F(ReductionTimer, OfAdaPrecAreThoseOfItsTrials) {
  take_type("bf16");
  config_.parallel.error_feedback = true;
  config_.train.steps = 20;
  config_.parallel.codec.fallback = "maxmin:4";
  const Outcome want = run_on_cpu(config_, 2);
  config_.parallel.codec.fallback = "adaprec:8:5:maxmin:4+maxmin:4:128";  // the same
  Noted noted = run_linked(config_, 2, {.stop_after = 9});
  EXPECT_THAT(noted.notes, AllOf(HasSubstr("AdaPrec after step 0"), HasSubstr("after step 8")));
  noted = run_linked(config_, 2, {.resume = "auto"});
  EXPECT_EQ(noted.outcome, want);
}

/// Masks change at steps 2 and 5: sums of other lengths are timed during the run.
TEST_F(ReductionTimer, OfOtherMasksAreTimedAnew) {
  config_.train.steps = 6;
  testing::prune_gradually(config_);
  config_.pruning.sparsity = 0.8;
  for (const std::string codec : {"fastest", "maxmin:4", "adaptive-time:4"}) {
    config_.parallel.codec.fallback = codec;
    config_.parallel.reduction = "auto";
    const Noted noted = run_linked(config_, 2);
    EXPECT_EQ(noted.steps, config_.train.steps);
    const char* what = codec == "fastest" ? "fastest codecs: " : "codec maxmin:4";
    const size_t once = noted.notes.find(what);
    ASSERT_NE(once, std::string::npos) << noted.notes;
    EXPECT_NE(noted.notes.find(what, once + 1), std::string::npos) << noted.notes;
  }
}

/// Parts with asynchronous steps also have their codecs timed.
TEST_F(ReductionTimer, OfAsynchronousParts) {
  config_.parallel.codec.fallback = "fastest";
  config_.parallel.pipeline = 2;
  config_.parallel.partition = {2, 2};
  config_.parallel.schedule = "async";
  config_.train.eval_every = 4;  // the pipeline drains
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

TEST_F(ReductionTimer, HoldNoMoreThanWasPlanned) {
  const std::string adaprec = "adaprec:100:5:table:1+fp32+topk:0.5+maxmin:8:64";
  const Plan ways[] = {{.codec = "fastest"},
                       {.codec = "fastest", .zero = 1, .feedback = true},
                       {.codec = "maxmin:4", .reduction = "auto", .exact = true},
                       {.codec = "topk:0.9:64", .reduction = "auto", .zero = 1, .exact = true},
                       {.codec = "maxmin:2", .reduction = "auto", .feedback = true},
                       {.codec = "adaptive-time"},
                       {.codec = "adaptive-time", .reduction = "auto", .feedback = true},
                       {.codec = adaprec, .exact = true},
                       {.codec = adaprec, .zero = 1, .feedback = true, .exact = true}};
  size_t turn = 0;
  for (const Plan& way : ways) {
    take_type(testing::late_dtypes()[turn++ % 2]);
    io::Config config = config_;
    config.train.steps = 7;  // trials of AdaPrec end after five
    config.parallel.codec.fallback = way.codec;
    config.parallel.reduction = way.reduction;
    config.parallel.zero = way.zero;
    config.parallel.error_feedback = way.feedback;
    SCOPED_TRACE(fmt::format("{} {} {} {}", way.codec, way.reduction, way.zero, way.feedback));
    testing::train_late(config, 3, [&](train::Trainer& trainer, const auto&) {
      const size_t used = testing::expect_planned_messages(trainer, way.exact);
      EXPECT_GT(used, 0U);
      if (way.exact) {  // else times choose, and the plan covers the largest choice
        EXPECT_LT(trainer.fit().plan.peak.at(kMessages), 3 * used);
      }
      EXPECT_LE(trainer.arena().total().peak, trainer.fit().plan.needed());
    });
  }
}

/// The plan covers any choice of "fastest": each matrix coded while all others are sent
/// uncompressed.
TEST_F(ReductionTimer, OfFastestArePlannedForAnyChoice) {
  const auto planned = [&] {
    size_t bytes = 0;
    testing::on_ranks(3, [&](parallel::Communicator& comm) {
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
TEST(ReductionTimerOfCuda, AreThoseOfARun) {
  const testing::LinkedDevices linked;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.model.layers = 1;
  config.model.context = 8;
  config.train.global_batch = 4;
  config.train.steps = 2;
  config.train.eval_batches = 1;
  config.parallel.check_every = 1;
  const std::map<std::string, std::string> codecs{
      {"fastest", "fastest codecs: "}, {"adaptive-time", "codecs chosen: "}, {"topk:0.1", "pay"}};
  for (const auto& [codec, words] : codecs) {
    config.parallel.codec.fallback = codec;
    config.parallel.reduction = codec == "topk:0.1" ? "auto" : "sra";
    testing::on_ranks(2, [&](parallel::Communicator& comm) {
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

/// A route of its own beside that of a run that has not begun.
struct Beside {
  Beside(const io::Config& config, parallel::Communicator& with)
      : comm(with),
        trainer(config, with, {.resume = "none", .kernels = &testing::late_table()}),
        route(config, with, trainer.stage(), train::ReplicaRoute::Kind::device),
        timer(with, route, trainer.stage().store().gradient().dtype) {}

  Stream& stream() { return trainer.stage().stream(); }
  std::vector<float> gradient() { return numbers(stream(), trainer.stage().store().gradient()); }

  parallel::Communicator& comm;
  train::Trainer trainer;
  train::ReplicaRoute route;
  train::ReductionTimer timer;
};

TEST_F(ReductionTimer, AreTimedToTheirEndAndLeaveNothingBehind) {
  testing::on_ranks(2, [&](parallel::Communicator& comm) {
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
    me.route.gradient_wire().set_segments(segments);
    me.route.gradient_wire().set_feedback(lost.tensor());
    me.route.gradient_wire().set_key(9);
    for (const kernels::WireFormat& format : {plain, code}) {
      const auto reduction = me.route.timed_reduction(format, count / 4);
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
      EXPECT_EQ(me.route.gradient_wire().segments().front().count, 7);
      EXPECT_EQ(me.route.gradient_wire().feedback().data, lost.tensor().data);
      EXPECT_THAT(numbers(me.stream(), lost.tensor()), Each(0.0F));
      EXPECT_EQ(me.route.gradient_wire().key(), 9U);
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
    testing::on_ranks(2, [&](parallel::Communicator& comm) {
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

TEST_F(ReductionTimer, EndWithASilentPeer) {
  lose_rank_1(config_,
              HasSubstr("rank 1 did not answer rank 0 within 0.4 s while timing sums of gradients"),
              [](parallel::Communicator& comm) { parallel::barrier(comm); });
  lose_rank_1(config_, HasSubstr("rank 1 did not answer"), [](parallel::Communicator&) {});
}

TEST_F(ReductionTimer, EndWithAPeerThatFails) {
  lose_rank_1(config_, HasSubstr("rank 1 has failed: the disk is full"),
              [](parallel::Communicator& comm) {
                parallel::barrier(comm);
                fail("the disk is full");
              });
}

TEST_F(ReductionTimer, EndARunWithAnErrorOfNccl) {
  config_.parallel.codec.fallback = "fastest";
  const auto run = [&] {
    testing::on_ranks(2, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config_, comm, {.resume = "none", .kernels = &testing::late_table()});
      parallel::barrier(comm);
      linked_.nccl.fail(0, parallel::nccl::kRemoteError);
      trainer.run();
    });
  };
  EXPECT_THAT(run, ThrowsMessage<Failure>(HasSubstr("failed while timing sums of gradients")));
}

}  // namespace
}  // namespace espalier::reduction_timer_test
