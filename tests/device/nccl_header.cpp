// Checks parallel/transport/device/nccl_api.h against nccl.h; compiled where it is installed.
#include <nccl.h>

#include <array>
#include <cstddef>

#include "parallel/transport/device/nccl_api.h"

namespace espalier::parallel::nccl {
namespace {

static_assert(kSuccess == ncclSuccess && kSystemError == ncclSystemError);
static_assert(kRemoteError == ncclRemoteError && kInProgress == ncclInProgress);
static_assert(kInt8 == ncclInt8 && kFloat32 == ncclFloat32 && kBfloat16 == ncclBfloat16 &&
              kFloat16 == ncclFloat16 && kUint64 == ncclUint64);
static_assert(kSum == ncclSum && kMax == ncclMax);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));

constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kTheirs.magic == Config{}.magic && kTheirs.blocking == Config{}.blocking);
static_assert(offsetof(ncclConfig_t, magic) == offsetof(Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));
static_assert(offsetof(ncclConfig_t, minCTAs) == offsetof(Config, least_blocks));
static_assert(offsetof(ncclConfig_t, maxCTAs) == offsetof(Config, most_blocks));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(Config, network));
static_assert(kTheirs.minCTAs == Config{}.least_blocks && kTheirs.netName == Config{}.network);

/// Bytes of the result and of each parameter.
template <class Result, class... Parameters>
constexpr auto bytes_of(Result (*)(Parameters...)) {
  return std::array{sizeof(Result), sizeof(Parameters)...};
}
template <class Theirs, class Ours>
constexpr bool alike(Theirs theirs, Ours ours) {
  return bytes_of(theirs) == bytes_of(ours);
}

constexpr Functions kOurs{};
static_assert(alike(decltype (&ncclGetVersion)(nullptr), kOurs.GetVersion));
static_assert(alike(decltype (&ncclGetUniqueId)(nullptr), kOurs.GetUniqueId));
static_assert(alike(decltype (&ncclCommInitRankConfig)(nullptr), kOurs.CommInitRankConfig));
static_assert(alike(decltype (&ncclCommGetAsyncError)(nullptr), kOurs.CommGetAsyncError));
static_assert(alike(decltype (&ncclCommFinalize)(nullptr), kOurs.CommFinalize));
static_assert(alike(decltype (&ncclCommDestroy)(nullptr), kOurs.CommDestroy));
static_assert(alike(decltype (&ncclCommAbort)(nullptr), kOurs.CommAbort));
static_assert(alike(decltype (&ncclGetErrorString)(nullptr), kOurs.GetErrorString));
static_assert(alike(decltype (&ncclGetLastError)(nullptr), kOurs.GetLastError));
static_assert(alike(decltype (&ncclGroupStart)(nullptr), kOurs.GroupStart));
static_assert(alike(decltype (&ncclGroupEnd)(nullptr), kOurs.GroupEnd));
static_assert(alike(decltype (&ncclSend)(nullptr), kOurs.Send));
static_assert(alike(decltype (&ncclRecv)(nullptr), kOurs.Recv));
static_assert(alike(decltype (&ncclAllReduce)(nullptr), kOurs.AllReduce));
static_assert(alike(decltype (&ncclReduce)(nullptr), kOurs.Reduce));

}  // namespace
}  // namespace espalier::parallel::nccl
