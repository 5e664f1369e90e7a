// Messages, small collectives, splits, timeouts and poisoning: the same on every transport.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "parallel/digest.h"
#include "parallel/grid.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "tests/ranks.h"

namespace espalier::parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> content(int from, int to, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(mix(static_cast<uint64_t>(from * 100 + to), i));
  }
  return bytes;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> room_for(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// On both sides of the limits where transports change their way (16 KiB for threads; 4 KiB, 32 KiB and
// the parts of 100,003 bytes for MPI).
const std::vector<size_t> kSizes{0, 1, 17, 4096, 16384, 16385, 100'003, 100'004, 300'001};

TEST(Messages, AllPairsAllSizesWaitedForSendsFirst) {
  on_ranks([](Communicator& comm) {
    struct Pair {
      std::vector<std::byte> out, in, expected;
    };
    std::vector<Pair> pairs;
    for (int peer = 0; peer < comm.size(); ++peer) {
      for (const size_t size : kSizes) {
        pairs.push_back({content(comm.rank(), peer, size), std::vector<std::byte>(size),
                         content(peer, comm.rank(), size)});
      }
    }
    std::vector<Request> sends;
    std::vector<Request> receives;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int peer = static_cast<int>(i / kSizes.size());
      receives.push_back(comm.irecv(peer, {static_cast<int>(i % kSizes.size())}, pairs[i].in));
      sends.push_back(comm.isend(peer, {static_cast<int>(i % kSizes.size())}, pairs[i].out));
    }
    for (Request& send : sends) {
      comm.wait(send);
    }
    for (size_t i = receives.size(); i-- > 0;) {
      comm.wait(receives[i]);
      EXPECT_TRUE(comm.test(receives[i])) << "a finished request stays finished";
      EXPECT_EQ(pairs[i].in, pairs[i].expected);
    }
  });
}

TEST(Messages, MatchBySenderAndTagInOrder) {
  on_ranks([](Communicator& comm) {
    const int to = (comm.rank() + 1) % comm.size();
    const int from = (comm.rank() + comm.size() - 1) % comm.size();
    std::vector<Request> sends;
    std::vector<int> numbers(40);
    std::iota(numbers.begin(), numbers.end(), 0);
    for (const int& number :
         numbers) {  // tags 0 and 1 in turn; and another kind with the same number
      sends.push_back(comm.isend(to, {number % 2}, bytes_of(number)));
    }
    const int other = 99;
    sends.push_back(comm.isend(to, {1, Traffic::other}, bytes_of(other)));
    int got = 0;
    Request request = comm.irecv(from, {1, Traffic::other}, room_for(got));
    comm.wait(request);
    EXPECT_EQ(got, 99);
    for (const int tag : {1, 0}) {
      for (int i = tag; i < 40; i += 2) {
        Request next = comm.irecv(from, {tag}, room_for(got));
        comm.wait(next);
        EXPECT_EQ(got, i);
      }
    }
    for (Request& send : sends) {
      comm.wait(send);
    }
  });
}

TEST(Messages, AreCountedWhereTheyAreSent) {
  on_ranks([](Communicator& comm) {
    const Sent before = comm.sent(Traffic::point_to_point);
    const Sent total = comm.sent();
    const std::vector<std::byte> data(1000);
    std::vector<std::byte> room(1000);
    const int peer = (comm.rank() + 1) % comm.size();
    Request receive = comm.irecv((comm.rank() + comm.size() - 1) % comm.size(), {5}, room);
    Request send = comm.isend(peer, {5}, data);
    comm.wait(receive);
    comm.wait(send);
    EXPECT_EQ(comm.sent(Traffic::point_to_point).bytes - before.bytes, 1000);
    EXPECT_EQ(comm.sent(Traffic::point_to_point).messages - before.messages, 1);
    EXPECT_EQ(comm.sent().bytes - total.bytes, 1000);
  });
}

TEST(Messages, OfAnotherSizeThanExpectedAreAFailure) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    for (const size_t expected : {size_t{4}, size_t{12}}) {
      const std::vector<std::byte> data(8);
      std::vector<std::byte> room(expected);
      if (comm.rank() == 0) {
        Request send = comm.isend(1, {6}, data);
        comm.wait(send);
      } else if (comm.rank() == 1) {
        Request receive = comm.irecv(0, {6}, room);
        try {
          comm.wait(receive);
          ADD_FAILURE() << "8 bytes fitted into " << expected;
        } catch (const Failure& failure) {
          EXPECT_THAT(failure.what(), HasSubstr("rank 0 sent"));
          EXPECT_THAT(failure.what(), HasSubstr("same program"));
        }
      }
      barrier(comm);
    }
  });
}

