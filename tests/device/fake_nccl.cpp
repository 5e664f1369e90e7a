// A libnccl for ranks that are threads of one process, with simulated devices: the NCCL functions
// that NcclLink calls, over memory.
// - Work waits in the queue (tests/simt/queue.h) passed as the CUDA stream until messages have
//   arrived. A send completes when its receive has read it, so a hang in NCCL is a hang here.
// - Group calls and joins first report "in progress".
// - With fake_nccl_connect the first message between two ranks reports "in progress" until both
//   have called, as when NCCL makes a connection.
// - fake_nccl_* functions inject faults.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel/transport/device/nccl_api.h"
#include "src/core/types.h"
#include "tests/simt/device.h"

using namespace espalier::parallel::nccl;
using espalier::bf16;
using espalier::fp16;
using espalier::to_float;

namespace {

using Bytes = std::vector<std::byte>;
constexpr Status kInvalidUsage = 5;

struct Message {
  Bytes content;
  bool taken = false;
};

/// Contributions to one collective.
struct Round {
  std::vector<Bytes> parts;
  int arrived = 0;
};

struct World {
  std::mutex mutex;
  int ranks = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> channels;  // from, to
  std::map<int64_t, Round> rounds;
  std::map<std::pair<int, int>, std::array<bool, 2>> connected;  // from, to: by the two ends
};

struct Member {
  std::shared_ptr<World> world;
  int rank = 0;
  int64_t rounds = 0;  // rounds called
  std::atomic<Status> error{kSuccess};
  std::atomic<bool> aborted{false};
  bool settling = false;
  std::vector<std::pair<int, int>> connecting;  // channels
};

enum class Kind : uint8_t { send, receive, all_reduce, reduce };

struct Operation {
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr;
  size_t bytes = 0;
  Type type = kInt8;
  Operator how = kSum;
  int peer = 0;  // or the root
  int64_t round = 0;
  bool done = false;
  std::shared_ptr<Message> message = nullptr;
};

std::mutex worlds_mutex;
std::map<int, std::weak_ptr<World>> worlds;
std::atomic<int> ids{0}, aborts{0};
std::atomic<bool> joins_held{false}, connects{false};
std::atomic<int> failing_rank{-1};
std::atomic<Status> failure{kSuccess};

Bytes copy_of(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

/// Sums from the last rank to the first: another order than our own sums.
template <class T>
void add_up(const Round& round, Bytes& sum) {
  auto* to = reinterpret_cast<T*>(sum.data());
  for (size_t rank = round.parts.size() - 1; rank-- > 0;) {
    const auto* next = reinterpret_cast<const T*>(round.parts[rank].data());
    for (size_t i = 0; i < sum.size() / sizeof(T); ++i) {
      const float value = to_float(to[i]) + to_float(next[i]);
      to[i] = espalier::from_float<T>(value);
    }
  }
}

void add_words(const Round& round, Operator how, Bytes& sum) {
  auto* to = reinterpret_cast<uint64_t*>(sum.data());
  for (size_t rank = round.parts.size() - 1; rank-- > 0;) {
    const auto* next = reinterpret_cast<const uint64_t*>(round.parts[rank].data());
    for (size_t i = 0; i < sum.size() / sizeof(uint64_t); ++i) {
      to[i] = how == kMax ? std::max(to[i], next[i]) : to[i] + next[i];
    }
  }
}

/// Operations of one member in one group call.
class Group {
 public:
  Group(std::shared_ptr<Member> member, std::vector<Operation> operations)
      : member_(std::move(member)), operations_(std::move(operations)) {}

  /// Whether all are done.
  bool advance() {
    if (member_->aborted) {
      return true;
    }
    const std::scoped_lock lock(member_->world->mutex);
    bool done = true;
    for (Operation& operation : operations_) {
      if (!begun_) {
        begin(operation);
      }
      operation.done = operation.done || end(operation);
      done &= operation.done;
    }
    begun_ = true;
    return done;
  }

 private:
  void begin(Operation& operation) {
    World& world = *member_->world;
    if (operation.kind == Kind::send) {
      operation.message = std::make_shared<Message>();
      operation.message->content = copy_of(operation.in, operation.bytes);
      world.channels[{member_->rank, operation.peer}].push_back(operation.message);
    } else if (operation.kind != Kind::receive) {
      Round& round = world.rounds[operation.round];
      round.parts.resize(static_cast<size_t>(world.ranks));
      round.parts[member_->rank] = copy_of(operation.in, operation.bytes);
      ++round.arrived;
    }
  }

  bool end(Operation& operation) {
    World& world = *member_->world;
    if (operation.kind == Kind::send) {
      return operation.message->taken;
    }
    if (operation.kind == Kind::receive) {
      auto& channel = world.channels[{operation.peer, member_->rank}];
      if (channel.empty()) {
        return false;
      }
      take(operation, channel.front()->content);
      channel.front()->taken = true;
      channel.pop_front();
      return true;
    }
    const Round& round = world.rounds[operation.round];
    if (round.arrived < world.ranks) {
      return false;
    }
    if (operation.kind == Kind::all_reduce || operation.peer == member_->rank) {
      Bytes sum = round.parts.back();
      operation.type == kUint64    ? add_words(round, operation.how, sum)
      : operation.type == kFloat32 ? add_up<float>(round, sum)
      : operation.type == kFloat16 ? add_up<fp16>(round, sum)
                                   : add_up<bf16>(round, sum);
      take(operation, sum);
    }
    return true;
  }

  void take(const Operation& operation, const Bytes& content) {
    if (content.size() != operation.bytes) {
      member_->error = kInvalidUsage;
      return;
    }
    std::memcpy(operation.out, content.data(), content.size());
  }

  std::shared_ptr<Member> member_;
  std::vector<Operation> operations_;
  bool begun_ = false;
};

thread_local int depth = 0;
thread_local std::vector<Operation> pending;
thread_local Comm* asked_of = nullptr;
thread_local CudaStream asked_on = nullptr;

}  // namespace

struct espalier::parallel::nccl::Comm {
  std::shared_ptr<Member> member;
};

namespace {

Status ask(Operation operation, Comm* comm, CudaStream stream) {
  if (depth == 0 || (asked_of != nullptr && asked_of != comm)) {
    return kInvalidUsage;  // here all is grouped, of one communicator
  }
  asked_of = comm;
  asked_on = stream;
  if (operation.kind == Kind::all_reduce || operation.kind == Kind::reduce) {
    operation.round = comm->member->rounds++;
  }
  pending.push_back(std::move(operation));
  return kSuccess;
}

/// Reports the group's reads and writes to the race detector.
void report(const std::vector<Operation>& operations, int rank, espalier::simt::Queue& queue) {
  std::vector<espalier::simt::Touch> touches;
  for (const Operation& operation : operations) {
    if (operation.in != nullptr) {
      touches.push_back({.operand = "what is sent",
                         .data = operation.in,
                         .bytes = operation.bytes,
                         .reads = true});
    }
    if (operation.out != nullptr && (operation.kind != Kind::reduce || operation.peer == rank)) {
      touches.push_back({.operand = "what comes",
                         .data = operation.out,
                         .bytes = operation.bytes,
                         .writes = true});
    }
  }
  if (auto* watched = dynamic_cast<espalier::simt::GuardedQueue*>(&queue)) {
    watched->operation("a group of NCCL", std::move(touches));
  }
}

/// The group stays in progress until the other ends of its channels have been used.
void connect(Member& member, const std::vector<Operation>& operations) {
  const std::scoped_lock lock(member.world->mutex);
  for (const Operation& operation : operations) {
    const bool sends = operation.kind == Kind::send;
    if (connects && (sends || operation.kind == Kind::receive)) {
      const std::pair channel =
          sends ? std::pair(member.rank, operation.peer) : std::pair(operation.peer, member.rank);
      member.world->connected[channel].at(sends ? 0 : 1) = true;
      member.connecting.push_back(channel);
    }
  }
}

bool is_connecting(Member& member) {
  std::erase_if(member.connecting, [&](const auto& channel) {
    const auto& [sends, receives] = member.world->connected[channel];
    return sends && receives;
  });
  return !member.connecting.empty();
}

size_t size_of(Type type) {
  return type == kInt8 ? 1 : type == kUint64 ? 8 : type == kFloat32 ? 4 : 2;
}

}  // namespace

extern "C" {

Status ncclGetVersion(int* version) {
  const char* set = std::getenv("FAKE_NCCL_VERSION");
  *version = set != nullptr ? std::atoi(set) : 22809;
  return kSuccess;
}

Status ncclGetUniqueId(UniqueId* id) {
  const int number = ++ids;
  std::memcpy(id->bytes, &number, sizeof number);
  return kSuccess;
}

Status ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) {
    return kInvalidUsage;
  }
  int number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  const std::scoped_lock lock(worlds_mutex);
  std::shared_ptr<World> world = worlds[number].lock();
  if (world == nullptr) {
    world = std::make_shared<World>();
    world->ranks = ranks;
    worlds[number] = world;
  }
  auto member = std::make_shared<Member>();
  member->world = world;
  member->rank = rank;
  const std::scoped_lock inner(world->mutex);
  world->joined += joins_held ? 0 : 1;
  *comm = new Comm{member};
  return kInProgress;
}

