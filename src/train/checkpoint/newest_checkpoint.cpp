#include "src/train/checkpoint/newest_checkpoint.h"

#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/fingerprint.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;

/// Empty if the file cannot be read.
std::string fingerprint_of(const fs::path& file) {
  try {
    return io::fingerprint(std::vector<std::string>{file.string()}, "checkpoint");
  } catch (const Failure&) {
    return "";
  }
}

/// Collective. The damage that any rank finds, on rank 0. `file` is rank 0's.
io::Damage damage_found_by_ranks(const fs::path& file, parallel::Communicator& comm) {
  std::string content;
  {
    const parallel::Busy busy(comm);
    content = fingerprint_of(file);
  }
  const std::string of_first = broadcast_text(comm, content);
  const bool helps = comm.rank() == 0 || (!content.empty() && content == of_first);
  const std::array<char, 1> mine{helps ? char{1} : char{0}};
  std::vector<char> all(static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(std::span(mine)),
                       std::as_writable_bytes(std::span(all)));
  io::Damage damage;
  on_all_ranks(comm, [&] {
    if (helps) {
      const auto before = std::accumulate(all.begin(), all.begin() + comm.rank(), 0);
      const auto count = std::accumulate(all.begin(), all.end(), 0);
      damage = io::damage_of(file, {.index = before, .count = count});
    }
  });
  const std::string found = damage.why.empty() ? "" : (damage.unreadable ? 'U' : 'D') + damage.why;
  for (const auto& bytes : parallel::gather(comm, std::as_bytes(std::span(found)))) {
    if (damage.why.empty() && !bytes.empty()) {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      damage = {.why = std::string(text.substr(1)), .unreadable = text[0] == 'U'};
    }
  }
  return damage;
}

}  // namespace

io::NewestIntact newest_intact_checkpoint(const fs::path& folder, parallel::Communicator& comm) {
  std::vector<fs::path> left;  // on rank 0, the last step at the end
  on_first_rank(comm, [&] { left = io::checkpoints_in(folder); });
  io::NewestIntact newest;
  for (;;) {
    // Others verify the files that rank 0 names, until it names none.
    const std::string file =
        broadcast_text(comm, newest.file || left.empty() ? "" : left.back().string());
    if (file.empty()) {
      return newest;
    }
    const io::Damage damage = damage_found_by_ranks(file, comm);
    if (comm.rank() == 0) {
      newest.add(file, damage);
      left.pop_back();
    }
  }
}

}  // namespace espalier::train
