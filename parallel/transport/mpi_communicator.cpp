#include "parallel/transport/mpi_communicator.h"

#include <mpi.h>
#include <sys/statvfs.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/leftover_segments.h"
#include "parallel/transport/start_watch.h"
#include "parallel/transport/watchdog.h"
#include "src/core/trace.h"

namespace espalier::parallel {

namespace {

/// Throws a retryable Failure with MPI's own text unless the call succeeded.
void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  const std::string_view cause(text.data(), static_cast<size_t>(length));
  throw Failure(fmt::format("{} failed: {}", call, cause), true);
}

/// MPI's number of a tag. Every MPI library supports at least 0 … 32767; these end below
/// kPoisonTag.
constexpr int mpi_tag(Tag tag) { return static_cast<int>(tag.kind) * kTagNumbers + tag.number; }
inline constexpr int kPoisonTag = 32766;
inline constexpr int kLifeTag = 32765;

/// Source or destination of a message.
struct MpiAddress {
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = 0;
  int tag = 0;
  size_t part_bytes = 0;  ///< a longer message is sent in parts of this size
};

/// Messages up to this size are copied to lie beside their trailer; a longer one sends it as one
/// more part. A copy of 4 KiB takes 0.1 us, a part of its own 0.5 us.
constexpr size_t kLargestPacked = 4096;

/// One message, in parts.
class MpiOperation final : public Operation {
 public:
  /// A send reads `data` only. With `sealed` it ends with the trailer.
  MpiOperation(const MpiAddress& at, std::span<std::byte> data, bool receives, bool sealed,
               const Trailer& trailer = {})
      : data_(data), peer_(at.peer), receives_(receives) {
    arrival.trailer = trailer;
    if (sealed && data.size() <= kLargestPacked) {
      packed_.resize(data.size() + sizeof trailer);
      if (!receives) {
        std::ranges::copy(data, packed_.begin());
        std::memcpy(packed_.data() + data.size(), &trailer, sizeof trailer);
      }
      start(at, packed_);
      return;
    }
    do {  // an empty message has one empty part
      const size_t bytes = std::min(at.part_bytes, data.size());
      start(at, data.first(bytes));
      data = data.subspan(bytes);
    } while (!data.empty());
    if (sealed) {
      start(at, std::as_writable_bytes(std::span(&arrival.trailer, 1)));
    }
  }

  ~MpiOperation() override {
    // After an error no rank calls MPI again except to abort. Only calls make progress, so MPI no
    // longer writes to the buffer. Waiting for the cancellation could hang on the lost peer.
    for (Part& part : parts_) {
      if (part.request != MPI_REQUEST_NULL) {
        if (receives_) {
          MPI_Cancel(&part.request);
        }
        MPI_Request_free(&part.request);
      }
    }
  }

  bool test() override {
    for (; done_ < parts_.size(); ++done_) {
      int flag = 0;
      MPI_Status status{};
      const int code = MPI_Test(&parts_[done_].request, &flag, &status);
      if (code != MPI_SUCCESS) {
        int kind = MPI_SUCCESS;
        MPI_Error_class(code, &kind);
        check(kind != MPI_ERR_TRUNCATE,
              "rank {} sent more than the {} bytes that were expected: ranks must run the same "
              "program and config",
              peer_, parts_[done_].bytes - trailer_bytes());
        check_mpi(code, "MPI_Test");
      }
      if (flag == 0) {
        return false;
      }
      if (receives_) {
        check_size(parts_[done_], status);
      }
    }
    if (receives_ && !packed_.empty()) {
      std::copy_n(packed_.begin(), data_.size(), data_.begin());
      std::memcpy(&arrival.trailer, packed_.data() + data_.size(), sizeof arrival.trailer);
    }
    return true;
  }

 private:
  struct Part {
    MPI_Request request = MPI_REQUEST_NULL;
    int bytes = 0;
  };

  void start(const MpiAddress& at, std::span<std::byte> data) {
    Part& part = parts_.emplace_back();
    part.bytes = static_cast<int>(data.size());
    check_mpi(
        receives_
            ? MPI_Irecv(data.data(), part.bytes, MPI_BYTE, at.peer, at.tag, at.comm, &part.request)
            : MPI_Isend(data.data(), part.bytes, MPI_BYTE, at.peer, at.tag, at.comm, &part.request),
        receives_ ? "MPI_Irecv" : "MPI_Isend");
  }

