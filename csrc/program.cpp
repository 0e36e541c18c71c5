#include "program.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

void check_row_count(const char* name, int64_t value, int64_t largest) {
  if (value >= 0 && value <= largest) return;
  throw std::invalid_argument(std::string(name) + ": expected 0 to " + std::to_string(largest) + ", got " +
                              std::to_string(value));
}

}  // namespace

void EagerExecutor::submit(BoundOperation operation, int64_t num_rows) {
  pool_.run([&](Worker& worker) { operation.kernel(num_rows, worker); });
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
    for (const BoundOperation& operation : operations_) {
      operation.kernel(operation.row_count == RowCount::kTokens ? num_tokens : num_seqs, worker);
      worker.barrier();
    }
  });
}

}  // namespace octavo
