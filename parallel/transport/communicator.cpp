#include "parallel/transport/communicator.h"

#include <algorithm>
#include <utility>

#include "src/core/checksum.h"
#include "src/core/trace.h"

namespace espalier::parallel {

namespace {

std::string_view name_of(Traffic kind) {
  return kind == Traffic::allreduce        ? "sums"
         : kind == Traffic::point_to_point ? "messages between stages"
                                           : "small messages";
}

}  // namespace

Communicator::Communicator(Membership members)
    : members_(std::move(members)), shared_(std::make_shared<Shared>()) {}

Communicator::Communicator(Membership members, const Communicator& root)
    : members_(std::move(members)), timeout_(root.timeout_), shared_(root.shared_) {}

int Communicator::local_rank() const {
  const auto& node = members_.node;
  return static_cast<int>(std::count(node.begin(), node.begin() + rank(), node[rank()]));
}

int Communicator::local_size() const {
  const auto& node = members_.node;
  return static_cast<int>(std::count(node.begin(), node.end(), node[rank()]));
}

Sent Communicator::sent() const {
  Sent total;
  for (const Sent& kind : shared_->sent) {
    total.bytes += kind.bytes;
    total.messages += kind.messages;
  }
  return total;
}

void Communicator::count(Traffic kind, size_t bytes) {
  Sent& sent = shared_->sent[static_cast<size_t>(kind)];
  sent.bytes += static_cast<int64_t>(bytes);
  sent.messages += 1;
}

Request Communicator::isend(int to, Tag tag, std::span<const std::byte> data) {
  require(to >= 0 && to < size(), "no such rank to send to", to, size());
  require(tag.number >= 0 && tag.number < kTagNumbers, "tag out of range", tag.number);
  Request request;
  Trailer trailer;
  if (!tag.whole) {
    trailer.number = next(sent_numbers_, to, tag);
    trailer.hash = checksum(data, trailer.number);
  }
  request.operation_ = start_send(to, tag, data, trailer);
  request.peer_ = to;
  request.bytes_ = data.size();
  request.sends_ = true;
  require(tag.envelope <= data.size(), "the envelope is part of the message", tag.envelope);
  count(tag.kind, data.size() - tag.envelope);
  shared_->sent[static_cast<size_t>(Traffic::other)].bytes += static_cast<int64_t>(tag.envelope);
  return request;
}

Request Communicator::irecv(int from, Tag tag, std::span<std::byte> data) {
  require(from >= 0 && from < size(), "no such rank to receive from", from, size());
  require(tag.number >= 0 && tag.number < kTagNumbers, "tag out of range", tag.number);
  Request request;
  request.operation_ = start_receive(from, tag, data);
  request.peer_ = from;
  request.bytes_ = data.size();
  request.tag_ = tag;
  request.data_ = data.data();
  request.number_ = tag.whole ? 0 : next(received_numbers_, from, tag);
  return request;
}

std::unique_ptr<Operation> Communicator::start_all_reduce(const Tensor&) { return nullptr; }

Request Communicator::iall_reduce(const Tensor& data) {
  Request request;
  request.operation_ = start_all_reduce(data);
  check(request.operation_ != nullptr,
        "ranks over \"{}\" have no all-reduce of their own; set parallel.reduction = \"sra\"",
        name());
  request.bytes_ = data.bytes();
  request.sends_ = true;
  // The library does not report its sent bytes: counts the least that any algorithm sends.
  const auto ranks = static_cast<size_t>(size());
  count(Traffic::allreduce, 2 * (ranks - 1) * data.bytes() / ranks);
  return request;
}

bool Communicator::test(Request& request) {
  if (request.done()) {
    return true;
  }
  if (!request.operation_->test()) {
    return false;
  }
  if (!request.sends_) {
    verify(request);
  }
  request.operation_.reset();
  return true;
}

uint64_t Communicator::next(Numbers& numbers, int peer, Tag tag) {
  const auto kind = static_cast<uint64_t>(tag.kind);
  const auto key = (static_cast<uint64_t>(peer) * kTrafficKinds + kind) * kTagNumbers;
  return numbers[key + static_cast<uint64_t>(tag.number)]++;
}

void Communicator::verify(const Request& request) {
  const auto& [trailer, wrong_size] = request.operation_->arrival;
  const int from = members_.world[request.peer_];
  const bool in_order = request.tag_.whole || trailer.number == request.number_;
  check(!wrong_size || !in_order,
        "rank {} sent {} bytes where {} were expected: ranks must run the same program and config",
        from, wrong_size.value_or(0), request.bytes_);
  const bool intact = request.tag_.whole || wrong_size ||
                      checksum({request.data_, request.bytes_}, trailer.number) == trailer.hash;
  if (intact && in_order) {
    return;
  }
  set_broken();
  const std::string what =
      !intact ? "arrived with changed bits"
              : fmt::format("is number {} of its kind where number {} was expected: one was {}",
                            trailer.number, request.number_,
                            trailer.number > request.number_ ? "lost or reordered"
                                                             : "duplicated or reordered");
  throw Failure(fmt::format("a message of {} bytes from rank {} to rank {} ({}, tag {}) {}; resume "
                            "from the last checkpoint, and check memory and network of both ranks",
                            wrong_size.value_or(request.bytes_), from, members_.world[rank()],
                            name_of(request.tag_.kind), request.tag_.number, what),
                true);
}

void Communicator::wait(Request& request) {
  if (test(request)) {
    return;
  }
  wait_until([&] { return test(request) ? Progress::done : Progress::stuck; },
             [&] { return std::vector<int>{request.peer_}; },
             fmt::format(fmt::runtime(request.sends_ ? "sending {} bytes to it"
                                                     : "receiving {} bytes from it"),
                         request.bytes_));
}

void Communicator::wait_until(const std::function<Progress()>& step,
                              const std::function<std::vector<int>()>& missing,
                              std::string_view doing) try {
  double stuck_since = now_seconds();
  double last_poll = stuck_since;
  for (int round = 0;;) {
    const Progress progress = step();
    const double now = now_seconds();
    if (progress == Progress::done) {
      return;
    }
    if (progress == Progress::moved) {
      round = 0;
      stuck_since = last_poll = now;
      continue;
    }
    const auto waited_until = [&](double time) {
      return std::max(0.0, time - std::max(stuck_since, last_life()));
    };
    // So long a gap means that the process was stopped, and its peers perhaps too. On a loaded
    // machine a process may get no core for some tenths of a second.
    if (now - last_poll > std::max(timeout_ / 4, 1.0)) {
      stuck_since = now - waited_until(last_poll);
    }
    last_poll = now;
    if (waited_until(now) > timeout_) {
      this->progress();
      if (waited_until(now) > timeout_) {
        give_up(missing(), doing);
      }
    }
    idle(round++);
  }
} catch (const PeerLost&) {
  set_broken();
  throw;
}

std::vector<int> distinct(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

void Communicator::check_peers() try { progress(); } catch (const PeerLost&) {
  set_broken();
  throw;
}

void Communicator::lose(std::vector<int> ranks, const std::string& why) {
  set_broken();
  std::ranges::transform(ranks, ranks.begin(), [&](int r) { return members_.world[r]; });
  throw PeerLost(std::move(ranks), why);
}

void Communicator::give_up(std::vector<int> ranks, std::string_view doing) {
  std::vector<int> in_world;
  for (const int rank : ranks) {
    in_world.push_back(members_.world[rank]);
  }
  const std::string who =
      fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(in_world, ", "));
  lose(std::move(ranks),
       fmt::format("{} did not answer rank {} within {:g} s while {}: it died, hangs or is slow; "
                   "see its own output, and raise parallel.timeout_s if it is slow",
                   who, members_.world[rank()], timeout_, doing));
}

}  // namespace espalier::parallel
