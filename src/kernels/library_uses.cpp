#include "src/kernels/library_uses.h"

#include <mutex>
#include <utility>

namespace espalier::kernels {
namespace {

struct Uses {
  std::mutex mutex;
  std::map<std::string, std::string> by_operation;
};

Uses& uses() {
  static Uses all;
  return all;
}

}  // namespace

void record_library_use(const std::string& operation, std::string who) {
  const std::scoped_lock lock(uses().mutex);
  uses().by_operation[operation] = std::move(who);
}

std::map<std::string, std::string> library_uses() {
  const std::scoped_lock lock(uses().mutex);
  return uses().by_operation;
}

}  // namespace espalier::kernels
