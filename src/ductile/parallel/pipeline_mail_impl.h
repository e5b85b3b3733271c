#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/accumulate.h>

#include "ductile/base/error.h"
#include "ductile/comm/communicator.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/message_memory.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/stage_executor.h"
#include "ductile/parallel/stage_parts_impl.h"

// What a PipelineHost consists of.
namespace ductile::parallel {

// The bytes of a dense tensor.
inline std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.data_ptr()), t.nbytes()};
}

inline at::Tensor zeros(const TensorForm& form) {
  return at::empty_strided(form.sizes, form.strides, at::TensorOptions(form.type)).zero_();
}

// The same values as they travel. Within a worker too, so that a placement changes no kernel's
// choice.
inline at::Tensor as_sent(const at::Tensor& t, const TensorForm& form) {
  if (t.sizes() == form.sizes && t.strides() == form.strides && t.scalar_type() == form.type) {
    return t;
  }
  if (t.sizes() != form.sizes) {
    fail(ErrorCode::conflict,
         "a tensor between stages has other sizes than the first one: {} "
         "values, not {}",
         t.numel(), c10::multiply_integers(form.sizes));
  }
  const at::NoGradGuard no_grad;
  return at::empty_strided(form.sizes, form.strides, t.options().dtype(form.type)).copy_(t);
}

// What travels between parts: within this worker by hand, else by messages.
struct PipelineHost::Mail {
  using Key = Message;

  Mail(const std::vector<Piece>& pieces, const Placement& placement)
      : pieces(pieces), placement(placement) {}

  // The rank at the other end.
  int peer(const Key& key, bool sends) const {
    const Piece& p = pieces[key.piece];
    const int part = (key.direction == kForward) == sends ? p.to : p.from;
    return placement.hosts[static_cast<size_t>(part)];
  }
  uint32_t tag(const Key& key) const {
    return placement.first_tag + static_cast<uint32_t>(key.piece) * 2 +
           static_cast<uint32_t>(key.direction);
  }

  // For what comes. Storage of its own: what an operator saved of an earlier one must not change.
  at::Tensor blank(const TensorForm& form) const {
    at::Tensor out;
    if (placement.memory) out = placement.memory->tensor(form);
    if (out.defined()) return out;
    return at::empty_strided(form.sizes, form.strides, at::TensorOptions(form.type));
  }

  // `into`: where it is to lie, one behind the other; undefined: by itself.
  void post(const Key& key, int64_t micro_batch, at::Tensor into = {}) {
    const int from = peer(key, false);
    if (from == placement.rank) return;
    Receive& r = posted[key];
    r.tensor = into.defined() ? std::move(into) : blank(pieces[key.piece].form);
    r.micro_batch = micro_batch;
    r.work = placement.communicator->start_receive(from, tag(key), bytes_of(r.tensor));
    if (micro_batch > 0 && waits_for_credit(key)) {
      const std::span<const std::byte> credit(&kCredit, 1);
      sent.emplace_back(placement.communicator->start_send(from, tag(key), credit), at::Tensor());
    }
  }

  // Whether the sender keeps a tensor until its receive is posted, which it is then told, on any
  // transport: over some a tensor that nobody receives yet would take memory at the other end. Of
  // each piece the first one may go at once, and so may small ones, which would only wait longer.
  bool waits_for_credit(const Key& key) const {
    constexpr size_t kSmall = size_t{1} << 20;
    return num_bytes(pieces[key.piece].form) > kSmall;
  }

  bool ready(const Key& key, int64_t micro_batch) const {
    const auto found = posted.find(key);
    if (found == posted.end()) return here.contains({key, micro_batch});
    return found->second.work.done();
  }

  // Whether another worker brings or takes it.
  bool travels(const Key& key) const {
    const Piece& p = pieces[key.piece];
    return placement.hosts[static_cast<size_t>(p.from)] !=
           placement.hosts[static_cast<size_t>(p.to)];
  }

