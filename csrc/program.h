// Where operations go when they are called: to be run at once, or to be recorded and run many times.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "thread_pool.h"
#include "weight_arena.h"

namespace octavo {

// Which number of the step an operation takes as its number of rows.
enum class RowCount { kTokens, kSeqs };

// How often operations of one name ran, and how long until the last worker was done.
struct OperationTime {
  int64_t num_calls = 0;
  double seconds = 0;
};

// An operation with its arguments bound. `owners` keeps the memory behind the arguments alive.
struct BoundOperation {
  std::string name;
  std::function<void(int64_t num_rows, Worker& worker)> kernel;
  RowCount row_count;
  std::shared_ptr<const void> owners;
};

// Times by name of operation.
using Profile = std::map<std::string, OperationTime>;

class Executor {
 public:
  virtual ~Executor() = default;

  // Takes an operation that was called with arrays of num_rows rows.
  virtual void submit(BoundOperation operation, int64_t num_rows) = 0;

  // Must be called, by one thread at a time, before an operation runs: see ThreadPool::revive_after_fork.
  virtual void prepare() = 0;

  virtual const KernelTable& kernels() const = 0;
  virtual AttentionWorkspace& attention_workspace() = 0;
};

// Runs each operation at once.
class EagerExecutor : public Executor {
 public:
  EagerExecutor(int num_threads, const KernelTable& kernels) : pool_(num_threads), kernels_(kernels) {}

  void submit(BoundOperation operation, int64_t num_rows) override;
  void prepare() override {
    // The fork may have come amid another thread's attention.
    if (pool_.revive_after_fork()) attention_workspace_.next_item = 0;
  }
  const KernelTable& kernels() const override { return kernels_; }
  AttentionWorkspace& attention_workspace() override { return attention_workspace_; }
  ThreadPool& pool() { return pool_; }
  WeightArena& arena() { return arena_; }

  // From now on every operation is timed, those of programs too.
  void start_profile() { profile_ = std::make_unique<Profile>(); }
  // Null unless there is a profile.
  Profile* profile() { return profile_.get(); }

 private:
  ThreadPool pool_;
  WeightArena arena_;
  const KernelTable& kernels_;
  AttentionWorkspace attention_workspace_;
  std::unique_ptr<Profile> profile_;
};

// Records operations; run() walks them on all threads with a barrier after each.
class Program : public Executor {
 public:
  explicit Program(std::shared_ptr<EagerExecutor> executor) : executor_(std::move(executor)) {}

  void submit(BoundOperation operation, int64_t num_rows) override;
  void prepare() override { executor_->prepare(); }
  const KernelTable& kernels() const override { return executor_->kernels(); }
  AttentionWorkspace& attention_workspace() override { return executor_->attention_workspace(); }

  // The arrays must hold at least the smallest number of rows that any operation of that kind was recorded with:
  // more throws std::invalid_argument.
  void run(int64_t num_tokens, int64_t num_seqs);
  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }

 private:
  std::shared_ptr<EagerExecutor> executor_;
  std::vector<BoundOperation> operations_;
  int64_t max_tokens_ = INT64_MAX;
  int64_t max_seqs_ = INT64_MAX;
};

}  // namespace octavo
