#include "src/train/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "parallel/transport/collectives.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

size_t sum_or_unlimited(size_t a, size_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

/// Bytes of an entry of /proc/meminfo, such as "MemTotal:"; empty: it has none.
std::optional<size_t> memory_entry(const fs::path& root, std::string_view entry) {
  std::ifstream info(root / "proc/meminfo");
  std::string key;
  std::string unit;
  for (size_t kib = 0; info >> key >> kib && std::getline(info, unit);) {
    if (key == entry) {
      return kib * 1024;
    }
  }
  return {};
}

/// The number in a file of a cgroup; unlimited: "max", the kernel's largest number, or no file.
size_t group_limit(const fs::path& file) {
  std::ifstream in(file);
  size_t bytes = 0;
  return in >> bytes && bytes < size_t{1} << 62U ? bytes : kUnlimited;
}

/// A kind of cgroups that may limit memory.
struct GroupVersion {
  std::string_view system;    ///< kind of file system, in /proc/self/mountinfo
  bool named;                 ///< mounts and groups name the controller "memory"
  std::string_view limit;     ///< file with the limit
  std::string_view swap;      ///< file with a limit of swap
  bool swap_includes_memory;  ///< that limit is of the sum
};
constexpr std::array<GroupVersion, 2> kVersions{
    {{"cgroup2", false, "memory.max", "memory.swap.max", false},
     {"cgroup", true, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", true}}};

bool lists(std::string_view names, std::string_view name) {
  std::istringstream in{std::string(names)};
  for (std::string one; std::getline(in, one, ',');) {
    if (one == name) {
      return true;
    }
  }
  return false;
}

/// Path of this process's group within its hierarchy; empty: it is in none.
std::string path_of_group(const fs::path& root, const GroupVersion& version) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // ID:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version.named ? lists(controllers, "memory") : controllers.empty()) {
      return line.substr(second + 1);
    }
  }
  return {};
}

/// Where a hierarchy is mounted.
struct GroupMount {
  std::string group;  ///< the group that is its top, usually "/"
  fs::path at;
};

std::optional<GroupMount> mount_of(const fs::path& root, const GroupVersion& version) {
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // ID PARENT MAJOR:MINOR TOP POINT OPTIONS [FIELD...] - SYSTEM SOURCE OPTIONS
    std::istringstream before(line.substr(0, line.find(" - ")));
    std::istringstream after(line.substr(std::min(line.size(), line.find(" - ") + 3)));
    std::string skipped;
    std::string top;
    std::string point;
    std::string system;
    std::string options;
    before >> skipped >> skipped >> skipped >> top >> point;
    after >> system >> skipped >> options;
    if (system == version.system && (!version.named || lists(options, "memory"))) {
      return GroupMount{.group = top, .at = root / fs::path(point).relative_path()};
    }
  }
  return {};
}

/// Directory of this process's group; in a container that does not see it, that of the mount.
fs::path directory_of(const GroupMount& mount, const std::string& group) {
  const fs::path below = fs::path(group).lexically_relative(mount.group);
  const bool seen = !below.empty() && *below.begin() != ".." && fs::exists(mount.at / below);
  return seen ? mount.at / below : mount.at;
}

/// Directories of this process's group and of those above it; none: it is in none.
std::vector<fs::path> group_directories(const fs::path& root, const GroupVersion& version) {
  const std::string group = path_of_group(root, version);
  const auto mount = mount_of(root, version);
  std::vector<fs::path> all;
  if (group.empty() || !mount) {
    return all;
  }
  const fs::path top = mount->at.lexically_normal();
  all.push_back(directory_of(*mount, group).lexically_normal());
  while (all.back() != top && all.back() != all.back().parent_path()) {
    all.push_back(all.back().parent_path());
  }
  return all;
}

HostLimit cgroup_limit(const fs::path& root, const GroupVersion& version) {
  HostLimit smallest{.fix = "start it in a group with more memory (containers: --memory)"};
  const size_t swap = memory_entry(root, "SwapTotal:").value_or(0);
  for (const fs::path& directory : group_directories(root, version)) {
    const size_t memory = group_limit(directory / version.limit);
    const size_t with_swap = group_limit(directory / version.swap);
    const size_t bytes = version.swap_includes_memory
                             ? std::min(sum_or_unlimited(memory, swap), with_swap)
                             : sum_or_unlimited(memory, std::min(swap, with_swap));
    if (bytes < smallest.bytes) {
      smallest.bytes = bytes;
      smallest.name = fmt::format("the cgroup's memory ({})", (directory / version.limit).string());
    }
  }
  return smallest;
}