  // The message that is to bring it; nullptr if none is.
  const comm::Work* message(const Key& key) const {
    const auto found = posted.find(key);
    return found == posted.end() ? nullptr : &found->second.work;
  }

  // The next tensor of a piece.
  at::Tensor take(const Key& key, int64_t micro_batch) {
    const auto found = posted.find(key);
    if (found == posted.end()) return here.extract({key, micro_batch}).mapped();
    DUCTILE_CHECK(found->second.micro_batch == micro_batch, "micro-batch {} instead of {}",
                  found->second.micro_batch, micro_batch);
    found->second.work.wait();
    at::Tensor taken = std::move(found->second.tensor);
    posted.erase(found);
    return taken;
  }

  // What has been taken at the other end is not held any longer, whatever was sent before it: a
  // stage that is far behind takes its tensors late, and gradients for others are none of these.
  void let_go() {
    std::erase_if(sent, [](const auto& message) {
      if (!message.first.done()) return false;
      message.first.wait();  // throws what ended it
      return true;
    });
  }

  // Everything is out that has been given.
  void settle() const {
    for (const auto& [work, tensor] : sent) work.wait();
  }

  void give(const Key& key, int64_t micro_batch, const at::Tensor& tensor) {
    const int to = peer(key, true);
    if (to == placement.rank) {
      here[{key, micro_batch}] = tensor;
      return;
    }
    if (!placement.settles) let_go();
    comm::Communicator& links = *placement.communicator;
    comm::Work credit;  // of none: at once
    if (micro_batch > 0 && waits_for_credit(key))
      credit = links.start_receive(to, tag(key), {&credit_, 1});
    sent.emplace_back(links.start_send_after(credit, to, tag(key), bytes_of(tensor)), tensor);
  }

  void finish() {
    for (const auto& [work, tensor] : sent) work.wait();
    sent.clear();
    posted.clear();
    in_rows.clear();
    DUCTILE_CHECK(here.empty(), "{} tensors that no stage took", here.size());
  }

  struct Receive {
    comm::Engine::Work work;
    at::Tensor tensor;
    int64_t micro_batch = 0;
  };
  static constexpr std::byte kCredit{};
  std::byte credit_{};  // all that come
  const std::vector<Piece>& pieces;
  const Placement& placement;
  std::map<std::pair<Key, int64_t>, at::Tensor> here;
  std::map<Key, Receive> posted;
  std::map<Key, at::Tensor> in_rows;  // that pieces come into the rows of, by the first piece
  std::deque<std::pair<comm::Engine::Work, at::Tensor>> sent;
};

// One replica of a stage, which is all of it where it has no other.
struct PipelineHost::HostedStage {
  HostedStage(const nn::OperatorGraph& operators, const Pipeline& pipeline,
              const Pipeline::Stage& stage)
      : order(stage.order),
        executor(operators, stage.ops, {pipeline.split, pipeline.exact, stage.recompute}),
        replicas(stage.replicas) {
    if (pipeline.is_replicated()) buffers.emplace(operators, stage.ops);
  }

  const std::vector<spec::Task>& order;
  StageExecutor executor;
  const int replicas;
  int number = 0, part = 0, replica = 0;
  std::optional<PartBuffers> buffers;  // of a replicated pipeline
  bool lends = false;                  // another replica of the stage is here, too
  std::vector<nn::Tensors> results;    // of the model, by micro-batch
  // Of each input of the executor: the pieces that bring it. Of each output: the pieces that take
  // it, by transfer.
  std::vector<std::vector<size_t>> arrivals;
  std::vector<std::vector<std::vector<size_t>>> departures;
  std::map<int64_t, int64_t> samples;  // bytes of the model's inputs, by micro-batch
  size_t next = 0;                     // task
  int64_t done[3] = {};                // of each kind
  bool finished() const { return next == order.size(); }
  spec::Task task() const { return order[next]; }
  int64_t micro_batch() const { return done[static_cast<size_t>(task())]; }
};

}  // namespace ductile::parallel
