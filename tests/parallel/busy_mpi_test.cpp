// Ranks that work for longer than the timeout: with signs of life the others wait for them, without
// they do not.
#include <gmock/gmock.h>

#include <chrono>

#include "parallel/transport/busy.h"
#include "src/core/trace.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::busy_mpi_test {
namespace {

void work(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(Busy, OthersWaitForARankThatShowsLife) {
  on_ranks([](Communicator& comm) {
    const auto part = comm.split(0, comm.rank());
    part->set_timeout(0.5);
    for (const int busy_rank : {0, comm.size() - 1}) {
      if (comm.rank() == busy_rank) {
        const Busy busy(*part);
        work(1.2);
      }
      // Ranks of a tree wait for each other, not only for the busy one.
      std::array<std::byte, 8> data{};
      broadcast(*part, busy_rank, data);
      barrier(*part);
    }
    EXPECT_FALSE(comm.broken());
    barrier(comm);
  });
}

TEST(Busy, ARankWithoutSignsOfLifeIsLost) {
  on_ranks([](Communicator& comm) {
    const auto part = comm.split(0, comm.rank());
    part->set_timeout(0.2);
    if (comm.rank() == 0) {
      const Busy busy(*part);
      work(0.5);
    } else if (comm.rank() == 1) {
      std::array<std::byte, 8> data{};
      Request receive = part->irecv(0, {1}, data);
      const double begin = now_seconds();
      EXPECT_THROW(part->wait(receive), PeerLost);
      EXPECT_GE(now_seconds() - begin, 0.5) << "it lived until then";
    }
    barrier(comm);  // rank 0 waits here meanwhile, which is no sign of life
  });
}

}  // namespace
}  // namespace espalier::parallel::busy_mpi_test
