// The pipeline runner on simulated devices: contents by NCCL, by a transport that accepts device
// memory, or through the host. Checks contents, waits, counts, and every fault.
#include "parallel/pipeline/runner.h"

#include <atomic>
#include <thread>

#include "parallel/pipeline/nccl_carrier.h"
#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/registry.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_communicator.h"
#include "src/core/mirror.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::runner_test {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;

constexpr int64_t kNumbers = 100;
constexpr size_t kBytes = kNumbers * sizeof(float);

/// Forward adds 1 to its input, backward doubles it; a stage sums the messages it receives.
class DeviceWork final : public PipelineWork {
 public:
  explicit DeviceWork(Stream& stream) : stream_(stream) {
    for (Buffer* sum : {&activations_, &gradients_, &one_}) {
      *sum = stream.arena().allocate(Memory::scratch, "sum", DType::fp32, Shape{kNumbers});
    }
    table_.fill(stream, {.x = one_.tensor(), .value = 1});
  }

  Mark run(const Action& action, std::span<const std::byte> in, std::span<std::byte> out) override {
    if (before) {
      before(action);
    }
    if (!computes(action.kind) || action.kind == ActionKind::backward_weight) {
      return 0;
    }
    const bool forward = action.kind == ActionKind::forward;
    const Tensor x = in.empty() ? one_.tensor() : tensor(in);
    table_.cast(stream_,
                {.x = x, .y = (forward ? activations_ : gradients_).tensor(), .accumulate = true});
    if (!out.empty()) {
      table_.cast(stream_, {.x = x, .y = tensor(out)});
      table_.cast(stream_,
                  {.x = forward ? one_.tensor() : x, .y = tensor(out), .accumulate = true});
    }
    return stream_.mark();
  }

  float activations() { return value(activations_); }
  float gradients() { return value(gradients_); }
  std::function<void(const Action&)> before;

 private:
  static Tensor tensor(std::span<const std::byte> bytes) {
    return Tensor(const_cast<std::byte*>(bytes.data()), DType::fp32, Shape{kNumbers});
  }
  float value(const Buffer& sum) {
    const Mirror mirror(stream_, sum.tensor());
    const auto values = mirror.read().host().span<float>();
    EXPECT_EQ(values.front(), values.back());
    return values.front();
  }

  const kernels::Kernels& table_ = testing::late_table();
  Stream& stream_;
  Buffer activations_, gradients_, one_;
};

/// A rank of a pipeline with its device.
struct Rank {
  Rank(Communicator& comm, const Schedule& schedule, CarrierKind carrier, int spare_buffers = 0)
      : runner(comm, backend.stream(),
               {.placement = schedule.placement,
                .chunks = schedule.chunks,
                .buffers = needed_buffers(schedule) + spare_buffers,
                .local_buffers = needed_local_buffers(schedule),
                .message_bytes =
                    std::vector<size_t>(static_cast<size_t>(schedule.stages()) - 1, kBytes),
                .carrier = carrier}) {}
  simt::GuardedQueue& queue() {
    return dynamic_cast<simt::GuardedQueue&>(*backend.stream().queue());
  }
  int64_t waits() { return queue().synchronized() + queue().waited(); }

  kernels::Backend backend{testing::late_table(), 1};
  PipelineRunner runner;
  DeviceWork work{backend.stream()};
};

ThreadOptions options(double timeout = 60) {
  return {.timeout = timeout, .while_waiting = simt::drive_queues, .copy = simt::copy_anywhere};
}

class Carriers : public ::testing::TestWithParam<CarrierKind> {
 protected:
  Carriers() { nccl_.connect(true); }
  testing::FakeNccl nccl_;
};

