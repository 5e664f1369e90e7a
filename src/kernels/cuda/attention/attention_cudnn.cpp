#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/core/error.h"
#include "src/kernels/cuda/attention/attention_library.h"
#include "src/kernels/cuda/cudnn/handle.h"
#include "src/kernels/cuda/cudnn/library.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr size_t kMaxWorkspace = size_t{256} << 20;
constexpr uintptr_t kAlignment = kCudnnAlignment;
constexpr const char* kVariable = "ESPALIER_ATTENTION";

AttentionKey key_of(const LibraryAttention& call, bool backward) {
  return {.backward = backward,
          .causal = call.causal,
          .deterministic = call.deterministic || !backward,
          .sequences = call.sequences,
          .tokens = call.tokens,
          .heads = call.heads,
          .width = call.width};
}

/// Bytes of the sum of dq, padded to kAlignment; it is at the start of the workspace.
size_t dq_sum_bytes(const AttentionKey& key) {
  return (attention_dq_sum(key) + kAlignment - 1) / kAlignment * kAlignment;
}

/// Sequences of one plan, divided as evenly as possible, so that few shapes occur. 0: the workspace
/// does not fit one sequence.
int64_t sequences_at_once(AttentionKey key) {
  const int64_t all = std::exchange(key.sequences, 1);
  const auto most = static_cast<int64_t>(kMaxWorkspace / attention_workspace(key));
  if (!key.backward || !key.deterministic || most >= all) {
    return all;
  }
  const int64_t calls = most == 0 ? 0 : (all + most - 1) / most;
  return calls == 0 ? 0 : (all + calls - 1) / calls;
}

/// Depends on the shape alone: a memory plan does not know addresses.
bool is_offered(const LibraryAttention& call, bool backward) {
  constexpr int64_t kShortest = 64;  // shorter sequences do not gain
  constexpr int64_t kWidest = 128;
  return cudnn_use(kVariable) != CudnnUse::own && call.half && !call.shared_keys && !call.window &&
         call.tokens >= kShortest && call.heads > 0 && call.width > 0 && call.width <= kWidest &&
         call.width % 8 == 0 && sequences_at_once(key_of(call, backward)) > 0;
}

bool is_aligned(const LibraryAttention& call) {
  constexpr uintptr_t kOperands = 16;
  return std::ranges::all_of(
      std::array<void*, 6>{call.qkv, call.out, call.dout, call.dqkv, call.lse, call.delta},
      [](const void* operand) { return reinterpret_cast<uintptr_t>(operand) % kOperands == 0; });
}

template <class Element>
Element* moved(Element* first, int64_t elements) {
  return first == nullptr ? nullptr : first + elements;
}

/// `count` sequences of a call, starting at `first`.
LibraryAttention part_of(const LibraryAttention& call, int64_t first, int64_t count) {
  LibraryAttention part = call;
  const int64_t rows = first * call.tokens;
  const int64_t columns = call.heads * call.width;
  const auto at = [rows](void* operand, int64_t each) -> void* {
    return moved(static_cast<uint16_t*>(operand), rows * each);
  };
  part.qkv = at(call.qkv, 3 * columns);
  part.dqkv = at(call.dqkv, 3 * columns);
  part.out = at(call.out, columns);
  part.dout = at(call.dout, columns);
  part.lse = moved(call.lse, rows * call.heads);
  part.delta = moved(call.delta, rows * call.heads);
  part.sequences = count;
  return part;
}

/// Returns "", or the reason why the run was not enqueued.
std::string run(Stream& stream, const Cudnn& cudnn, CudnnSupport& kept,
                const LibraryAttention& call, bool backward, std::byte* workspace) {
  const AttentionKey key = key_of(call, backward);
  using Id = AttentionTensor;
  float scale = call.scale, minus_infinity = -INFINITY, one = 1;
  const int64_t columns = call.heads * call.width;
  const auto part = [columns](void* packed, int64_t which) -> void* {
    return static_cast<uint16_t*>(packed) + which * columns;
  };
  std::vector<CudnnPlace> places;
  const auto place = [&places](Id tensor, void* data) {
    places.push_back({static_cast<int64_t>(tensor), data});
  };
  place(Id::q, part(call.qkv, 0));
  place(Id::k, part(call.qkv, 1));
  place(Id::v, part(call.qkv, 2));
  place(Id::out, call.out);
  place(Id::lse, call.lse);
  place(Id::scale, &scale);
  if (key.causal) {
    place(Id::minus_infinity, &minus_infinity);
  }
  if (backward) {
    place(Id::dout, call.dout);
    place(Id::delta, call.delta);
    place(Id::dq, part(call.dqkv, 0));
    place(Id::dk, part(call.dqkv, 1));
    place(Id::dv, part(call.dqkv, 2));
    place(Id::one, &one);
  }
  if (!key.deterministic) {
    place(Id::dq_sum, workspace);
  }
  return run_kept(stream, cudnn, kept, places, workspace + dq_sum_bytes(key));
}

/// Enqueues the call in parts. Returns "" if all parts were enqueued, else the reason why not.
std::string enqueue_parts(Stream& stream, const LibraryAttention& call, bool backward,
                          std::byte* workspace) {
  if (cudnn_functions() == nullptr) {
    return cudnn_state();
  }
  Cudnn& cudnn = cudnn_of(stream);
  const int64_t most = sequences_at_once(key_of(call, backward));
  for (int64_t first = 0; first < call.sequences; first += most) {
    const LibraryAttention part = part_of(call, first, std::min(most, call.sequences - first));
    if (!is_aligned(part)) {
      return "operands do not begin at 16 bytes";
    }
    CudnnSupport& kept = cudnn.plan(key_of(part, backward));
    if (std::string why_not = run(stream, cudnn, kept, part, backward, workspace);
        !why_not.empty()) {
      return why_not;
    }
  }
  return {};
}

}  // namespace

size_t library_attention_workspace(const LibraryAttention& call, bool backward) {
  if (!is_offered(call, backward)) {
    return 0;
  }
  AttentionKey key = key_of(call, backward);
  key.sequences = sequences_at_once(key);
  return kAlignment + dq_sum_bytes(key) + attention_workspace(key);
}

bool library_attention(Stream& stream, const LibraryAttention& call, bool backward,
                       std::byte* workspace) {
  if (stream.arena().dry() || !is_offered(call, backward)) {
    return false;
  }
  const auto begin = (reinterpret_cast<uintptr_t>(workspace) + kAlignment - 1) / kAlignment;
  const std::string why_not =
      enqueue_parts(stream, call, backward, reinterpret_cast<std::byte*>(begin * kAlignment));
  check(why_not.empty() || cudnn_use(kVariable) != CudnnUse::cudnn,
        "ESPALIER_ATTENTION is cudnn, which does not support attention{} of {}x{} positions and {} "
        "heads of {}: {}; set ESPALIER_ATTENTION=auto",
        backward ? "'s gradient" : "", call.sequences, call.tokens, call.heads, call.width,
        why_not);
  return why_not.empty();
}

}  // namespace espalier::kernels::ESPALIER_GPU