TEST(Collectives, BarrierWaitsForTheLast) {
  on_ranks([](Communicator& comm) {
    for (int last = 0; last < comm.size(); ++last) {
      if (comm.rank() == last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
      const int64_t arrived = now();
      barrier(comm);
      const int64_t left = now();
      std::vector<int64_t> all(static_cast<size_t>(comm.size()));
      all_gather(comm, bytes_of(arrived), std::as_writable_bytes(std::span(all)));
      EXPECT_GE(left, *std::ranges::max_element(all));
    }
  });
}

TEST(Collectives, Broadcast) {
  on_ranks([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const size_t size : kSizes) {
        const auto expected = content(root, root, size);
        std::vector<std::byte> data = comm.rank() == root ? expected : std::vector<std::byte>(size);
        broadcast(comm, root, data);
        EXPECT_EQ(data, expected);
      }
    }
  });
}

TEST(Collectives, GatherToAllAndToOne) {
  on_ranks([](Communicator& comm) {
    for (const size_t size : kSizes) {
      const auto mine = content(comm.rank(), 7, size);
      std::vector<std::byte> all(size * static_cast<size_t>(comm.size()));
      all_gather(comm, mine, all);
      std::vector<std::byte> expected;
      for (int r = 0; r < comm.size(); ++r) {
        const auto part = content(r, 7, size);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      EXPECT_EQ(all, expected);

      const auto longer = content(comm.rank(), 8, size * static_cast<size_t>(comm.rank()));
      const auto gathered = gather(comm, longer);
      ASSERT_EQ(gathered.size(), comm.rank() == 0 ? static_cast<size_t>(comm.size()) : 0U);
      for (size_t r = 0; r < gathered.size(); ++r) {
        EXPECT_EQ(gathered[r], content(static_cast<int>(r), 8, size * r));
      }
    }
  });
}

TEST(Collectives, SmallSumsAndMaximaInRankOrder) {
  on_ranks([](Communicator& comm) {
    const auto value = [](int rank, int i) {
      return std::ldexp(1.0 / (3 + rank + 7 * i), 9 * rank);
    };
    std::vector<double> sum{value(comm.rank(), 0), value(comm.rank(), 1)};
    std::vector<double> max = sum;
    all_reduce_small(comm, sum, Combine::sum);
    all_reduce_small(comm, max, Combine::max);
    for (int i = 0; i < 2; ++i) {
      double expected = value(0, i);
      for (int r = 1; r < comm.size(); ++r) {
        expected += value(r, i);
      }
      EXPECT_EQ(sum[i], expected);
      EXPECT_EQ(max[i], value(comm.size() - 1, i));
    }
    std::vector<double> nan{comm.rank() == comm.size() / 2 ? std::nan("") : 1.0,
                            -5.0 - comm.rank()};
    all_reduce_small(comm, nan, Combine::max);
    EXPECT_TRUE(std::isnan(nan[0]));
    EXPECT_EQ(nan[1], -5.0);
    all_reduce_small(comm, {}, Combine::sum);
  });
}

TEST(Split, GroupsAreOrderedByKeyAndDoNotMixMessages) {
  on_ranks([](Communicator& comm) {
    const auto part = comm.split(comm.rank() % 2, -comm.rank());
    const int expected_size = (comm.size() + (comm.rank() % 2 == 0 ? 1 : 0)) / 2;
    ASSERT_EQ(part->size(), expected_size);
    EXPECT_EQ(part->rank(), expected_size - 1 - comm.rank() / 2);
    EXPECT_EQ(part->members().world[part->rank()], comm.members().world[comm.rank()]);
    EXPECT_EQ(part->timeout(), comm.timeout());
    // The same tags at once in the whole, the part and a part of the part.
    const auto again = part->split(0, part->rank());
    std::vector<Request> requests;
    std::array<int, 3> got{};
    const std::array<int, 3> sent{comm.rank(), 100 + comm.rank(), 200 + comm.rank()};
    const std::array<Communicator*, 3> all{&comm, part.get(), again.get()};
    const int64_t before = comm.sent().bytes;
    for (const size_t i : {0, 1, 2}) {
      requests.push_back(
          all[i]->isend((all[i]->rank() + 1) % all[i]->size(), {3}, bytes_of(sent[i])));
    }
    EXPECT_EQ(comm.sent().bytes - before, 12) << "parts count into the same counters";
    for (const size_t i : {2, 0, 1}) {
      const int from = (all[i]->rank() + all[i]->size() - 1) % all[i]->size();
      Request receive = all[i]->irecv(from, {3}, room_for(got[i]));
      all[i]->wait(receive);
      EXPECT_EQ(got[i], 100 * static_cast<int>(i) + all[i]->members().world[from]);
    }
    for (Request& request : requests) {
      comm.wait(request);
    }
  });
}

TEST(Split, KnowsTheMachine) {
  on_ranks([](Communicator& comm) {
    // Tests run on one machine.
    EXPECT_EQ(comm.local_rank(), comm.rank());
    EXPECT_EQ(comm.local_size(), comm.size());
  });
}

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
      std::array<std::byte, 24> room{};
      Request receive = part->irecv(0, {1}, room);
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

TEST(Timeout, BarrierNamesAllWhoDidNotArrive) {
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

TEST(Poison, OthersLearnWhoFailedAndWhy) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    if (comm.rank() == 1) {
      comm.poison("its disk is full");
      EXPECT_TRUE(comm.broken());
    } else {
      int room = 0;
      Request receive = comm.irecv((comm.rank() + 1) % comm.size(), {2}, room_for(room));
      std::vector<int> ranks;
      const double begin = now_seconds();
      const std::string text = lost([&] { comm.wait(receive); }, ranks);
      EXPECT_EQ(text, "rank 1 has failed: its disk is full");
      EXPECT_THAT(ranks, ElementsAre(1));
      EXPECT_LT(now_seconds() - begin, 10);
    }
  });
}