/// Stages 0 … S-1 receive 1, 1+1, …; gradients double from the last stage on.
TEST_P(Carriers, MoveMessagesAndTheHostWaitsForNoQueue) {
  for (const ScheduleEntry* entry : schedules()) {
    const std::string_view name = entry->name;
    for (const int p : {2, 3}) {
      const int m = 2 * p;
      const bool driven = entry->by_arrival();
      const Schedule schedule =
          make_schedule(driven ? "1f1b" : name, {.ranks = p, .micro_batches = m, .chunks = 2});
      SCOPED_TRACE(fmt::format("{} {}", name, p));
      run_ranks(
          p,
          [&](Communicator& comm) {
            Rank me(comm, schedule, GetParam());
            const Sent before = comm.sent(Traffic::point_to_point);
            const int64_t others = comm.sent(Traffic::other).bytes;
            const int64_t waits = me.waits();
            for (int step = 0; step < 2; ++step) {
              if (driven) {
                me.runner.run(MessageDriven{p, m, p}, me.work);
              } else {
                me.runner.run(schedule, me.work);
              }
            }
            EXPECT_EQ(me.waits(), waits) << "for a message";
            int64_t sent = 0;
            float activations = 0;
            float gradients = 0;
            const int last = schedule.stages() - 1;
            for (int s = 0; s <= last; ++s) {
              const bool mine = schedule.rank_of(s) == comm.rank();
              activations += mine ? 2.0F * static_cast<float>(m * (s + 1)) : 0;
              gradients += mine ? 2.0F * static_cast<float>(m * (1 << (last - s))) : 0;
              if (s < last && schedule.crosses(s)) {
                sent += 2 * m * (mine || schedule.rank_of(s + 1) == comm.rank() ? 1 : 0);
              }
            }
            EXPECT_EQ(comm.sent(Traffic::point_to_point).messages - before.messages, sent);
            EXPECT_EQ(comm.sent(Traffic::point_to_point).bytes - before.bytes,
                      sent * static_cast<int64_t>(kBytes));
            EXPECT_EQ(comm.sent(Traffic::other).bytes - others,
                      sent * static_cast<int64_t>(sizeof(Envelope)));
            EXPECT_EQ(me.work.activations(), activations);
            EXPECT_EQ(me.work.gradients(), gradients);
            barrier(comm);
          },
          options());
    }
  }
}

/// Removing a wait between queues gives a race, or changes no result.
TEST_P(Carriers, NeedTheirWaits) {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 4});
  const auto run = [&] {
    std::atomic<float> sum = 0;
    run_ranks(
        2,
        [&](Communicator& comm) {
          Rank me(comm, schedule, GetParam());
          me.runner.run(schedule, me.work);
          barrier(comm);
          if (comm.rank() == 1) {
            sum = me.work.activations();
          }
        },
        options());
    return sum.load();
  };
  simt::forget_follow(-1);
  const float whole = run();
  const int64_t follows = simt::follows();
  EXPECT_EQ(follows > 0, GetParam() == CarrierKind::nccl);
  // Threads determine the numbering of waits, and sometimes the awaited work is already done. So a
  // wait counts as needed if any of a few runs needs it.
  const auto is_missed = [&](int64_t number) {
    simt::forget_follow(number);
    try {
      EXPECT_EQ(run(), whole);
      return false;
    } catch (const Bug& bug) {
      EXPECT_THAT(bug.what(), HasSubstr("race: "));
    } catch (const PeerLost& lost) {
      EXPECT_THAT(lost.what(), HasSubstr("race: "));
    }
    return true;
  };
  for (int64_t number = 0; number < follows; ++number) {
    bool missed = false;
    for (int runs = 0; !missed && runs < 5; ++runs) {
      missed = is_missed(number);
    }
    EXPECT_TRUE(missed) << "no run fails without wait " << number;
  }
  simt::forget_follow(-1);
}

/// The first error of two ranks.
std::string error_of(const std::function<void(Communicator&)>& body, double timeout = 20) {
  try {
    run_ranks(2, body, options(timeout));
  } catch (const Failure& failure) {
    return std::string(failure.what()) + (failure.retryable() ? " (retryable)" : "");
  }
  return "no error";
}

/// Runs 1F1B twice; `act` is called for each action of each rank.
std::string error_when(CarrierKind carrier,
                       const std::function<void(Communicator&, Rank&, const Action&)>& act,
                       double timeout = 20) {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 4});
  return error_of(
      [&](Communicator& comm) {
        Rank me(comm, schedule, carrier);
        me.work.before = [&](const Action& action) { act(comm, me, action); };
        me.runner.run(schedule, me.work);
        me.runner.run(schedule, me.work);
        barrier(comm);
      },
      timeout);
}

