#pragma once
// Fibers: several stacks in one thread of the system, of which one runs until it hands over to
// another by name. Two implementations, chosen by CMake: fiber_x86.cpp (a dozen instructions) and
// fiber_ucontext.cpp (any system with <ucontext.h>). Exceptions must not leave a fiber.
#include <cstddef>
#include <memory>

namespace espalier::simt {

/// Where a fiber goes on when it is switched to.
class Context {
 public:
  /// The context of the thread itself, filled when it first switches away.
  Context();
  /// A fiber of its own that begins in `entry(argument)`, which must not return.
  Context(void (*entry)(void*), void* argument, size_t stack_bytes);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Stops in `from`, which must be running, and goes on in `to`.
  static void switch_to(Context& from, Context& to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::simt
