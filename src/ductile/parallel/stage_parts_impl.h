#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/operators.h"
#include "ductile/parallel/pipeline.h"

// How the replicas of a stage share a micro-batch, and how they meet those of other stages.
namespace ductile::parallel {

// Of a dense tensor.
size_t num_bytes(const TensorForm& form);
// Whether its elements lie one row behind the other.
bool lies_in_rows(const TensorForm& form);

// What of a transfer travels between a replica of the stage that makes the tensor and one of a
// stage that reads it: the rows of the samples that both have. Its gradient goes the other way.
struct Piece {
  size_t transfer = 0;
  int from = 0, to = 0;  // parts of the pipeline
  bool whole = true;     // the stages have as many replicas, so it is all that both have
  // Else the first row at either end, and their number: until set_form() in units of samples, of
  // which a micro-batch has the least common multiple of both numbers of replicas.
  int64_t at_from = 0, at_to = 0, rows = 0;
  TensorForm form = {};  // of the message
};

// Transfer by transfer, in rising order of the makers' replicas, then of the readers'.
std::vector<Piece> pieces_of(const Pipeline& pipeline, const std::vector<Transfer>& transfers);

// `from` and `to`: how the whole tensor lies at either end, where the stages have so many replicas.
// Throws invalid_argument naming `what`, the tensor, where its first dimension does not count
// samples.
void set_form(Piece& piece, const TensorForm& from, int makers, const TensorForm& to, int readers,
              const std::string& what);

// A replica's samples of a micro-batch, in memory of their own, as a received tensor is: kernels
// may choose by the alignment.
at::Tensor share_of(const at::Tensor& samples, int replica, int replicas);

// Rows of a tensor, one behind the other. In memory of their own, unless they only travel: then
// where they are, if they lie so there.
at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t count, bool travel);

// What came in pieces, in order, as it lies in memory with its reader.
at::Tensor joined(const nn::Tensors& pieces, const TensorForm& form);

// The buffers of one replica's operators. The model has them once, and a worker may host several
// replicas, each of which moves them from the same values on.
class PartBuffers {
 public:
  // `operators` outlives this object.
  PartBuffers(const nn::OperatorGraph& operators, const std::vector<int>& ops);

  void begin();                                      // both have what the model has
  void lend() const;                                 // the model has the replica's
  void take_back();                                  // the replica has what the model has
  void restore() const;                              // the model has those of begin()
  std::map<std::string, at::Tensor> values() const;  // of the replica, by name

 private:
  std::vector<nn::NamedTensor> of_model_;
  nn::Tensors before_, own_;
};

}  // namespace ductile::parallel
