// NcclLink between threads with simulated devices: contents, order and waits of messages, and every
// fault that ends a run.
#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_link.h"
#include "parallel/transport/thread_communicator.h"
#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::nccl_link_test {
namespace {

using ::testing::Each;
using ::testing::ThrowsMessage;

/// A rank with its device.
struct Rank {
  explicit Rank(Communicator& with) : comm(with) {}

  Tensor numbers(int64_t count, float value, DType dtype = DType::fp32) {
    kept.push_back(arena().allocate(Memory::scratch, "numbers", dtype, Shape{count}));
    table.fill(stream(), {.x = kept.back().tensor(), .value = value});
    return kept.back().tensor();
  }
  std::vector<float> read(const Tensor& tensor) {
    const Mirror mirror(stream(), tensor);
    const auto span = mirror.read().host().span<float>();
    return {span.begin(), span.end()};
  }
  static std::span<std::byte> bytes(const Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.data), tensor.bytes()};
  }
  Arena& arena() { return backend.arena(); }
  Stream& stream() { return backend.stream(); }
  simt::Queue& queue() { return dynamic_cast<simt::Queue&>(*stream().queue()); }

  Communicator& comm;
  const kernels::Kernels& table = testing::late_table();
  kernels::Backend backend{table, 1};
  std::vector<Buffer> kept;
};

class Nccl : public ::testing::Test {
 protected:
  testing::FakeNccl fake_;
};

void exchange_with_all(NcclLink& link, const Tensor& mine, std::span<const Tensor> theirs) {
  link.group("exchanging", [&] {
    for (int r = 0; r < link.size(); ++r) {
      if (r != link.rank()) {
        link.send(r, Rank::bytes(mine));
        link.receive(r, Rank::bytes(theirs[r]));
      }
    }
  });
}

TEST_F(Nccl, MovesMemoryInTheOrderOfItsQueue) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& comm) {
      Rank me(comm);
      NcclLink link(comm, me.stream());
      const Tensor sum = me.numbers(1000, 1);
      std::vector<Tensor> theirs;
      for (int r = 0; r < ranks; ++r) {
        theirs.push_back(me.numbers(1000, -1));
      }
      const Tensor mine = me.numbers(1000, static_cast<float>(comm.rank()));
      link.follow_compute();
      exchange_with_all(link, mine, theirs);
      for (int r = 0; r < ranks; ++r) {
        if (r != comm.rank()) {
          me.table.cast(link.stream(), {.x = theirs[r], .y = sum, .accumulate = true});
        }
      }
      link.lead_compute();
      EXPECT_EQ(me.queue().synchronized() + me.queue().waited(), 0) << "the host waits for nothing";
      const int others = ranks * (ranks - 1) / 2 - comm.rank();
      EXPECT_THAT(me.read(sum), Each(1.0F + static_cast<float>(others)));
      EXPECT_EQ(comm.sent(Traffic::allreduce).bytes, 4000 * (ranks - 1));
    });
  }
}

/// Without `follow` the compute queue reads the old values.
TEST_F(Nccl, OnlyFollowOrdersTheQueues) {
  run_ranks(2, [&](Communicator& comm) {
    Rank me(comm);
    NcclLink link(comm, me.stream());
    const Tensor mine = me.numbers(10, 1);
    const Tensor theirs = me.numbers(10, 0);
    simt::SimulatedDevice& device =
        dynamic_cast<simt::GuardedQueue&>(*me.stream().queue()).device();
    device.collect_races();
    link.follow_compute();
    exchange_with_all(link, mine, std::vector{theirs, theirs});
    EXPECT_EQ(device.detector().take_reports().size(), 0U);
    EXPECT_THAT(me.read(theirs), Each(0.0F));
    EXPECT_THAT(device.detector().take_reports(),
                ElementsAre(AllOf(HasSubstr("a group of NCCL"), HasSubstr("writes what comes"))));
    link.lead_compute();
    EXPECT_THAT(me.read(theirs), Each(1.0F));
    EXPECT_EQ(device.detector().take_reports().size(), 0U);
  });
}

TEST_F(Nccl, Sums) {
  run_ranks(3, [&](Communicator& comm) {
    Rank me(comm);
    NcclLink link(comm, me.stream());
    const Tensor all = me.numbers(99, static_cast<float>(comm.rank() + 1));
    const Tensor one = me.numbers(99, 1);
    link.follow_compute();
    link.group("summing", [&] {
      link.all_reduce(all);
      link.reduce(1, one);
    });
    link.lead_compute();
    EXPECT_THAT(me.read(all), Each(6.0F));
    EXPECT_THAT(me.read(one), Each(comm.rank() == 1 ? 3.0F : 1.0F));
    EXPECT_EQ(comm.sent(Traffic::allreduce).bytes, 2 * 2 * 396 / 3 + (comm.rank() == 1 ? 0 : 396));
  });
}

std::string obstacle_of_two(const std::function<std::string(Communicator&, Stream&)>& ask = {}) {
  std::string text;
  run_ranks(2, [&](Communicator& comm) {
    Rank me(comm);
    const std::string mine = ask ? ask(comm, me.stream()) : NcclLink::obstacle(comm, me.stream());
    if (comm.rank() == 0) {
      text = mine;
    }
  });
  return text;
}

TEST_F(Nccl, NoObstacle) { EXPECT_EQ(obstacle_of_two(), ""); }

TEST(NcclObstacles, AMissingLibrary) {
  const testing::FakeNccl fake("/no/such/libnccl.so");
  EXPECT_THAT(obstacle_of_two(),
              AllOf(HasSubstr("rank 0: "), HasSubstr("/no/such/libnccl.so"),
                    HasSubstr("install NCCL 2.14"), HasSubstr("ESPALIER_NCCL_LIBRARY")));
  EXPECT_EQ(nccl::description(), "not found");
}

