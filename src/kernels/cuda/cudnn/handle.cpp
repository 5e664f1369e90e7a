#include "src/kernels/cuda/cudnn/handle.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/library.h"
#include "src/kernels/library_uses.h"

namespace espalier::kernels::ESPALIER_GPU {

Cudnn::Cudnn() {
  try {
    check_cudnn(cudnn_functions()->Create(&handle_), "handle", 0);
  } catch (const Failure& failure) {
    why_not_ = failure.what();
  }
}

void Cudnn::use_stream(cudnn::Stream stream) {
  if (handle_ != nullptr) {
    check_cudnn(cudnn_functions()->SetStream(handle_, stream), "stream", 0);
  }
}

Cudnn::~Cudnn() {
  attention_.clear();
  convolutions_.clear();
  if (handle_ != nullptr) {
    static_cast<void>(cudnn_functions()->Destroy(handle_));
  }
}

namespace {

struct Pool {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<Cudnn>> unused;  ///< by device
};

Pool& pool() {
  static auto* const made = new Pool;  // never destroyed: the driver may have ended before
  return *made;
}

std::string text_of(const AttentionKey& key) {
  return fmt::format("attention{} of {} x {} positions, {} heads of {}{}",
                     key.backward ? "'s gradient" : "", key.sequences, key.tokens, key.heads,
                     key.width, key.deterministic ? "" : ", by atomics");
}

std::string text_of(const ConvolutionKey& key) {
  constexpr std::array kParts{"convolution", "convolution's input gradient",
                              "convolution's weight gradient"};
  return fmt::format("{} of {} images, {} to {} channels, window {}, stride {}, {}",
                     kParts[static_cast<size_t>(key.part)], key.images, key.in, key.out,
                     key.window.extent, key.window.stride, name_of(key.dtype));
}

/// The support of `key` in `kept`, which `plan` finds at the first use.
template <class Key, class Plan>
CudnnSupport& find_or_plan(std::map<Key, CudnnSupport>& kept, const Key& key,
                           const std::string& why_not, const Plan& plan) {
  const auto found = kept.find(key);
  if (found != kept.end()) {
    return found->second;
  }
  CudnnSupport made = why_not.empty() ? plan() : CudnnSupport{.plan = nullptr, .why_not = why_not};
  made.of = text_of(key);
  record_library_use(made.of, made.plan != nullptr
                                  ? fmt::format("cuDNN, engine {}", made.plan->engine)
                                  : "our kernel: " + made.why_not);
  return kept.emplace(key, std::move(made)).first->second;
}

}  // namespace

std::unique_ptr<Cudnn> take_cudnn(int device) {
  const std::scoped_lock lock(pool().mutex);
  auto found = pool().unused.extract(device);
  return found ? std::move(found.mapped()) : std::make_unique<Cudnn>();
}

void give_back_cudnn(int device, std::unique_ptr<Cudnn> used) {
  const std::scoped_lock lock(pool().mutex);
  pool().unused.emplace(device, std::move(used));
}

CudnnSupport& Cudnn::plan(const AttentionKey& key) {
  return find_or_plan(attention_, key, why_not_,
                      [&] { return plan_attention(key, {.handle = handle_}); });
}

CudnnSupport& Cudnn::plan(const ConvolutionKey& key) {
  return find_or_plan(convolutions_, key, why_not_,
                      [&] { return plan_convolution(key, {.handle = handle_}); });
}

std::string run_kept(Stream& stream, const Cudnn& cudnn, CudnnSupport& kept,
                     std::span<const CudnnPlace> places, void* workspace) {
  if (kept.plan == nullptr) {
    return kept.why_not;
  }
  const bool recording = keep_for_recording(stream, kept.plan);
  try {
    run_plan(cudnn.handle(), *kept.plan, places, workspace);
  } catch (const Failure& failure) {
    if (recording) {
      throw;  // the recording may have failed, not the plan
    }
    kept.why_not = failure.what();
    kept.plan.reset();
    record_library_use(kept.of, "our kernel: " + kept.why_not);
    return kept.why_not;
  }
  return {};
}

CudnnUse cudnn_use(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "own") {
    return CudnnUse::own;
  }
  if (name == "cudnn") {
    return CudnnUse::cudnn;
  }
  check(name.empty() || name == "auto", "{} is \"{}\": set it to auto, own or cudnn", variable,
        name);
  return CudnnUse::any;
}

}  // namespace espalier::kernels::ESPALIER_GPU