/// Called on rank 0, whose next activation is that of micro-batch 2.
void send_again(Rank& me, CarrierKind carrier, const Envelope& envelope) {
  const std::vector<std::byte> nothing(kBytes);
  Communicator& comm = me.runner.communicator();
  constexpr int kChannel = 2;  // activations for stage 1
  std::vector<std::byte> message(carrier == CarrierKind::host ? nothing : std::vector<std::byte>());
  const auto* bytes = reinterpret_cast<const std::byte*>(&envelope);
  message.insert(message.end(), bytes, bytes + sizeof envelope);
  Request content;
  if (carrier == CarrierKind::mpi) {
    content = comm.isend(1, {.number = kChannel, .whole = true}, nothing);
  }
  Request last = comm.isend(1,
                            carrier == CarrierKind::host
                                ? Tag{.number = kChannel}
                                : Tag{Envelopes::kFirstNumber + kChannel, Traffic::other},
                            message);
  comm.wait(last);
}

TEST_P(Carriers, NoticeADoubledMessage) {
  const std::string error = error_when(GetParam(), [&](Communicator& comm, Rank& me,
                                                       const Action& action) {
    if (comm.rank() == 0 && me.runner.runs() == 1 && action == Action{ActionKind::forward, 0, 2}) {
      send_again(me, GetParam(), {.run = 1, .micro_batch = 1, .stage = 1});
    }
  });
  EXPECT_THAT(error, HasSubstr("rank 0 sent the activation of micro-batch"));
  EXPECT_THAT(error, HasSubstr("was expected: a message was lost or duplicated"));
  EXPECT_THAT(error, EndsWith("(retryable)"));
}

TEST_P(Carriers, NoticeAMessageOfAnEarlierRun) {
  const std::string error = error_when(GetParam(), [&](Communicator& comm, Rank& me,
                                                       const Action& action) {
    if (comm.rank() == 0 && me.runner.runs() == 2 && action == Action{ActionKind::forward, 0, 0}) {
      send_again(me, GetParam(), {.run = 1, .micro_batch = 0, .stage = 1});
    }
  });
  EXPECT_THAT(error, HasSubstr("in run 1 where the activation of micro-batch 0 for stage 1 in run "
                               "2 was expected"));
}

TEST_P(Carriers, AStageThatFailsEndsAll) {
  for (const int rank : {0, 1}) {
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward, ActionKind::reduce}) {
      EXPECT_THAT(error_when(GetParam(),
                             [&](Communicator& comm, Rank&, const Action& action) {
                               check(comm.rank() != rank || action.kind != kind, "out of memory");
                             }),
                  HasSubstr("out of memory"));
    }
  }
}

TEST_P(Carriers, ASilentStageIsNamed) {
  const std::string error = error_when(
      GetParam(),
      [](Communicator& comm, Rank&, const Action& action) {
        if (comm.rank() == 1 && action == Action{ActionKind::backward, 1, 1}) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        }
      },
      0.4);
  EXPECT_THAT(error, HasSubstr("rank 1 did not answer rank 0 within 0.4 s while "));
  EXPECT_THAT(error, AnyOf(HasSubstr("receiving the gradient of micro-batch 1 at stage 0"),
                           HasSubstr("sending a message to another stage")));
}

/// The device computes for ever. Its rank blocks on no call, and receives the other rank's error.
TEST_P(Carriers, ADeviceThatHangsIsNamed) {
  const std::string error = error_when(
      GetParam(),
      [](Communicator& comm, Rank& me, const Action& action) {
        if (comm.rank() == 1 && action == Action{ActionKind::backward, 1, 1}) {
          me.queue().enqueue_until([&comm] { return comm.broken(); });
        }
      },
      0.4);
  EXPECT_THAT(error, HasSubstr("rank 1 did not answer rank 0 within 0.4 s while "));
}

/// Each rank waits for the other's message, and kernels of its own still run.
TEST_P(Carriers, DevicesThatAllHangAreNoticed) {
  const std::string error = error_when(
      GetParam(),
      [](Communicator& comm, Rank& me, const Action& action) {
        if (action == Action{ActionKind::forward, comm.rank(), comm.rank() == 0 ? 1 : 0}) {
          me.queue().enqueue_until([&comm] { return comm.broken(); });
        }
      },
      0.2);
  EXPECT_THAT(error, HasSubstr("the device did not finish its kernels within 0.8 s"));
}

