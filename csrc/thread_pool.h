// A pool of threads that run one function together (SPMD), with barriers cheap enough to stand between the operations
// of a forward pass.
//
// Invariants:
// 1. The caller of run() is worker 0; run() returns after every worker has returned from the function.
// 2. Idle threads spin for two milliseconds at most, yielding to others, and then sleep in the kernel.
// 3. A pool that crossed a fork() starts fresh threads in the child (revive_after_fork).
// 4. A function that throws ends the process: the other workers would wait for that one forever.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace octavo {

struct PoolState;

// One thread's view of the work that is running.
struct Worker {
  int index;  // 0 .. count - 1
  int count;
  PoolState* state;

  // Waits until all workers are here. Every worker must call it the same number of times.
  void barrier();

  // Returns at least num_bytes of this worker's own memory, aligned to 64 bytes. Its content survives until the next
  // call.
  std::byte* scratch(size_t num_bytes);
};

class ThreadPool {
 public:
  // Throws std::runtime_error when the system does not start so many threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Runs the function on all workers. Calls from several threads take turns.
  void run(const std::function<void(Worker&)>& function);

  // Must be called, by one thread at a time, before run() in a process that may have forked. Returns whether it has.
  // Throws like the constructor.
  bool revive_after_fork();

 private:
  std::unique_ptr<PoolState> state_;
};

}  // namespace octavo