Status ncclCommGetAsyncError(Comm* comm, Status* status) {
  Member& member = *comm->member;
  const std::scoped_lock lock(member.world->mutex);
  *status = member.error;
  if (failing_rank == member.rank) {
    *status = failure;
  } else if (*status == kSuccess && (member.world->joined < member.world->ranks ||
                                     is_connecting(member) || member.settling)) {
    *status = kInProgress;
  }
  member.settling = false;
  return kSuccess;
}

Status ncclCommFinalize(Comm*) { return kInProgress; }

Status ncclCommDestroy(Comm* comm) {
  delete comm;
  return kSuccess;
}

Status ncclCommAbort(Comm* comm) {
  ++aborts;
  comm->member->aborted = true;
  delete comm;
  return kSuccess;
}

const char* ncclGetErrorString(Status status) {
  return status == kRemoteError ? "remote process exited or there was a network error"
                                : "invalid usage";
}

const char* ncclGetLastError(Comm*) { return "fake"; }

Status ncclGroupStart() {
  ++depth;
  return kSuccess;
}

Status ncclGroupEnd() {
  if (--depth > 0 || asked_of == nullptr) {
    return kSuccess;
  }
  auto& queue = *static_cast<espalier::simt::Queue*>(asked_on);
  const std::shared_ptr<Member> member = std::exchange(asked_of, nullptr)->member;
  const std::vector<Operation> operations = std::exchange(pending, {});
  report(operations, member->rank, queue);  // throws where there is a race
  const auto group = std::make_shared<Group>(member, operations);
  queue.enqueue_until([group] { return group->advance(); });
  member->settling = true;
  connect(*member, operations);
  return kInProgress;
}