/// A rank that waits for its device receives messages meanwhile: here the device continues after
/// the other rank's has sent.
TEST_P(Carriers, RanksAnswerWhileTheyWaitForTheirDevices) {
  const Schedule schedule = make_schedule("gpipe", {.ranks = 2, .micro_batches = 3});
  std::atomic<bool> sent = false;
  const std::string error = error_of(
      [&](Communicator& comm) {
        Rank me(comm, schedule, GetParam(), 1);
        me.work.before = [&](const Action& action) {
          if (action == Action{ActionKind::forward, 0, 2}) {
            me.backend.stream().synchronize();
            me.runner.progress();  // the activation of micro-batch 1 leaves
            // Memory is freed when all queues are empty.
            me.backend.arena().allocate(Memory::scratch, "array", DType::fp32, Shape{8});
            sent = true;
          } else if (action == Action{ActionKind::forward, 1, 0}) {
            me.queue().enqueue_until([&] { return sent || comm.broken(); });
            me.backend.stream().synchronize();
          }
        };
        me.runner.run(schedule, me.work);
        barrier(comm);
      },
      2);
  EXPECT_EQ(error, "no error");
}

/// Kernels of several micro-batches may take longer than any timeout, as long as messages arrive.
TEST_P(Carriers, KernelsOfThisRankAreAwaited) {
  const Schedule schedule = make_schedule("gpipe", {.ranks = 2, .micro_batches = 5});
  const std::string error = error_of(
      [&](Communicator& comm) {
        Rank me(comm, schedule, GetParam());
        me.work.before = [&](const Action& action) {
          if (comm.rank() == 0 && action.kind == ActionKind::forward) {
            const auto begin = std::make_shared<double>(0);
            me.queue().enqueue_until([begin] {
              *begin = *begin == 0 ? now_seconds() : *begin;
              return now_seconds() - *begin > 0.3;
            });
          }
        };
        me.runner.run(schedule, me.work);
        barrier(comm);
      },
      0.7);
  EXPECT_EQ(error, "no error");
}

INSTANTIATE_TEST_SUITE_P(All, Carriers,
                         ::testing::Values(CarrierKind::host, CarrierKind::mpi, CarrierKind::nccl),
                         [](const auto& one) { return std::string(name_of(one.param)); });

/// Timeouts beside messages: a rank that waits for a message behind a device sum does not limit its
/// own kernels, but limits the other end of that sum.
TEST(NcclCarrier, ASumThatHangsIsNoticedBesideMessages) {
  const testing::FakeNccl fake;
  const Schedule schedule = make_schedule("gpipe", {.ranks = 2, .micro_batches = 1});
  const std::string error = error_of(
      [&](Communicator& comm) {
        Rank me(comm, schedule, CarrierKind::nccl);
        NcclLink link(comm, me.backend.stream(), {0, 1}, Traffic::allreduce);
        const Buffer sum =
            me.backend.arena().allocate(Memory::scratch, "sum", DType::fp32, Shape{8});
        me.runner.run(schedule, me.work);
        if (comm.rank() == 1) {
          me.queue().enqueue_until([&comm] { return comm.broken(); });
        }
        link.follow_compute();
        link.group("summing numbers", [&] { link.all_reduce(sum.tensor()); });
        link.lead_compute();
        me.runner.run(schedule, me.work);
      },
      0.4);
  EXPECT_THAT(error, HasSubstr("rank 1 did not answer rank 0 within 0.4 s while summing numbers"));
}

/// An error of NCCL's own ends the run with its text.
TEST(NcclCarrier, AnErrorOfNccl) {
  const testing::FakeNccl fake;
  const std::string error =
      error_when(CarrierKind::nccl, [&](Communicator& comm, Rank&, const Action& action) {
        if (comm.rank() == 0 && action == Action{ActionKind::forward, 0, 2}) {
          fake.fail(0, nccl::kRemoteError);
        }
      });
  EXPECT_THAT(error, AllOf(HasSubstr("NCCL 2.28.9 failed while"), HasSubstr("a message")));
}

}  // namespace
}  // namespace espalier::parallel::runner_test
