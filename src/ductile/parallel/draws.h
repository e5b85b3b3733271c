#pragma once

#include <cstdint>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "ductile/nn/operators.h"

// One process seeds libtorch's generator for each virtual rank, and its operators draw from it one
// after the other. A stage that does not run those in front of its own has to know where they would
// have left it.
namespace ductile::parallel {

// By operator, in numbers of 32 bits.
struct Draws {
  std::vector<int64_t> before, own;  // drawn by the operators in front of it, and by itself

  // Whether the generator is of no use to anybody behind the operator.
  bool ends_with(int op) const {
    const auto i = static_cast<size_t>(op);
    return before[i] + own[i] == before.back() + own.back();
  }
};

// By one pass over a micro-batch, which leaves the model's buffers as they were and seeds the
// generator. Throws invalid_argument, which names the operator, where another one would get a
// number that it has drawn and put by (normal deviates come in pairs).
Draws draws_of(const nn::OperatorGraph& operators, const nn::Tensors& inputs);

// Where in the numbers of one virtual rank's seed its operators are.
class DrawState {
 public:
  explicit DrawState(uint64_t seed) : seed_(seed), engine_(seed) {}

  // Puts libtorch's generator to where so many numbers have been drawn.
  void set(int64_t count);
  // To be called after an operator that began there: whether it drew `own` numbers, as far as the
  // generator's place within 624 of them tells.
  bool drew(int64_t own);

 private:
  uint64_t seed_;
  int64_t count_ = 0;  // drawn from engine_ since it was seeded
  at::mt19937 engine_;
};

}  // namespace ductile::parallel