TEST(Threads, TheFirstErrorIsRethrownAndNobodyHangs) {
  if (job() != nullptr) {
    GTEST_SKIP() << "threads only";
  }
  for (const int ranks : {2, 3, 4, 7}) {
    std::atomic<int> told = 0;
    const auto body = [&](Communicator& comm) {
      barrier(comm);
      if (comm.rank() == ranks - 1) {
        // Large messages are under way and die with their buffers.
        std::vector<std::byte> data(1'000'000);
        std::vector<std::byte> room(1'000'000);
        Request send = comm.isend(0, {0}, data);
        Request receive = comm.irecv(0, {0}, room);
        fail("no space left on {}", "/scratch");
      }
      try {
        std::vector<std::byte> room(1'000'000);
        Request receive = comm.irecv(ranks - 1, {1}, room);
        comm.wait(receive);
      } catch (const PeerLost& error) {
        EXPECT_THAT(error.what(), HasSubstr("no space left on /scratch"));
        ++told;
        throw;
      }
    };
    try {
      run_ranks(ranks, body);
      ADD_FAILURE() << "no error came out";
    } catch (const Failure& failure) {
      EXPECT_STREQ(failure.what(), "no space left on /scratch");
    }
    EXPECT_EQ(told, ranks - 1);
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
  Request receive = self->irecv(0, {0}, room_for(in));
  self->wait(receive);
  self->wait(send);
  EXPECT_EQ(in, 5);
}

TEST(Digest, NamesTheEntryAndTheRanksThatDiffer) {
  on_ranks([](Communicator& comm) {
    const std::vector<std::string> names{"wte", "h.0.attn", "h.0.mlp", "ln_f"};
    std::vector<uint64_t> digests{11, 22, 33, 44};
    const int64_t before = comm.sent().bytes;
    compare_digests(comm, names, digests);
    EXPECT_EQ(comm.sent().bytes - before, 16 * (comm.size() - 1)) << "cheap when all agree";
    if (comm.size() < 3) {
      return;
    }
    const int odd = comm.size() / 2;
    if (comm.rank() == odd) {
      digests = {11, 22, 34, 45};
    }
    try {
      compare_digests(comm, names, digests);
      ADD_FAILURE() << "ranks differ";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("'h.0.mlp'"));
      EXPECT_THAT(failure.what(), HasSubstr(fmt::format("on rank {})", odd)));
    }
    const std::span<const uint64_t> shorter(digests.data(), comm.rank() == 0 ? 3 : 4);
    EXPECT_THROW(compare_digests(comm, std::span(names).first(shorter.size()), shorter), Failure);
  });
}

TEST(Grid, PlacesAndRanksAreInverse) {
  constexpr Grid kGrid{.pipeline = 3, .data = 4};
  static_assert(kGrid.ranks() == 12 && kGrid.place_of(5) == GridPlace{1, 1});
  static_assert(kGrid.neighbour(5, 1) == 9 && kGrid.last_stage(9) && kGrid.first_stage(3));
  static_assert(Grid{3, 4, Inner::pipeline}.place_of(5) == GridPlace{2, 1});
  for (const Inner inner : {Inner::data, Inner::pipeline}) {
    const Grid grid = make_grid(12, 3, inner);
    for (int rank = 0; rank < 12; ++rank) {
      EXPECT_EQ(grid.rank_of(grid.place_of(rank)), rank);
    }
  }
  EXPECT_EQ(describe(make_grid(4, 2), std::vector<int>{0, 0, 1, 1}),
            "node 0: rank 0 (stage 0, replica 0), rank 1 (stage 0, replica 1)\n"
            "node 1: rank 2 (stage 1, replica 0), rank 3 (stage 1, replica 1)\n");
  EXPECT_THROW(make_grid(5, 2), Failure);
  EXPECT_THROW(make_grid(2, 0), Failure);
  EXPECT_THROW(make_grid(2, 4), Failure);
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) {
  // Short parts, so that the messages of these tests need several.
  return espalier::run_rank_tests(argc, argv, {.timeout = 60, .part_bytes = 100'003});
}