TEST(NcclObstacles, ALibraryThatIsAnother) {
  const testing::FakeNccl fake(ESPALIER_FAKE_NCCL_OTHER);
  setenv("FAKE_NCCL_VERSION", "2708", 1);
  EXPECT_THAT(obstacle_of_two(), AllOf(HasSubstr("NCCL 2.7"), HasSubstr("2.14 or a later 2.x")));
  setenv("FAKE_NCCL_VERSION", "30102", 1);
  EXPECT_THAT(obstacle_of_two(), HasSubstr("NCCL 3.1.2"));
  unsetenv("FAKE_NCCL_VERSION");
  EXPECT_EQ(obstacle_of_two(), "") << "what failed is tried again";
  EXPECT_THAT(nccl::description(), HasSubstr("2.28.9"));
}

TEST_F(Nccl, RanksThatShareADevice) {
  struct Shared final : simt::Queue {
    std::string device_id() const override { return "the only one"; }
  };
  EXPECT_THAT(obstacle_of_two([](Communicator& comm, Stream& stream) {
                Shared queue;
                Stream shared(stream.arena().host(), 1, &queue);
                EXPECT_THAT(([&] { NcclLink(comm, shared); }),
                            ThrowsMessage<Failure>(HasSubstr("share one")));
                return NcclLink::obstacle(comm, shared);
              }),
              AllOf(HasSubstr("NCCL needs a GPU for each rank, and ranks 0 and 1 share one"),
                    HasSubstr("parallel.device_link = \"host\"")));
}

TEST_F(Nccl, RanksWithoutADevice) {
  EXPECT_THAT(obstacle_of_two([](Communicator& comm, Stream& stream) {
                return NcclLink::obstacle(comm, stream.host());
              }),
              HasSubstr("no GPU"));
}

const ThreadOptions kSoon{.timeout = 0.4};

TEST_F(Nccl, ARankThatDoesNotJoin) {
  fake_.hold_joins(true);
  run_ranks(
      2,
      [&](Communicator& comm) {
        Rank me(comm);
        EXPECT_THAT(([&] { NcclLink(comm, me.stream()); }),
                    ThrowsMessage<PeerLost>(HasSubstr("while joining a group of NCCL")));
        EXPECT_TRUE(comm.broken());
      },
      kSoon);
  EXPECT_EQ(fake_.aborts(), 2);
}

/// Rank 0 waits for its device, which waits for rank 1; rank 1 runs `other`.
void lose_rank_1(const testing::FakeNccl& fake, const ::testing::Matcher<std::string>& message,
                 const std::function<void(Communicator&, NcclLink&)>& other = {}) {
  const int aborts = fake.aborts();
  std::atomic<bool> given{false}, over{false};
  const auto body = [&](Communicator& comm) {
    Rank me(comm);
    NcclLink link(comm, me.stream());
    NcclLink beside(comm, me.stream());
    barrier(comm);
    if (comm.rank() == 1) {
      if (other) {
        while (!given) {
          std::this_thread::yield();
        }
        other(comm, link);
      }
      while (!over) {
        std::this_thread::yield();
      }
      return;
    }
    struct End {
      std::atomic<bool>&given, &over;
      ~End() { given = over = true; }
    } const end{given, over};
    const Tensor mine = me.numbers(10, 1);
    link.follow_compute();
    const auto give = [&] { link.send(1, Rank::bytes(mine)); };
    link.group("giving numbers", give);
    link.lead_compute();
    given = true;
    EXPECT_THAT(([&] { me.stream().synchronize(); }), ThrowsMessage<PeerLost>(message));
    EXPECT_TRUE(comm.broken());
    EXPECT_GE(fake.aborts(), aborts + 2) << "with all groups that this rank is in";
    EXPECT_THAT(([&] { link.group("more", give); }), ThrowsMessage<PeerLost>(message));
    EXPECT_THAT(([&] { beside.group("more", give); }), ThrowsMessage<PeerLost>(message));
    me.queue().set_wait_hook({});
    me.stream().synchronize();  // the aborted work has ended
  };
  try {
    run_ranks(2, body, kSoon);
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "the disk is full");
  }
}

TEST_F(Nccl, ASilentPeer) {
  lose_rank_1(fake_, HasSubstr("rank 1 did not answer rank 0 within 0.4 s while giving numbers"));
}

TEST_F(Nccl, APeerThatFails) {
  lose_rank_1(fake_, HasSubstr("rank 1 has failed: the disk is full"),
              [](Communicator&, NcclLink&) { fail("the disk is full"); });
}

TEST_F(Nccl, AnErrorOfNccl) {
  lose_rank_1(fake_,
              AllOf(HasSubstr("NCCL 2.28.9 failed while giving numbers"),
                    HasSubstr("remote process exited"), HasSubstr("fake")),
              [&](Communicator&, NcclLink&) { fake_.fail(0, nccl::kRemoteError); });
}

/// Kernels may take longer than any timeout.
TEST_F(Nccl, KernelsAreAwaited) {
  run_ranks(
      2,
      [&](Communicator& comm) {
        Rank me(comm);
        NcclLink link(comm, me.stream());
        const Tensor mine = me.numbers(10, 1);
        const Tensor theirs = me.numbers(10, 0);
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
        me.queue().enqueue_until([end] { return std::chrono::steady_clock::now() > end; });
        link.follow_compute();
        exchange_with_all(link, mine, std::vector{theirs, theirs});
        link.lead_compute();
        EXPECT_THAT(me.read(theirs), Each(1.0F));
      },
      kSoon);
}

}  // namespace
}  // namespace espalier::parallel::nccl_link_test
