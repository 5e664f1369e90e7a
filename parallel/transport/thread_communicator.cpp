#include "parallel/transport/thread_communicator.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_world.h"

namespace espalier::parallel {

namespace {

class SendOperation final : public Operation {
 public:
  SendOperation(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadMessage> message, int to)
      : world_(std::move(world)), message_(std::move(message)), to_(to) {}
  ~SendOperation() override {
    if (!done_) {
      world_->withdraw(*message_);
    }
  }
  bool test() override {
    world_->progress(message_->from);
    return done_ = world_->sent(*message_, to_);
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadMessage> message_;
  int to_;
  bool done_ = false;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(std::shared_ptr<ThreadWorld> world, int to, const ThreadWorld::Key& key,
                   std::span<std::byte> data)
      : world_(std::move(world)), to_(to), key_(key), receive_(world_->receive(to, key, data)) {}
  ~ReceiveOperation() override {
    if (!receive_->done) {
      world_->withdraw(receive_, to_, key_);
    }
  }
  bool test() override {
    world_->progress(to_);
    if (!receive_->done) {
      world_->check_receive(*receive_, std::get<1>(key_));
    }
    return receive_->done;
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int to_;
  ThreadWorld::Key key_;
  std::shared_ptr<ThreadReceive> receive_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int context, Membership members)
      : Communicator(std::move(members)), world_(std::move(world)), context_(context) {}
  ThreadCommunicator(const ThreadCommunicator& root, int context, Membership members)
      : Communicator(std::move(members), root), world_(root.world_), context_(context) {}

  std::string_view name() const override { return "threads"; }
  std::string takes_device_memory() const override {
    return world_->copies_anything() ? "yes" : "no";
  }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void progress() override {
    world_->throw_if_poisoned();
    world_->progress(world_rank(rank()));
  }
  void poison(std::string_view why) noexcept override {
    set_broken();
    try {
      world_->poison(world_rank(rank()), why);
    } catch (...) {  // best effort: no memory for the text
    }
  }
  void abort(int code) noexcept override {
    poison(code == 0 ? "it aborted" : "it aborted with an error");
  }

 private:
  int world_rank(int r) const { return members().world[r]; }
  ThreadWorld::Key key_of(int from, Tag tag) const {
    return {context_, world_rank(from), static_cast<int>(tag.kind), tag.number};
  }
  std::unique_ptr<Operation> start_send(int to, Tag tag, std::span<const std::byte> data) override {
    auto message = world_->send(world_rank(to), key_of(rank(), tag), data);
    return message == nullptr
               ? nullptr
               : std::make_unique<SendOperation>(world_, std::move(message), world_rank(to));
  }
  std::unique_ptr<Operation> start_receive(int from, Tag tag, std::span<std::byte> data) override {
    return std::make_unique<ReceiveOperation>(world_, world_rank(rank()), key_of(from, tag), data);
  }
  void idle(int /*round*/) override {
    world_->wait_for_event(world_rank(rank()), std::min(0.05, timeout() / 4));
  }

  std::shared_ptr<ThreadWorld> world_;
  int context_;
};

std::unique_ptr<Communicator> ThreadCommunicator::split(int color, int key) {
  struct Member {
    int color, key, context;
  };
  // Rank 0 reserves the contexts of all groups; a group takes the one at its first member's index.
  const Member mine{color, key, rank() == 0 ? world_->reserve_contexts(size()) : 0};
  std::vector<Member> all(static_cast<size_t>(size()));
  all_gather(*this, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<int> group;
  for (int r = 0; r < size(); ++r) {
    if (all[r].color == color) {
      group.push_back(r);
    }
  }
  const int context = all[0].context + group.front();
  std::ranges::stable_sort(group, {}, [&](int r) { return all[r].key; });
  Membership part;
  for (const int r : group) {
    part.rank = r == rank() ? static_cast<int>(part.world.size()) : part.rank;
    part.world.push_back(world_rank(r));
    part.node.push_back(members().node[r]);
  }
  return std::make_unique<ThreadCommunicator>(*this, context, std::move(part));
}

std::unique_ptr<Communicator> make_rank(const std::shared_ptr<ThreadWorld>& world, int rank,
                                        int ranks_a_node) {
  Membership members{.rank = rank};
  for (int r = 0; r < world->size(); ++r) {
    members.world.push_back(r);
    members.node.push_back(ranks_a_node > 0 ? r / ranks_a_node : 0);
  }
  return std::make_unique<ThreadCommunicator>(world, 0, std::move(members));
}

/// Calls the body of one rank; `first` gets the first error of all ranks.
void run_rank(const std::shared_ptr<ThreadWorld>& world, int rank, const ThreadOptions& options,
              const std::function<void(Communicator&)>& body, std::mutex& mutex,
              std::exception_ptr& first) {
  const auto keep = [&](std::string_view why) {
    const std::scoped_lock lock(mutex);
    if (first == nullptr) {
      first = std::current_exception();
      world->poison(rank, why);
    }
  };
  try {
    const auto comm = make_rank(world, rank, options.ranks_a_node);
    comm->set_timeout(options.timeout);
    body(*comm);
  } catch (const std::exception& error) {
    keep(error.what());
  } catch (...) {
    keep("unknown error");
  }
  world->leave(rank);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const ThreadOptions& options) {
  require(ranks >= 1, "at least one rank", ranks);
  const auto world = std::make_shared<ThreadWorld>(ranks, options);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(world, rank, options, body, mutex, first); });
    }
  }
  if (first != nullptr) {
    std::rethrow_exception(first);
  }
}

std::unique_ptr<Communicator> self_communicator() {
  return make_rank(std::make_shared<ThreadWorld>(1, ThreadOptions{}), 0, 0);
}

}  // namespace espalier::parallel
