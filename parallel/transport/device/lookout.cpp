#include "parallel/transport/device/lookout.h"

#include <exception>
#include <vector>

namespace espalier::parallel {
namespace {

std::vector<Lookout*>& lookouts() {
  thread_local std::vector<Lookout*> all;
  return all;
}

}  // namespace

Lookout::Lookout(Queue& queue, std::function<void()> look) : queue_(queue), look_(std::move(look)) {
  lookouts().push_back(this);
  queue_.set_lookout(look_all);
}

Lookout::~Lookout() {
  std::erase(lookouts(), this);
  if (lookouts().empty()) {
    queue_.set_lookout({});
  }
}

void Lookout::look_all() {
  std::exception_ptr first;
  for (size_t i = 0; i < lookouts().size(); ++i) {
    try {
      lookouts()[i]->look_();
    } catch (...) {
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace espalier::parallel
