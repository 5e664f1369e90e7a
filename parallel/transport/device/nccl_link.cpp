#include "parallel/transport/device/nccl_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/exact_sum.h"

namespace espalier::parallel {
namespace {

/// Data that ranks exchange before they join.
struct Card {
  std::array<char, 64> device{};
  std::array<char, 32> version{};
  std::array<char, 512> obstacle{};
};

template <size_t kSize>
void write(std::array<char, kSize>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), kSize - 1));
}

Card card_of(Stream& compute) {
  Card card;
  try {
    check(compute.queue() != nullptr, "it computes on no GPU");
    write(card.version, nccl::library().version);
    write(card.device, compute.queue()->device_id());
  } catch (const Failure& failure) {
    write(card.obstacle, failure.what());
  }
  return card;
}

constexpr Tag kJoinTag{kTagNumbers - 4, Traffic::other};

std::vector<int> everyone(const Communicator& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

nccl::Type type_of(const Tensor& data) {
  require(is_number(data.dtype), "fp32, bf16 or fp16", name_of(data.dtype));
  return data.dtype == DType::fp32   ? nccl::kFloat32
         : data.dtype == DType::bf16 ? nccl::kBfloat16
                                     : nccl::kFloat16;
}

std::exception_ptr left_group() {
  return std::make_exception_ptr(PeerLost({}, "this rank has left its group of NCCL"));
}

/// The links of this rank, in order of construction.
std::vector<NcclLink*>& links() {
  thread_local std::vector<NcclLink*> all;
  return all;
}

}  // namespace

std::string NcclLink::obstacle(Communicator& comm, Stream& compute) {
  const Card mine = card_of(compute);
  std::vector<Card> cards(static_cast<size_t>(comm.size()));
  all_gather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(cards)));
  for (size_t r = 0; r < cards.size(); ++r) {
    const int rank = comm.members().world[r];
    if (cards[r].obstacle[0] != 0) {
      return fmt::format("rank {}: {}", rank, cards[r].obstacle.data());
    }
    if (cards[r].version != cards[0].version) {
      return fmt::format(
          "rank {} has NCCL {} and rank {} NCCL {}: install the same everywhere, or name it with "
          "ESPALIER_NCCL_LIBRARY=FILE",
          comm.members().world[0], cards[0].version.data(), rank, cards[r].version.data());
    }
    const auto twin = std::ranges::find(cards, cards[r].device, &Card::device);
    if (twin != cards.begin() + static_cast<int64_t>(r)) {
      return fmt::format(
          "NCCL needs a GPU for each rank, and ranks {} and {} share one: start a rank for each "
          "GPU, or set parallel.device_link = \"host\", with which all goes through MPI",
          comm.members().world[static_cast<size_t>(twin - cards.begin())], rank);
    }
  }
  return {};
}

NcclLink::NcclLink(Communicator& comm, Stream& compute)
    : NcclLink(
          comm, compute,
          [&] {
            const std::string why = obstacle(comm, compute);
            check(why.empty(), "{}", why);
            return everyone(comm);
          }(),
          Traffic::allreduce) {}

NcclLink::NcclLink(Communicator& comm, Stream& compute, std::vector<int> members, Traffic traffic)
    : comm_(comm),
      compute_(compute),
      members_(std::move(members)),
      traffic_(traffic),
      nccl_(nccl::library()),
      queue_(compute.queue()->make_queue()),
      stream_(compute.arena(), compute.threads(), queue_.get()),
      native_(queue_->handle()),
      exceptions_(std::uncaught_exceptions()) {
  const auto mine = std::ranges::find(members_, comm_.rank());
  require(mine != members_.end(), "a member of the link", comm_.rank());
  rank_ = static_cast<int>(mine - members_.begin());
  join();
  links().push_back(this);
  wait_hook_.emplace(*queue_, [this] { poll(); });
}

NcclLink::~NcclLink() {
  try {
    if (group_ != nullptr && std::uncaught_exceptions() == exceptions_) {
      queue_->synchronize();
      close();
    }
  } catch (const Error&) {  // a caller that needs results waits for them and gets the error there
  }
  abort();
  std::erase(links(), this);
}

