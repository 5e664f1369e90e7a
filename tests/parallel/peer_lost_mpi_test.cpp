// Ranks that are silent, fail or leave early: the others get an error with the rank and the cause,
// and no rank hangs.
#include <array>
#include <atomic>

#include "src/core/trace.h"
#include "tests/parallel/rank_messages.h"
#include "tests/support/matchers.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::peer_lost_mpi_test {
namespace {

/// The message of the PeerLost that `call` throws; empty when it throws none.
std::string lost(const std::function<void()>& call, std::vector<int>& ranks) {
  try {
    call();
  } catch (const PeerLost& error) {
    ranks = error.ranks();
    return error.what();
  }
  return {};
}

TEST(Timeout, NamesTheRankThatNeverSends) {
  on_ranks([](Communicator& comm) {
    const auto part = comm.split(0, -comm.rank());  // reversed: the message must translate ranks
    const int silent = comm.size() - 1;             // in the world
    if (comm.rank() != silent) {
      part->set_timeout(0.3);
      std::array<std::byte, 24> buffer{};
      Request receive = part->irecv(0, {1}, buffer);
      std::vector<int> ranks;
      const double begin = now_seconds();
      const std::string text = lost([&] { part->wait(receive); }, ranks);
      EXPECT_THAT(ranks, ElementsAre(silent));
      EXPECT_THAT(text, HasSubstr(fmt::format("rank {} did not answer rank {} within 0.3 s while "
                                              "receiving 24 bytes from it",
                                              silent, comm.rank())));
      EXPECT_GE(now_seconds() - begin, 0.3);
      EXPECT_LT(now_seconds() - begin, 5);
      EXPECT_TRUE(comm.broken());
    }
    barrier(comm);
  });
}

TEST(Timeout, BarrierNamesAllMissingRanks) {
  on_ranks([](Communicator& comm) {
    if (comm.size() < 3) {
      return;
    }
    const auto part = comm.split(0, comm.rank());
    if (comm.rank() > 0 && comm.rank() < comm.size() - 1) {
      part->set_timeout(0.3);
      std::vector<int> ranks;
      const std::string text = lost([&] { barrier(*part); }, ranks);
      EXPECT_THAT(ranks, ElementsAre(0, comm.size() - 1));
      EXPECT_THAT(text, HasSubstr(fmt::format("ranks 0, {} did not", comm.size() - 1)));
      EXPECT_THAT(text, HasSubstr("waiting in a barrier"));
    }
    barrier(comm);
  });
}

TEST(Poison, OtherRanksGetTheRankAndTheReason) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    // All ranks have left the previous test's barrier: poison may overtake other ranks' messages.
    int buffer = 0;
    std::vector<std::byte> here(static_cast<size_t>(comm.size()));
    if (comm.rank() == 1) {
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer != 1) {
          Request arrival = comm.irecv(peer, {3}, writable_bytes_of(here[peer]));
          comm.wait(arrival);
        }
      }
      comm.poison(Failure("its disk is full"));
      EXPECT_TRUE(comm.broken());
    } else {
      Request arrival = comm.isend(1, {3}, bytes_of(here[0]));
      comm.wait(arrival);
      Request receive = comm.irecv((comm.rank() + 1) % comm.size(), {2}, writable_bytes_of(buffer));
      std::vector<int> ranks;
      const double begin = now_seconds();
      const std::string text = lost([&] { comm.wait(receive); }, ranks);
      EXPECT_EQ(text, "rank 1 has failed: its disk is full");
      EXPECT_THAT(ranks, ElementsAre(1));
      EXPECT_LT(now_seconds() - begin, 10);
    }
  });
}

TEST(Threads, TheFirstErrorIsRethrownAndNoRankHangs) {
  if (job() != nullptr) {
    GTEST_SKIP() << "threads only";
  }
  for (const int ranks : {2, 3, 4, 7}) {
    std::atomic<int> informed = 0;
    const auto body = [&](Communicator& comm) {
      if (comm.rank() == ranks - 1) {
        barrier(comm);
        // Large messages are in flight when their buffers are freed.
        std::vector<std::byte> data(1'000'000);
        std::vector<std::byte> buffer(1'000'000);
        Request send = comm.isend(0, {0}, data);
        Request receive = comm.irecv(0, {0}, buffer);
        fail("no space left on {}", "/scratch");
      }
      try {
        barrier(comm);  // poison may overtake its messages
        std::vector<std::byte> buffer(1'000'000);
        Request receive = comm.irecv(ranks - 1, {1}, buffer);
        comm.wait(receive);
      } catch (const PeerLost& error) {
        EXPECT_THAT(error.what(), HasSubstr("no space left on /scratch"));
        ++informed;
        throw;
      }
    };
    try {
      run_ranks(ranks, body);
      ADD_FAILURE() << "no error came out";
    } catch (const Failure& failure) {
      EXPECT_STREQ(failure.what(), "no space left on /scratch");
    }
    EXPECT_EQ(informed, ranks - 1);
  }
}

TEST(Threads, ARankThatReturnsEarlyIsNamedAtOnce) {
  if (job() != nullptr) {
    GTEST_SKIP() << "threads only";
  }
  const double begin = now_seconds();
  try {
    run_ranks(3, [](Communicator& comm) {
      if (comm.rank() != 1) {
        barrier(comm);
      }
    });
    ADD_FAILURE() << "no error came out";
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has ended"));
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  }
  EXPECT_LT(now_seconds() - begin, 30);
}

TEST(Threads, AloneNeedsNoMpi) {
  const auto self = self_communicator();
  EXPECT_EQ(self->size(), 1);
  barrier(*self);
  int out = 5;
  int in = 0;
  Request send = self->isend(0, {0}, bytes_of(out));
  Request receive = self->irecv(0, {0}, writable_bytes_of(in));
  self->wait(receive);
  self->wait(send);
  EXPECT_EQ(in, 5);
}

}  // namespace
}  // namespace espalier::parallel::peer_lost_mpi_test
