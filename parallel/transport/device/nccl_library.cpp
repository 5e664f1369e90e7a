#include "parallel/transport/device/nccl_library.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "src/core/error.h"
#include "src/core/shared_library.h"

namespace espalier::parallel::nccl {
namespace {

constexpr int kOldest = 21400;
constexpr int kTooNew = 30000;

struct Loaded {
  SharedLibrary file;
  Library library;

  explicit Loaded(const std::vector<std::string>& names)
      : file(
            names, "NCCL (sums and messages between GPUs)",
            "install NCCL 2.14 or later, name its libnccl.so.2 with ESPALIER_NCCL_LIBRARY=FILE, or "
            "set parallel.device_link = \"host\"") {}
};

std::string text_of(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void find_functions(const SharedLibrary& file, Functions& call) {
  const auto find = [&]<class F>(const char* name, F*& to) { file.find(name, to); };
  find("ncclGetVersion", call.GetVersion);
  find("ncclGetUniqueId", call.GetUniqueId);
  find("ncclCommInitRankConfig", call.CommInitRankConfig);
  find("ncclCommGetAsyncError", call.CommGetAsyncError);
  find("ncclCommFinalize", call.CommFinalize);
  find("ncclCommDestroy", call.CommDestroy);
  find("ncclCommAbort", call.CommAbort);
  find("ncclGetErrorString", call.GetErrorString);
  find("ncclGetLastError", call.GetLastError);
  find("ncclGroupStart", call.GroupStart);
  find("ncclGroupEnd", call.GroupEnd);
  find("ncclSend", call.Send);
  find("ncclRecv", call.Recv);
  find("ncclAllReduce", call.AllReduce);
  find("ncclReduce", call.Reduce);
}

std::unique_ptr<Loaded> load(const std::string& chosen) {
  const std::vector<std::string> usual{"libnccl.so.2", "libnccl.so"};
  auto loaded = std::make_unique<Loaded>(chosen.empty() ? usual : std::vector{chosen});
  Library& library = loaded->library;
  library.name = loaded->file.name();
  loaded->file.find("ncclGetVersion", library.call.GetVersion);
  int version = 0;
  library.call.GetVersion(&version);
  // Versions up to 2.8 have one digit less.
  library.version = version < 10000 ? fmt::format("2.{}", version / 100 % 10) : text_of(version);
  check(version >= kOldest && version < kTooNew,
        "{} is NCCL {}, and this program needs 2.14 or a later 2.x: install one, name another with "
        "ESPALIER_NCCL_LIBRARY=FILE, or set parallel.device_link = \"host\"",
        library.name, library.version);
  find_functions(loaded->file, library.call);
  return loaded;
}

}  // namespace

const Library& library() {
  static std::mutex mutex;
  static auto& files = *new std::map<std::string, std::unique_ptr<Loaded>>;  // NCCL has threads
  const char* chosen = std::getenv("ESPALIER_NCCL_LIBRARY");
  const std::scoped_lock lock(mutex);
  auto& loaded = files[chosen != nullptr ? chosen : ""];
  if (loaded == nullptr) {
    loaded = load(chosen != nullptr ? chosen : "");
  }
  return loaded->library;
}

std::string description() {
  try {
    return fmt::format("{} ({})", library().version, library().name);
  } catch (const Failure&) {
    return "not found";
  }
}

}  // namespace espalier::parallel::nccl