  /// Bytes of a packed part that are not the caller's.
  int trailer_bytes() const { return packed_.empty() ? 0 : static_cast<int>(sizeof(Trailer)); }

  void check_size(const Part& part, const MPI_Status& status) const {
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    check(
        bytes == part.bytes,
        "rank {} sent {} bytes where {} were expected: ranks must run the same program and config",
        peer_, bytes - trailer_bytes(), part.bytes - trailer_bytes());
  }

  std::span<std::byte> data_;
  std::vector<std::byte> packed_;  ///< a short message and its trailer
  std::vector<Part> parts_;
  size_t done_ = 0;  ///< parts
  int peer_;
  bool receives_;
};

// MPI prescribes this signature.
template <class Half>
void add_halves(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* x = static_cast<const Half*>(in);
  auto* y = static_cast<Half*>(in_out);
  for (int i = 0; i < *count; ++i) {
    y[i] = from_float<Half>(to_float(x[i]) + to_float(y[i]));
  }
}

/// Created once, and freed with MPI.
template <class Half>
MPI_Op sum_of_halves() {
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    check_mpi(MPI_Op_create(&add_halves<Half>, 1, &made), "MPI_Op_create");
    return made;
  }();
  return op;
}

MPI_Op sum_of(DType dtype) {
  return dtype == DType::fp32   ? MPI_SUM
         : dtype == DType::bf16 ? sum_of_halves<bf16>()
                                : sum_of_halves<fp16>();
}

