// Faults of a network are found by the receiver and named: changed bits, and messages that are
// lost, duplicated or reordered. Sums and pipelines send no other kinds of messages.
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "tests/parallel/rank_messages.h"
#include "tests/support/matchers.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::faulty_network_test {
namespace {

enum class Fault : uint8_t { none, flip_first, flip_last, flip_trailer, drop, duplicate, swap };
constexpr std::array kFaults{Fault::flip_first, Fault::flip_last, Fault::flip_trailer,
                             Fault::drop,       Fault::duplicate, Fault::swap};

/// Applies a fault to message `at` (0, 1, …) of one kind from rank 1 to rank 0.
class FaultyNetwork {
 public:
  FaultyNetwork(Fault fault, Traffic kind, int at) : fault_(fault), kind_(kind), at_(at) {}

  ThreadOptions options() {
    return {.timeout = 20, .network = [this](Packet sent) { return pass(std::move(sent)); }};
  }
  bool struck() const { return struck_; }

 private:
  std::vector<Packet> pass(Packet sent) {
    const std::scoped_lock lock(mutex_);
    std::vector<Packet> out;
    if (sent.from != 1 || sent.to != 0 || sent.tag.kind != kind_) {
      out.push_back(std::move(sent));
      return out;
    }
    if (held_ && held_->tag.number == sent.tag.number) {
      out.push_back(std::move(sent));
      out.push_back(*std::exchange(held_, {}));
      return out;
    }
    if (count_++ != at_) {
      out.push_back(std::move(sent));
      return out;
    }
    struck_ = true;
    if (fault_ == Fault::swap) {
      held_ = std::move(sent);
      return out;
    }
    if (fault_ == Fault::flip_first || fault_ == Fault::flip_last) {
      (fault_ == Fault::flip_first ? sent.bytes.front() : sent.bytes.back()) ^= std::byte{0x10};
    }
    sent.trailer.number ^= fault_ == Fault::flip_trailer ? 4 : 0;
    for (int copies = fault_ == Fault::drop        ? 0
                      : fault_ == Fault::duplicate ? 2
                                                   : 1;
         copies > 0; --copies) {
      out.push_back(sent);
    }
    return out;
  }

  Fault fault_;
  Traffic kind_;
  int at_;
  std::mutex mutex_;
  int count_ = 0;
  bool struck_ = false;
  std::optional<Packet> held_;
};

/// The part of the message that describes the fault.
std::string description(Fault fault) {
  switch (fault) {
    case Fault::drop:
    case Fault::swap:
      return "one was lost or reordered";
    case Fault::duplicate:
      return "one was duplicated or reordered";
    default:
      return "arrived with changed bits";
  }
}

/// Runs `body` with each fault, and without any: the fault ends it with a retryable failure.
void expect_all_found(Traffic kind, int at, std::string_view traffic,
                      const std::function<void(Communicator&)>& body) {
  FaultyNetwork good(Fault::none, kind, at);
  run_ranks(2, body, good.options());
  for (const Fault fault : kFaults) {
    SCOPED_TRACE(static_cast<int>(fault));
    FaultyNetwork network(fault, kind, at);
    try {
      run_ranks(2, body, network.options());
      ADD_FAILURE() << "the fault was not found";
    } catch (const Failure& failure) {
      EXPECT_TRUE(failure.retryable());
      EXPECT_THAT(failure.what(), AllOf(HasSubstr("from rank 1 to rank 0"), HasSubstr(traffic),
                                        HasSubstr(description(fault))));
    }
    EXPECT_TRUE(network.struck());
  }
}

TEST(FaultyNetwork, PlainMessages) {
  for (const size_t size : {size_t{1}, size_t{4097}, size_t{100'000}}) {
    SCOPED_TRACE(size);
    expect_all_found(Traffic::point_to_point, 1, "messages between stages, tag 7", [&](auto& comm) {
      for (int i = 0; i < 4; ++i) {
        std::vector<std::byte> out = content(comm.rank(), i, size);
        std::vector<std::byte> in(size);
        Request receive = comm.irecv(1 - comm.rank(), {7}, in);
        Request send = comm.isend(1 - comm.rank(), {7}, out);
        comm.wait(receive);
        EXPECT_EQ(in, content(1 - comm.rank(), i, size));
        comm.wait(send);
      }
    });
  }
}

/// After a lost message the next one may have another size: that is no sign of another program.
TEST(FaultyNetwork, ALostMessageBeforeOneOfAnotherSize) {
  FaultyNetwork network(Fault::drop, Traffic::point_to_point, 1);
  try {
    run_ranks(
        2,
        [](Communicator& comm) {
          for (size_t size = 10; size < 15; ++size) {
            const std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            Request receive = comm.irecv(1 - comm.rank(), {7}, in);
            Request send = comm.isend(1 - comm.rank(), {7}, out);
            comm.wait(receive);
          }
        },
        network.options());
    ADD_FAILURE() << "the fault was not found";
  } catch (const Failure& failure) {
    EXPECT_TRUE(failure.retryable());
    EXPECT_THAT(failure.what(), HasSubstr("a message of 12 bytes from rank 1 to rank 0"));
    EXPECT_THAT(failure.what(), HasSubstr("is number 2 of its kind where number 1 was expected"));
  }
}

TEST(FaultyNetwork, SmallCollectives) {
  expect_all_found(Traffic::other, 2, "small messages", [](Communicator& comm) {
    for (int i = 0; i < 6; ++i) {
      std::array<double, 2> values{1, static_cast<double>(i)};
      all_reduce_small(comm, values, Combine::sum);
      EXPECT_EQ(values[1], 2 * i);
    }
  });
}

TEST(FaultyNetwork, AnEmptyMessageHasATrailer) {
  FaultyNetwork network(Fault::duplicate, Traffic::other, 0);
  EXPECT_THROW(run_ranks(
                   2,
                   [](Communicator& comm) {
                     barrier(comm);
                     barrier(comm);
                   },
                   network.options()),
               Failure);
}

}  // namespace
}  // namespace espalier::parallel::faulty_network_test
