#include "src/train/checkpoint/received_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "io/files/file_system.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "parallel/transport/collectives.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kReadAtOnce = uint64_t{4} << 20;

bool can_open(const fs::path& file) {
  try {
    io::RawFile::open(file);
    return true;
  } catch (const Failure&) {
    return false;
  }
}

/// Threads of one process have the same temporary name for a path.
fs::path copy_name(const fs::path& file, int rank) {
  return io::temporary_name(fmt::format("{}.rank-{}", file.string(), rank));
}

}  // namespace

ReceivedCheckpoint::ReceivedCheckpoint(const std::optional<fs::path>& file,
                                       parallel::Communicator& comm)
    : file_(file), copy_{comm} {
  if (!file_ || comm.size() == 1) {
    return;
  }
  std::array<double, 1> without{0};
  {
    const parallel::Busy busy(comm);
    without[0] = comm.rank() == 0 || can_open(*file_) ? 0 : 1;
  }
  const bool writes = without[0] > 0;
  parallel::all_reduce_small(comm, without, parallel::Combine::sum);
  copies_ = static_cast<int>(without[0]);
  if (copies_ > 0) {
    receive(writes, comm);
  }
}

ReceivedCheckpoint::Copy::~Copy() {
  if (!path.empty()) {
    const parallel::Busy busy(comm);
    io::file_system().unlink(path);  // in vain: the next receiver on this machine removes it
  }
}

/// Every rank takes part in each piece, so none seems lost while the others exchange.
void ReceivedCheckpoint::receive(bool writes, parallel::Communicator& comm) {
  std::optional<Failure> failure;
  const auto attempt = [&](const auto& action) {
    const parallel::Busy busy(comm);
    try {
      if (!failure) {
        action();
      }
    } catch (const Failure& one) {
      failure = one;
    }
  };
  std::optional<io::RawFile> disk;
  uint64_t size = 0;
  if (comm.rank() == 0) {
    attempt([&] {
      disk.emplace(io::RawFile::open(*file_));
      size = disk->size();
    });
  } else if (writes) {
    attempt([&] {
      copy_.path = copy_name(*file_, comm.rank());
      io::make_folder_of(copy_.path);
      io::remove_abandoned(copy_.path.parent_path());
      io::remove_file(copy_.path);  // of a killed process with this number
      disk.emplace(io::RawFile::create(copy_.path));
    });
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(&size, 1)));
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(static_cast<size_t>(std::min(kReadAtOnce, size - at)));
    if (comm.rank() == 0) {
      attempt([&] {
        check_system(disk->read(at, piece.size(), piece.data()), disk->error(),
                     "{} cannot be read: {}", file_->string(), io::cause_of(disk->error()));
      });
    }
    parallel::broadcast(comm, 0, piece);
    if (writes) {
      attempt([&] {
        disk->write(at, piece.size(), piece.data());
        check_system(disk->error() == 0, disk->error(),
                     "{} cannot be written: {}; rank {} does not see rank 0's run directory and "
                     "needs space for a copy of the checkpoint",
                     copy_.path.string(), io::cause_of(disk->error()), comm.rank());
      });
    }
  }
  agree_on_any(comm, failure);
  if (writes) {
    file_ = copy_.path;
  }
}

}  // namespace espalier::train
