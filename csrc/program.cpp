#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

void check_row_count(const char* name, int64_t value, int64_t largest) {
  if (value >= 0 && value <= largest) return;
  throw std::invalid_argument(std::string(name) + ": expected 0 to " + std::to_string(largest) + ", got " +
                              std::to_string(value));
}

// Measures from one operation's end to the next one's; without a profile it does nothing.
class Stopwatch {
 public:
  explicit Stopwatch(Profile* profile) : profile_(profile) {
    if (profile_ != nullptr) last_ = Clock::now();
  }

  void add(const BoundOperation& operation) {
    if (profile_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    OperationTime& time = (*profile_)[operation.name];
    time.num_calls += 1;
    time.seconds += std::chrono::duration<double>(now - last_).count();
    last_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  Clock::time_point last_;
};

}  // namespace

void EagerExecutor::submit(BoundOperation operation, int64_t num_rows) {
  Stopwatch stopwatch(profile());
  pool_.run([&](Worker& worker) { operation.kernel(num_rows, worker); });
  stopwatch.add(operation);
}

void Program::submit(BoundOperation operation, int64_t num_rows) {
  int64_t& largest = operation.row_count == RowCount::kTokens ? max_tokens_ : max_seqs_;
  largest = std::min(largest, num_rows);
  operations_.push_back(std::move(operation));
}

void Program::run(int64_t num_tokens, int64_t num_seqs) {
  check_row_count("num_tokens", num_tokens, max_tokens_);
  check_row_count("num_seqs", num_seqs, max_seqs_);
  executor_->pool().run([&](Worker& worker) {
    Stopwatch stopwatch(worker.index == 0 ? executor_->profile() : nullptr);
    for (const BoundOperation& operation : operations_) {
      operation.kernel(operation.row_count == RowCount::kTokens ? num_tokens : num_seqs, worker);
      worker.barrier();
      stopwatch.add(operation);
    }
  });
}

}  // namespace octavo