Status ncclSend(const void* data, size_t count, Type type, int peer, Comm* comm,
                CudaStream stream) {
  return ask({.kind = Kind::send, .in = data, .bytes = count * size_of(type), .peer = peer}, comm,
             stream);
}

Status ncclRecv(void* data, size_t count, Type type, int peer, Comm* comm, CudaStream stream) {
  return ask({.kind = Kind::receive, .out = data, .bytes = count * size_of(type), .peer = peer},
             comm, stream);
}

Status ncclAllReduce(const void* in, void* out, size_t count, Type type, Operator how, Comm* comm,
                     CudaStream stream) {
  return ask({.kind = Kind::all_reduce,
              .in = in,
              .out = out,
              .bytes = count * size_of(type),
              .type = type,
              .how = how},
             comm, stream);
}

Status ncclReduce(const void* in, void* out, size_t count, Type type, Operator, int root,
                  Comm* comm, CudaStream stream) {
  return ask({.kind = Kind::reduce,
              .in = in,
              .out = out,
              .bytes = count * size_of(type),
              .type = type,
              .peer = root},
             comm, stream);
}

/// Applies to later calls.
void fake_nccl_connect(bool connect) { connects = connect; }
/// While `hold` is true, new joins do not count.
void fake_nccl_hold_joins(bool hold) { joins_held = hold; }
/// Members of this rank report this error.
void fake_nccl_fail(int rank, Status status) {
  failure = status;
  failing_rank = rank;
}
int fake_nccl_aborts() { return aborts; }
}
