#include "src/kernels/cuda/cudnn/library.h"

#include <memory>

#include "src/core/error.h"
#include "src/core/shared_library.h"
#include "src/kernels/cuda/device/toolkit.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr size_t kTooNew = 10'00'00;
/// NVIDIA's frontend excludes attention of the two versions before, because of known bugs.
constexpr size_t kOldest = 9'10'02;

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

struct Loaded {
  Loaded();
  void find_functions();

  std::unique_ptr<SharedLibrary> library;
  cudnn::Functions functions;
  std::string state;
  bool usable = false;
};

Loaded::Loaded() {
  try {
    library = std::make_unique<SharedLibrary>(
        toolkit_names("libcudnn.so.9", "CUDNN_DIR"), "attention and convolutions by cuDNN",
        "set CUDNN_DIR to the folder that holds it; our own kernels compute instead");
    find_functions();
    const size_t version = functions.GetVersion();
    check(version >= kOldest && version < kTooNew,
          "{} is of cuDNN {}, and 9.10.2 or a later 9 is needed: set CUDNN_DIR to the folder that "
          "holds one; our own kernels compute instead",
          library->name(), version_text(version));
    state = fmt::format("{} ({})", library->name(), version_text(version));
    usable = true;
  } catch (const Failure& failure) {
    state = failure.what();
  }
}

void Loaded::find_functions() {
  const auto find = [this](const char* name, auto*& to) { library->find(name, to); };
  find("cudnnGetVersion", functions.GetVersion);
  find("cudnnGetErrorString", functions.GetErrorString);
  find("cudnnGetLastErrorString", functions.GetLastErrorString);
  find("cudnnCreate", functions.Create);
  find("cudnnDestroy", functions.Destroy);
  find("cudnnSetStream", functions.SetStream);
  find("cudnnBackendCreateDescriptor", functions.BackendCreateDescriptor);
  find("cudnnBackendDestroyDescriptor", functions.BackendDestroyDescriptor);
  find("cudnnBackendFinalize", functions.BackendFinalize);
  find("cudnnBackendSetAttribute", functions.BackendSetAttribute);
  find("cudnnBackendGetAttribute", functions.BackendGetAttribute);
  find("cudnnBackendExecute", functions.BackendExecute);
}

const Loaded& loaded() {
  // Never unloaded: queues and plans destroy their handles when the process ends.
  static const auto* const made = new Loaded;
  return *made;
}

}  // namespace

const cudnn::Functions* cudnn_functions() {
  return loaded().usable ? &loaded().functions : nullptr;
}

std::string cudnn_state() { return loaded().state; }

}  // namespace espalier::kernels::ESPALIER_GPU