/// All-reduce by MPI itself; fp32, or 16 bits added in fp32 and rounded at each step. MPI cannot
/// cancel a collective: one in flight is abandoned (the job then ends).
class MpiAllReduce final : public Operation {
 public:
  MpiAllReduce(MPI_Comm comm, const Tensor& data) {
    constexpr int64_t kPart = int64_t{1} << 28;  // elements; MPI counts in int
    const bool wide = data.dtype == DType::fp32;
    require(is_number(data.dtype), "fp32, bf16 or fp16", name_of(data.dtype));
    auto* memory = static_cast<std::byte*>(data.data);
    for (int64_t at = 0; at < data.count(); at += kPart) {
      const auto count = static_cast<int>(std::min(kPart, data.count() - at));
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, memory + static_cast<size_t>(at) * size_of(data.dtype),
                               count, wide ? MPI_FLOAT : MPI_UINT16_T, sum_of(data.dtype), comm,
                               &parts_.emplace_back()),
                "MPI_Iallreduce");
    }
  }

  bool test() override {
    for (MPI_Request& part : parts_) {
      int flag = 0;
      check_mpi(MPI_Test(&part, &flag, MPI_STATUS_IGNORE), "MPI_Test");
      if (flag == 0) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<MPI_Request> parts_;
};

/// The reason that a failed rank sends to the others; short, so that it is sent eagerly.
struct Notice {
  bool retryable = true;
  std::array<char, 1023> why{};  ///< ends with a zero
};
static_assert(std::is_trivially_copyable_v<Notice>);

/// State shared by a world and the communicators split from it. Receives for a notice and for a
/// sign of life are always posted.
class MpiWorld {
 public:
  explicit MpiWorld(const MpiOptions& options)
      : part_bytes(options.part_bytes), on_hang(options.on_hang) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    // Errors of MPI_Test are not those of one communicator: MPICH takes the handler of these two.
    for (MPI_Comm one : {comm, MPI_COMM_WORLD, MPI_COMM_SELF}) {
      check_mpi(MPI_Comm_set_errhandler(one, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    check_mpi(
        MPI_Irecv(&notice_, sizeof(notice_), MPI_BYTE, MPI_ANY_SOURCE, kPoisonTag, comm, &request_),
        "MPI_Irecv");
    await_life();
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  /// Frees nothing: after an error no MPI operation may be waited for. `close` cleans up.
  ~MpiWorld() = default;

  /// Collective, like all of finalizing.
  void close() {
    for (MPI_Request* request : {&request_, &life_request_}) {
      if (*request != MPI_REQUEST_NULL) {
        MPI_Cancel(request);
        MPI_Wait(request, MPI_STATUS_IGNORE);
      }
    }
    for (MPI_Comm& part : parts) {
      MPI_Comm_free(&part);
    }
    MPI_Comm_free(&comm);
  }

  /// Whether all ranks arrive here within the timeout. As in other waits, time in which a rank
  /// shows that it is alive, or this process was stopped, does not count.
  bool all_arrive(double timeout) {
    MPI_Request barrier = MPI_REQUEST_NULL;
    int flag = 0;
    if (MPI_Ibarrier(comm, &barrier) != MPI_SUCCESS) {
      return false;
    }
    double since = now_seconds();
    for (double last = since; flag == 0 && last - std::max(since, last_life) < timeout;) {
      MPI_Test(&barrier, &flag, MPI_STATUS_IGNORE);
      try {
        look_at_peers();
      } catch (const PeerLost&) {  // it arrives here, too
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      const double now = now_seconds();
      since += now - last > 1 ? now - last : 0;
      last = now;
    }
    return flag != 0;
  }

  /// Takes signs of life, and throws if a rank has failed.
  void look_at_peers() {
    int flag = 0;
    MPI_Status status{};
    for (check_mpi(MPI_Test(&life_request_, &flag, &status), "MPI_Test"); flag != 0;
         check_mpi(MPI_Test(&life_request_, &flag, &status), "MPI_Test")) {
      last_life = now_seconds();
      await_life();
    }
    check_mpi(MPI_Test(&request_, &flag, &status), "MPI_Test");
    if (flag == 0 || status.MPI_SOURCE < 0) {
      return;
    }
    throw PeerLost({status.MPI_SOURCE},
                   fmt::format("rank {} has failed: {}", status.MPI_SOURCE, notice_.why.data()),
                   notice_.retryable);
  }

  /// Sends the notice to all ranks, on the calling thread.
  void poison(const Failure& failure) {
    Notice notice{.retryable = failure.retryable()};
    const std::string_view why = failure.what();
    std::memcpy(notice.why.data(), why.data(), std::min(why.size(), notice.why.size() - 1));
    tell_all(kPoisonTag, std::as_bytes(std::span(&notice, 1)));
  }
  void show_life() { tell_all(kLifeTag, {}); }

  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<MPI_Comm> parts;  ///< made by split; freed together at the end
  size_t part_bytes;
  std::function<void(const std::string&)> on_hang;  ///< MpiOptions
  double last_life = 0;                             ///< a sign of life arrived

 private:
  void await_life() {
    check_mpi(MPI_Irecv(nullptr, 0, MPI_CHAR, MPI_ANY_SOURCE, kLifeTag, comm, &life_request_),
              "MPI_Irecv");
  }

  void tell_all(int tag, std::span<const std::byte> text) const {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        MPI_Request sent = MPI_REQUEST_NULL;
        MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, peer, tag, comm, &sent);
        drive(sent);
      }
    }
  }

  /// A message this short is sent at once, unless its receiver is stuck.
  static void drive(MPI_Request& sent) {
    const double begin = now_seconds();
    int flag = 0;
    while (flag == 0 && now_seconds() - begin < 0.1) {
      MPI_Test(&sent, &flag, MPI_STATUS_IGNORE);
    }
    if (sent != MPI_REQUEST_NULL) {
      MPI_Request_free(&sent);
    }
  }

  Notice notice_{};
  MPI_Request request_ = MPI_REQUEST_NULL;
  MPI_Request life_request_ = MPI_REQUEST_NULL;
};

/// A message between stages is sent in parts that MPI sends eagerly: they leave at once and arrive
/// while both sides compute. A longer (rendezvous) part would wait until both ends call MPI again,
/// several times.
constexpr size_t kEagerPart = size_t{64} << 10U;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, Membership members)
      : Communicator(std::move(members)), world_(std::move(world)), comm_(world_->comm) {}
  MpiCommunicator(const MpiCommunicator& root, MPI_Comm comm, Membership members)
      : Communicator(std::move(members), root), world_(root.world_), comm_(comm) {}

  std::string_view name() const override { return "mpi"; }
  std::string takes_device_memory() const override { return mpi_cuda_support(); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void progress() override { world_->look_at_peers(); }  // any call drives all of MPI
  void show_life() noexcept override { world_->show_life(); }
  double last_life() const override { return world_->last_life; }
  void poison(const Failure& why) noexcept override {
    set_broken();
    world_->poison(why);
  }
  void abort(int code) noexcept override { MPI_Abort(MPI_COMM_WORLD, code); }

  /// Collective, and the end of MPI. After a lost peer only if all ranks arrive in time: else
  /// finalizing would hang.
  void finalize() {
    if (!world_->all_arrive(timeout())) {
      if (!broken()) {
        report_hang(fmt::format(
            "a rank did not reach the end of the run within {:g} s: it died or is stopped; see its "
            "own output, and resume from the last checkpoint",
            timeout()));
      }
      return;
    }
    const auto watchdog = watch("the end of MPI");
    world_->close();
    MPI_Finalize();
  }

 private:
  MpiAddress address(int peer, Tag tag) const {
    const bool eager = tag.kind == Traffic::point_to_point && !tag.whole;
    const size_t most = eager ? kEagerPart : world_->part_bytes;
    return {.comm = comm_,
            .peer = peer,
            .tag = mpi_tag(tag),
            .part_bytes = std::min(most, world_->part_bytes)};
  }
  std::unique_ptr<Operation> start_send(int to, Tag tag, std::span<const std::byte> data,
                                        const Trailer& trailer) override {
    const std::span<std::byte> bytes(const_cast<std::byte*>(data.data()), data.size());
    return std::make_unique<MpiOperation>(address(to, tag), bytes, false, !tag.whole, trailer);
  }
  std::unique_ptr<Operation> start_receive(int from, Tag tag, std::span<std::byte> data) override {
    return std::make_unique<MpiOperation>(address(from, tag), data, true, !tag.whole);
  }
  std::unique_ptr<Operation> start_all_reduce(const Tensor& data) override {
    return std::make_unique<MpiAllReduce>(comm_, data);
  }
  void idle(int round) override;

  void report_hang(const std::string& why) const {
    if (world_->on_hang) {
      world_->on_hang(why);
    }
  }
  /// Watches calls that wait for all ranks. All have arrived just before, so that the message of
  /// that wait names a rank that is late.
  std::optional<Watchdog> watch(std::string_view calls) const {
    return std::optional<Watchdog>(std::in_place, timeout(), [this, text = std::string(calls)] {
      report_hang(
          fmt::format("a rank did not join {} within {:g} s: it died or is stopped; see "
                      "its own output, and resume from the last checkpoint",
                      text, timeout()));
    });
  }

  std::shared_ptr<MpiWorld> world_;
  MPI_Comm comm_;
};

void MpiCommunicator::idle(int round) {
  // Most waits are short: poll first. Then yield the core to other threads, which may keep it for
  // milliseconds. Long waits (a peer computes or writes a checkpoint) sleep between polls.
  constexpr int kSpins = 200;
  constexpr int kPolls = 2000;
  if (round < kSpins) {
    return;
  }
  if (round % 16 == 0) {
    world_->look_at_peers();  // also while yielding: on a loaded machine that lasts for seconds
  }
  if (round < kPolls) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  barrier(*this);
  const auto watchdog = watch("the creation of a communicator");
  check_mpi(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
  check_mpi(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  world_->parts.push_back(part);
  Membership mine;
  int size = 0;
  MPI_Comm_rank(part, &mine.rank);
  MPI_Comm_size(part, &size);
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group whole = MPI_GROUP_NULL;
  MPI_Comm_group(part, &group);
  MPI_Comm_group(comm_, &whole);
  for (int r = 0; r < size; ++r) {
    int here = 0;
    MPI_Group_translate_ranks(group, 1, &r, whole, &here);
    mine.world.push_back(members().world[here]);
    mine.node.push_back(members().node[here]);
  }
  MPI_Group_free(&group);
  MPI_Group_free(&whole);
  return std::make_unique<MpiCommunicator>(*this, part, std::move(mine));
}

/// A machine is identified by its lowest rank; machines are numbered in order of appearance.
Membership world_membership() {
  Membership members;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &members.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, members.rank, MPI_INFO_NULL, &node);
  int lowest = members.rank;
  MPI_Bcast(&lowest, 1, MPI_INT, 0, node);
  MPI_Comm_free(&node);
  members.node.resize(static_cast<size_t>(size));
  MPI_Allgather(&lowest, 1, MPI_INT, members.node.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::map<int, int> number;
  for (int r = 0; r < size; ++r) {
    members.world.push_back(r);
    members.node[r] =
        number.try_emplace(members.node[r], static_cast<int>(number.size())).first->second;
  }
  return members;
}

/// Bytes of shared memory in which a rank's parts lie until their receiver has copied them. Open
/// MPI's 4 MiB hold eight parts of 64 KiB: a longer message then waits for the next call of both
/// ends, which took a fifth of a step of a pipeline (docs/schedules.md). Pages count once they are
/// used. The ranks of a machine leave half of a small /dev/shm (64 MiB in a container) free.
size_t shared_segment_bytes(const char* folder) {
  constexpr size_t kLeast = size_t{4} << 20U;
  constexpr size_t kMost = size_t{32} << 20U;
  struct statvfs about {};
  if (statvfs(folder, &about) != 0) {
    return kLeast;
  }
  const size_t free = about.f_bavail * about.f_frsize;
  const auto ranks = static_cast<size_t>(std::max(1, find_launch().value_or(Launch()).local_ranks));
  return std::clamp(free / (2 * ranks), kLeast, kMost);
}

}  // namespace

/// Called before MPI reads these variables; it does not override a user's setting. Other MPI
/// libraries have such limits by default.
void raise_eager_limit() {
  const std::string limit = fmt::format("{}", kEagerPart + 512);  // with MPI's own headers
  const std::string segment = fmt::format("{}", shared_segment_bytes("/dev/shm"));
  for (const char* transport : {"vader", "sm"}) {
    setenv(fmt::format("OMPI_MCA_btl_{}_eager_limit", transport).c_str(), limit.c_str(), 0);
    setenv(fmt::format("OMPI_MCA_btl_{}_segment_size", transport).c_str(), segment.c_str(), 0);
  }
  // Over TCP a longer message uses rendezvous, and its reply queues behind all data already in
  // flight: on a slow link, pieces of 256 KiB lost a third of the bandwidth (docs/collectives.md).
  const std::string piece = fmt::format("{}", kPieceBytes + 1024);
  for (const char* name : {"eager_limit", "rndv_eager_limit", "max_send_size"}) {
    setenv(fmt::format("OMPI_MCA_btl_tcp_{}", name).c_str(), piece.c_str(), 0);
  }
}

MpiScope::MpiScope(const MpiOptions& options) : exceptions_(std::uncaught_exceptions()) {
  require(options.part_bytes >= 1 && options.part_bytes <= size_t{1} << 30U,
          "MPI counts bytes in an int", options.part_bytes);
  int before = 0;
  MPI_Initialized(&before);
  require(before == 0, "MPI starts once in a process");
  int provided = 0;
  raise_eager_limit();
  const StartWatch watch(options.timeout, options.on_hang);
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  check(provided >= MPI_THREAD_SERIALIZED,
        "this MPI library ({}) may be called by one thread only: use one built with thread support "
        "(MPI_THREAD_SERIALIZED)",
        mpi_library());
  auto world =
      std::make_unique<MpiCommunicator>(std::make_shared<MpiWorld>(options), world_membership());
  world->set_timeout(options.timeout);
  if (world->local_rank() == 0) {
    remove_leftover_segments();
  }
  check_joined(world->size(), mpi_library());
  world_ = std::move(world);
}

MpiScope::~MpiScope() {
  if (std::uncaught_exceptions() <= exceptions_) {
    static_cast<MpiCommunicator&>(*world_).finalize();
  }
}

void MpiScope::abort(int code) noexcept {
  world_->abort(code);
  std::_Exit(code);
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<size_t>(length));
  std::string name;  // "Open MPI v4.1.4, package: …", "MPICH Version:      4.0.2\nMPICH Release …"
  for (const char c : whole.substr(0, whole.find_first_of(",\n"))) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space || (!name.empty() && name.back() != ' ')) {
      name += space ? ' ' : c;
    }
  }
  return name;
}

std::string mpi_cuda_support() {
#ifdef MPIX_CUDA_AWARE_SUPPORT  // by Open MPI
  return MPIX_Query_cuda_support() != 0 ? "yes" : "no";
#else
  return "unknown";
#endif
}

}  // namespace espalier::parallel