void NcclLink::join() {
  constexpr std::string_view kDoing = "joining a group of NCCL";
  nccl::UniqueId id{};
  if (rank() == 0) {
    check_call(nccl_.call.GetUniqueId(&id), kDoing);
  }
  share(std::as_writable_bytes(std::span(&id, 1)));
  nccl::Config config;
  config.blocking = 0;
  if (traffic_ == Traffic::point_to_point) {  // a waiting send occupies this many blocks
    config.least_blocks = 1;
    config.most_blocks = 4;
  }
  settle(nccl_.call.CommInitRankConfig(&group_, size(), id, rank(), &config), kDoing);
}

/// Sends the first member's bytes to all members.
void NcclLink::share(std::span<std::byte> bytes) {
  std::vector<Request> requests;
  if (rank() != 0) {
    requests.push_back(comm_.irecv(members_[0], kJoinTag, bytes));
  }
  for (const int peer : rank() == 0 ? others() : std::vector<int>()) {
    requests.push_back(comm_.isend(peer, kJoinTag, bytes));
  }
  for (Request& request : requests) {
    comm_.wait(request);
  }
}

/// Requires that all enqueued work is done.
void NcclLink::close() {
  constexpr std::string_view kDoing = "leaving a group of NCCL";
  settle(nccl_.call.CommFinalize(group_), kDoing);
  check_call(nccl_.call.CommDestroy(std::exchange(group_, nullptr)), kDoing);
}

/// Freeing one group's resources may wait for the whole device, and so for another group that waits
/// for the same lost peer. So all links of this rank abort together, as calls grouped for NCCL.
void NcclLink::abort() noexcept {
  under_way_.clear();
  traced_.clear();
  if (group_ == nullptr) {
    return;
  }
  nccl_.call.GroupStart();
  nccl_.call.CommAbort(std::exchange(group_, nullptr));
  for (NcclLink* link : links()) {
    if (link->group_ != nullptr) {
      nccl_.call.CommAbort(std::exchange(link->group_, nullptr));
      link->under_way_.clear();
      link->traced_.clear();
      link->failure_ = failure_ ? failure_ : left_group();
    }
  }
  nccl_.call.GroupEnd();
}

/// Ranks of comm_.
std::vector<int> NcclLink::others() const {
  std::vector<int> ranks = members_;
  std::erase(ranks, comm_.rank());
  return ranks;
}

void NcclLink::check_call(nccl::Status status, std::string_view doing) {
  if (status == nccl::kSuccess || status == nccl::kInProgress) {
    return;
  }
  const char* more = group_ != nullptr ? nccl_.call.GetLastError(group_) : nullptr;
  const std::string what = fmt::format(
      "NCCL {} failed while {}: {} ({})", nccl_.version, doing, nccl_.call.GetErrorString(status),
      more != nullptr && *more != 0 ? more : "NCCL_DEBUG=WARN tells more");
  if (status == nccl::kRemoteError || status == nccl::kSystemError) {
    comm_.lose(others(), what);
  }
  throw Failure(what, true);
}

/// State of the group; throws on an error that NCCL cannot recover from.
nccl::Status NcclLink::state(std::string_view doing) {
  nccl::Status status = nccl::kSuccess;
  check_call(nccl_.call.CommGetAsyncError(group_, &status), doing);
  check_call(status, doing);
  return status;
}

/// A call has returned `status`: waits until NCCL has accepted it.
void NcclLink::settle(nccl::Status status, std::string_view doing) try {
  check_call(status, doing);
  comm_.wait_until(
      [&] {
        comm_.progress();
        return state(doing) == nccl::kInProgress ? Progress::stuck : Progress::done;
      },
      [this] { return others(); }, doing);
} catch (...) {
  failure_ = std::current_exception();
  abort();
  throw;
}

void NcclLink::follow_compute() {
  after_ = compute_.mark();
  queue_->follow(*compute_.queue(), after_);
}

void NcclLink::lead_compute() { compute_.queue()->follow(*queue_, queue_->mark()); }

