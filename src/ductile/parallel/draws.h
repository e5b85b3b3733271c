#pragma once

#include <cstdint>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "ductile/nn/operators.h"

// One process seeds its generators (nn/generator.h) for each virtual rank, and its operators draw
// from them one after the other. A stage that does not run those in front of its own has to know
// where they would have left them.
namespace ductile::parallel {

// Numbers of 32 bits that were drawn from the thread's own generator, and from libtorch's.
struct Drawn {
  int64_t own = 0, shared = 0;

  friend bool operator==(const Drawn&, const Drawn&) = default;
  friend Drawn operator+(const Drawn& a, const Drawn& b) {
    return {a.own + b.own, a.shared + b.shared};
  }
};

// By operator.
struct Draws {
  std::vector<Drawn> before, own;  // by the operators in front of it, and by itself

  // Whether the generators are of no use to anybody behind the operator.
  bool ends_with(int op) const {
    const auto i = static_cast<size_t>(op);
    return before[i] + own[i] == before.back() + own.back();
  }
};

// By one pass over a micro-batch, which leaves the model's buffers as they were and seeds the
// generators. Throws invalid_argument, which names the operator, where another one would get a
// number that it has drawn and put by (normal deviates come in pairs).
Draws draws_of(const nn::OperatorGraph& operators, const nn::Tensors& inputs);

// Where in the numbers of one virtual rank's seed its operators are.
class DrawState {
 public:
  explicit DrawState(uint64_t seed) : seed_(seed), own_(seed), shared_(seed) {}

  // Puts the generators to where so many numbers have been drawn.
  void set(const Drawn& count);
  // To be called after an operator that began there: whether it drew `own` numbers, as far as the
  // generators' places within 624 of them tell.
  bool drew(const Drawn& own);

 private:
  // Of one generator.
  class Stream {
   public:
    explicit Stream(uint64_t seed) : engine_(seed) {}
    void put(uint64_t seed, int64_t count, at::CPUGeneratorImpl& generator);
    bool drew(int64_t own, at::CPUGeneratorImpl& generator);

   private:
    int64_t count_ = 0;  // drawn from engine_ since it was seeded
    at::mt19937 engine_;
  };

  uint64_t seed_;
  Stream own_, shared_;
};

}  // namespace ductile::parallel
