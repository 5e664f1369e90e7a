// Messages and splits: the same on every transport.
#include <array>
#include <numeric>

#include "tests/parallel/rank_messages.h"
#include "tests/support/failure.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::communicator_mpi_test {
namespace {

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
    Request request = comm.irecv(from, {1, Traffic::other}, writable_bytes_of(got));
    comm.wait(request);
    EXPECT_EQ(got, 99);
    for (const int tag : {1, 0}) {
      for (int i = tag; i < 40; i += 2) {
        Request next = comm.irecv(from, {tag}, writable_bytes_of(got));
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
    std::vector<std::byte> buffer(1000);
    const int peer = (comm.rank() + 1) % comm.size();
    Request receive = comm.irecv((comm.rank() + comm.size() - 1) % comm.size(), {5}, buffer);
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
      std::vector<std::byte> buffer(expected);
      if (comm.rank() == 0) {
        Request send = comm.isend(1, {6}, data);
        comm.wait(send);
      } else if (comm.rank() == 1) {
        Request receive = comm.irecv(0, {6}, buffer);
        EXPECT_THAT(failure_of([&] { comm.wait(receive); }),
                    AllOf(HasSubstr("rank 0 sent"), HasSubstr("same program")))
            << expected;
      }
      barrier(comm);
    }
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
      Request receive = all[i]->irecv(from, {3}, writable_bytes_of(got[i]));
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

}  // namespace
}  // namespace espalier::parallel::communicator_mpi_test
