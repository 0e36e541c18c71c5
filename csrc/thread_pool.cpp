#include "thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "aligned_storage.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

// Bridges the gap between two steps of a busy engine, up to a millisecond of Python: to wake a sleeping thread takes
// a tenth of that, and the first operation of a step would wait for it.
constexpr auto kSpinBeforeSleep = std::chrono::milliseconds(2);
// With more threads than processors, spinning takes time from whoever has work.
constexpr auto kCrowdedSpinBeforeSleep = std::chrono::microseconds(50);
// A waiter at a barrier gives its core away after this many pauses (about 20 microseconds): the late worker may need
// it.
constexpr int kPausesBeforeYield = 1024;
constexpr int kCrowdedPausesBeforeYield = 16;
// An idle worker offers its core to others after this many (about a microsecond).
constexpr int kPausesPerYield = 64;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void futex_wait(std::atomic<uint32_t>* address, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(address), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* address) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(address), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

int num_usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return static_cast<int>(std::thread::hardware_concurrency());
  return CPU_COUNT(&set);
}

void call(const std::function<void(Worker&)>& function, Worker& worker) noexcept { function(worker); }

}  // namespace

// What the pool's threads share. Each group of fields written by different threads has its own cache line.
struct PoolState {
  explicit PoolState(int num_threads)
      : count(num_threads), owner_pid(getpid()), is_crowded(num_threads > num_usable_cpus()), scratch(num_threads) {
    start_threads();
  }

  void start_threads();
  void end_threads();
  void serve(int index);
  void wait_for_work(uint32_t seen);
  void start(const std::function<void(Worker&)>* next);
  void wait_at_barrier();

  const int count;
  const pid_t owner_pid;
  const bool is_crowded;                // by more threads than processors
  std::vector<AlignedStorage> scratch;  // one per worker
  std::vector<std::thread> threads;     // workers 1 .. count - 1
  std::mutex run_mutex;
  const std::function<void(Worker&)>* function = nullptr;  // null asks the threads to end

  alignas(64) std::atomic<uint32_t> generation{0};  // counts the calls of run()
  std::atomic<int> num_sleeping{0};
  alignas(64) std::atomic<int> num_arrived{0};
  alignas(64) std::atomic<uint32_t> barrier_phase{0};
};

// Throws std::runtime_error when the system has no more threads; those that were started are ended.
void PoolState::start_threads() {
  threads.reserve(count - 1);
  try {
    for (int index = 1; index < count; ++index) threads.emplace_back([this, index] { serve(index); });
  } catch (const std::system_error& error) {
    end_threads();
    throw std::runtime_error("num_threads: the system did not start " + std::to_string(count) +
                             " threads: " + error.what());
  } catch (...) {
    end_threads();
    throw;
  }
}

void PoolState::end_threads() {
  start(nullptr);
  for (std::thread& thread : threads) thread.join();
}

void PoolState::wait_for_work(uint32_t seen) {
  const auto deadline = Clock::now() + (is_crowded ? kCrowdedSpinBeforeSleep : kSpinBeforeSleep);
  while (Clock::now() < deadline) {
    for (int i = 0; i < kPausesPerYield; ++i) {
      if (generation.load(std::memory_order_acquire) != seen) return;
      pause();
    }
    sched_yield();  // others may need the core meanwhile
  }
  num_sleeping.fetch_add(1);
  while (generation.load() == seen) futex_wait(&generation, seen);
  num_sleeping.fetch_sub(1);
}

void PoolState::start(const std::function<void(Worker&)>* next) {
  function = next;
  generation.fetch_add(1);
  if (num_sleeping.load() > 0) futex_wake_all(&generation);
}

void PoolState::serve(int index) {
  Worker worker{index, count, this};
  for (uint32_t seen = 0;; ++seen) {
    wait_for_work(seen);
    if (function == nullptr) return;
    call(*function, worker);
    wait_at_barrier();
  }
}

void PoolState::wait_at_barrier() {
  const uint32_t phase = barrier_phase.load(std::memory_order_relaxed);
  if (num_arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
    num_arrived.store(0, std::memory_order_relaxed);
    barrier_phase.store(phase + 1, std::memory_order_release);
    return;
  }
  const int pauses_before_yield = is_crowded ? kCrowdedPausesBeforeYield : kPausesBeforeYield;
  for (int pauses = 0; barrier_phase.load(std::memory_order_acquire) == phase; ++pauses) {
    if (pauses < pauses_before_yield) {
      pause();
    } else {
      sched_yield();
    }
  }
}

void Worker::barrier() { state->wait_at_barrier(); }

std::byte* Worker::scratch(size_t num_bytes) {
  AlignedStorage& own = state->scratch[index];
  if (own.num_bytes() < num_bytes) own = AlignedStorage(num_bytes);
  return own.data();
}

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<PoolState>(num_threads)) {}

ThreadPool::~ThreadPool() {
  if (state_->owner_pid != getpid()) {
    state_.release();  // the threads exist only in the parent: nothing to join, and their handles must not be destroyed
    return;
  }
  state_->end_threads();
}

int ThreadPool::num_threads() const { return state_->count; }

bool ThreadPool::revive_after_fork() {
  if (state_->owner_pid == getpid()) return false;
  auto fresh = std::make_unique<PoolState>(state_->count);
  state_.release();  // see the destructor
  state_ = std::move(fresh);
  return true;
}

void ThreadPool::run(const std::function<void(Worker&)>& function) {
  std::lock_guard<std::mutex> lock(state_->run_mutex);
  state_->start(&function);
  Worker worker{0, state_->count, state_.get()};
  call(function, worker);
  state_->wait_at_barrier();
}

}  // namespace octavo