/// A variable with a number of MiB or of devices; 0: unset or no number.
size_t number_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

HostLimit slurm_limit() {
  HostLimit smallest;
  if (std::getenv("SLURM_JOB_ID") == nullptr) {
    return smallest;
  }
  struct Variable {
    const char* memory;
    size_t count;
    const char* option;
  };
  for (const auto& [memory, count, option] :
       {Variable{"SLURM_MEM_PER_NODE", 1, "--mem"},
        Variable{"SLURM_MEM_PER_CPU", number_of("SLURM_CPUS_ON_NODE"), "--mem-per-cpu"},
        Variable{"SLURM_MEM_PER_GPU", number_of("SLURM_GPUS_ON_NODE"), "--mem-per-gpu"}}) {
    const size_t bytes = (number_of(memory) * count) << 20U;
    if (bytes > 0 && bytes < smallest.bytes) {
      smallest = {.bytes = bytes,
                  .name = fmt::format("the Slurm job's memory ({})", memory),
                  .fix = fmt::format("submit it with a larger {}, or with more nodes", option)};
    }
  }
  return smallest;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

HostLimit host_limit(const fs::path& root) {
  const size_t total = sum_or_unlimited(memory_entry(root, "MemTotal:").value_or(kUnlimited),
                                        memory_entry(root, "SwapTotal:").value_or(0));
  std::vector<HostLimit> limits{slurm_limit()};
  for (const GroupVersion& version : kVersions) {
    limits.push_back(cgroup_limit(root, version));
  }
  limits.push_back({.bytes = total,
                    .name = "the machine's memory and swap",
                    .fix = "use more machines, or a larger one"});
  return *std::ranges::min_element(limits, {}, &HostLimit::bytes);
}

double cpu_quota(const fs::path& root) {
  double least = std::numeric_limits<double>::infinity();
  for (const fs::path& directory : group_directories(root, kVersions[0])) {
    std::ifstream in(directory / "cpu.max");  // "QUOTA PERIOD" in microseconds, or "max PERIOD"
    double quota = 0;
    double period = 0;
    if (in >> quota >> period && quota > 0 && period > 0) {
      least = std::min(least, quota / period);
    }
  }
  return least;
}

size_t host_needed(const MemoryPlan& plan, bool on_device) {
  return on_device ? kProgram + sum_of(plan.pinned) : plan.needed();
}

std::string check_host(const MemoryPlan& mine, bool on_device, parallel::Communicator& comm,
                       const fs::path& root) {
  const std::array<size_t, 2> bytes{host_needed(mine, on_device), mine.checkpoint_copy};
  std::vector<std::array<size_t, 2>> all(static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(std::span(bytes)),
                       std::as_writable_bytes(std::span(all)));
  const std::vector<int>& node = comm.members().node;
  size_t needed = 0;
  size_t copies = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (node[rank] == node[static_cast<size_t>(comm.rank())]) {
      needed += all[rank][0];
      copies += all[rank][1];
    }
  }
  const HostLimit limit = host_limit(root);
  std::optional<Failure> failure;
  if (needed > limit.bytes) {
    const int ranks = comm.local_size();
    failure.emplace(fmt::format(
        "{} on {} is {}, but the {} of the run there need {} ({}{}: {}); {}, or set "
        "train.memory_budget = \"{}B\" for a rank, which reduces micro-batch and activations or "
        "names what else helps",
        limit.name, host_name(), size_text(limit.bytes),
        ranks == 1 ? "rank" : fmt::format("{} ranks", ranks), size_text(needed),
        ranks == 1 ? "" : fmt::format("rank {}: ", comm.rank()), size_text(bytes[0]),
        on_device ? "pinned memory, program"
                  : fmt::format("{}, program and temporaries {}", needs_text(mine.peak),
                                size_text(mine.outside_arena)),
        limit.fix, limit.bytes / static_cast<size_t>(ranks)));
  }
  agree_on_any(comm, failure);
  return copies <= limit.bytes - needed
             ? ""
             : fmt::format(
                   "{} has no room for the {} of a checkpoint's copy: steps wait while "
                   "checkpoints are written",
                   limit.name, size_text(mine.checkpoint_copy));
}

bool has_memory_for_copies(size_t copy, int ranks, const fs::path& root) {
  const auto available = memory_entry(root, "MemAvailable:");
  return !available || copy * static_cast<size_t>(ranks) <= *available / 2;
}

}  // namespace espalier::train
