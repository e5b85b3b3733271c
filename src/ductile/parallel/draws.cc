#include "ductile/parallel/draws.h"

#include <map>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/generator.h"
#include "ductile/nn/model.h"
#include "ductile/parallel/kept_buffers_impl.h"

namespace ductile::parallel {
namespace {

constexpr uint32_t kBlock = at::MERSENNE_STATE_N;
constexpr int64_t kMostDraws = int64_t{1} << 36;

at::CPUGeneratorImpl& own_generator() { return *nn::own_generator().get<at::CPUGeneratorImpl>(); }

at::CPUGeneratorImpl& shared_generator() {
  return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
}

bool has_put_by(at::CPUGeneratorImpl& generator) {
  return generator.next_float_normal_sample().has_value() ||
         generator.next_double_normal_sample().has_value();
}

// How many numbers were drawn from an engine that was new. Within a block of numbers the state
// stays.
int64_t numbers_between(at::mt19937 from, const at::mt19937& to) {
  const at::mt19937_data_pod end = to.data();
  int64_t count = 0;
  for (; count < end.next_ % kBlock; ++count) from();
  while (from.data().state_ != end.state_) {
    DUCTILE_CHECK(count < kMostDraws, "an operator draws more than {} numbers", kMostDraws);
    for (uint32_t i = 0; i < kBlock; ++i) from();
    count += kBlock;
  }
  return count;
}

}  // namespace

Draws draws_of(const nn::OperatorGraph& operators, const nn::Tensors& inputs) {
  constexpr uint64_t kSeed = 1;
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(nn::generator_mutex());
  std::map<nn::Source, at::Tensor> made;
  Draws out;
  Drawn sum;
  bool put_by = false;
  for (size_t i = 0; i < operators.operators().size(); ++i) {
    const nn::Operator& op = operators.operators()[i];
    if (put_by && op.random) {
      fail(ErrorCode::invalid_argument,
           "train.pipeline_exact: operator {} and one in front of it draw normal deviates, which "
           "come in pairs, and the second one of a pair is with the stage that drew it; draw even "
           "numbers of them, or set train.pipeline_exact = false",
           op.name);
    }
    nn::Tensors in;
    for (const nn::Source& s : op.inputs) {
      in.push_back(s.op == nn::kModelInput ? inputs.at(static_cast<size_t>(s.output)) : made.at(s));
    }
    const KeptBuffers buffers(op);
    if (op.random) nn::seed_step(kSeed);
    const nn::Tensors result = op.run(in);
    buffers.put_back();
    for (size_t k = 0; k < result.size(); ++k) {
      made[{static_cast<int>(i), static_cast<int>(k)}] = result[k];
    }
    Drawn own;
    if (op.random) {
      const at::mt19937 start(kSeed);
      own = {numbers_between(start, own_generator().engine()),
             numbers_between(start, shared_generator().engine())};
      put_by = put_by || has_put_by(own_generator()) || has_put_by(shared_generator());
    }
    out.before.push_back(sum);
    out.own.push_back(own);
    sum = sum + own;
  }
  return out;
}

void DrawState::set(const Drawn& count) {
  nn::seed_step(seed_);  // forgets what was put by
  own_.put(seed_, count.own, own_generator());
  shared_.put(seed_, count.shared, shared_generator());
}

bool DrawState::drew(const Drawn& own) {
  const bool of_own = own_.drew(own.own, own_generator());
  return shared_.drew(own.shared, shared_generator()) && of_own;
}

void DrawState::Stream::put(uint64_t seed, int64_t count, at::CPUGeneratorImpl& generator) {
  if (count < count_) {
    engine_ = at::mt19937(seed);
    count_ = 0;
  }
  for (; count_ < count; ++count_) engine_();
  generator.set_engine(engine_);
}

bool DrawState::Stream::drew(int64_t own, at::CPUGeneratorImpl& generator) {
  engine_ = generator.engine();
  count_ += own;
  const bool as_expected = engine_.data().next_ % kBlock == count_ % kBlock;
  if (!as_expected) count_ = INT64_MAX;  // it is anywhere, so the next set() begins anew
  return as_expected;
}

}  // namespace ductile::parallel
