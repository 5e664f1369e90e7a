#include "parallel/transport/device/wait_hook.h"

#include <exception>
#include <vector>

namespace espalier::parallel {
namespace {

std::vector<WaitHook*>& hooks() {
  thread_local std::vector<WaitHook*> all;
  return all;
}

}  // namespace

WaitHook::WaitHook(Queue& queue, std::function<void()> check)
    : queue_(queue), check_(std::move(check)) {
  hooks().push_back(this);
  queue_.set_wait_hook(run_all);
}

WaitHook::~WaitHook() {
  std::erase(hooks(), this);
  if (hooks().empty()) {
    queue_.set_wait_hook({});
  }
}

void WaitHook::run_all() {
  std::exception_ptr first;
  for (size_t i = 0; i < hooks().size(); ++i) {
    try {
      hooks()[i]->check_();
    } catch (...) {
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace espalier::parallel