void NcclLink::group(std::string_view doing, const std::function<void()>& calls) {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  forget_arrived();
  check_call(nccl_.call.GroupStart(), doing);
  try {
    calls();
  } catch (...) {
    static_cast<void>(nccl_.call.GroupEnd());
    throw;
  }
  settle(nccl_.call.GroupEnd(), doing);
  under_way_.push_back({.after = after_, .until = queue_->mark(), .doing = std::string(doing)});
}

void NcclLink::send(int to, std::span<const std::byte> data, Traffic traffic) {
  if (!data.empty()) {
    check_call(nccl_.call.Send(data.data(), data.size(), nccl::kInt8, to, group_, native_),
               "sending");
    comm_.count(traffic, data.size());
  }
}

void NcclLink::receive(int from, std::span<std::byte> data) {
  if (!data.empty()) {
    check_call(nccl_.call.Recv(data.data(), data.size(), nccl::kInt8, from, group_, native_),
               "receiving");
  }
}

void NcclLink::all_reduce(const Tensor& data) {
  check_call(nccl_.call.AllReduce(data.data, data.data, static_cast<size_t>(data.count()),
                                  type_of(data), nccl::kSum, group_, native_),
             "summing");
  // Counts the least that any algorithm sends.
  const auto ranks = static_cast<size_t>(size());
  comm_.count(traffic_, 2 * (ranks - 1) * data.bytes() / ranks);
}

void NcclLink::reduce(int root, const Tensor& data) {
  check_call(nccl_.call.Reduce(data.data, data.data, static_cast<size_t>(data.count()),
                               type_of(data), nccl::kSum, root, group_, native_),
             "summing");
  if (root != rank()) {
    comm_.count(traffic_, data.bytes());
  }
}

void NcclLink::sum_counts(const Tensor& counts) {
  const auto add_up = [&](const Tensor& words, nccl::Operator how) {
    check_call(nccl_.call.AllReduce(words.data, words.data, static_cast<size_t>(words.count()),
                                    nccl::kUint64, how, group_, native_),
               "summing");
  };
  add_up(counts.elements(0, ExactSum::kDigits), nccl::kSum);
  add_up(counts.elements(ExactSum::kDigits, 1), nccl::kMax);
  comm_.count(Traffic::other, static_cast<size_t>(size() - 1) * counts.bytes());
}

void NcclLink::forget_arrived() {
  while (!under_way_.empty() && queue_->passed(under_way_.front().until)) {
    under_way_.pop_front();
  }
  end_spans();
}

void NcclLink::trace(std::string name) {
  if (Trace* trace = Trace::current(); trace != nullptr && size() > 1) {
    traced_.push_back({.trace = trace,
                       .name = std::move(name),
                       .after = after_,
                       .until = queue_->mark(),
                       .begin = now_seconds()});
  }
}

void NcclLink::end_spans() {
  while (!traced_.empty()) {
    Traced& first = traced_.front();
    const double now = now_seconds();
    if (!queue_->passed(first.until)) {
      first.begin = compute_.passed(first.after) ? first.begin : now;
      return;
    }
    first.trace->add(Track::allreduce, first.name, std::max(first.begin, last_span_), now);
    last_span_ = now;
    traced_.pop_front();
  }
}

/// Called while the host waits for a queue of the device, or for a message.
void NcclLink::poll() {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  if (std::uncaught_exceptions() > exceptions_) {  // this rank is failing: do not wait for peers
    failure_ = left_group();
    return abort();
  }
  try {
    comm_.check_peers();
    forget_arrived();
    if (!under_way_.empty()) {
      static_cast<void>(state(under_way_.front().doing));
      check_overdue();
    }
  } catch (...) {
    failure_ = std::current_exception();
    abort();
    throw;
  }
}

void NcclLink::check_overdue() {
  UnderWay& first = under_way_.front();
  if (first.since == 0) {
    first.since = compute_.passed(first.after) ? now_seconds() : 0;
  } else if (now_seconds() - std::max(first.since, comm_.last_life()) > comm_.timeout()) {
    comm_.give_up(others(), first.doing);
  }
}

}  // namespace espalier::parallel
