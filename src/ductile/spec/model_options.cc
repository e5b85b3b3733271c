#include "ductile/spec/job.h"
#include "ductile/spec/models.h"

// The options of the model (job.cc has those of all else).
namespace ductile::spec {

void describe(Describer& d, ModelOptions& o) {
  d.field("name", o.name, "which model")
      .one_of(models())
      .one_of("custom", "a model of your own, from model.library")
      .one_of("python", "the model of a Python job (python.object)");
  d.field("library", o.library, "the custom model: a shared library, or from capture --model");
  d.field("num_classes", o.num_classes,
          "outputs of a classifier; 0 = the number of classes in the data")
      .range(0, 1 << 24);
  d.field("hidden", o.hidden,
          "widths of the hidden layers (mlp), or of each branch and of what follows them (dlrm, "
          "candle-uno)")
      .range(1, 1 << 20);
  d.field("width", o.width,
          "channels of the first stage (cnn, resnet, airbench); 0 = the default of the model")
      .range(0, 4096);
  d.field("layers", o.layers, "blocks (gpt), of each branch (mmt)").range(1, 1000);
  d.field("heads", o.heads, "attention heads (gpt, mmt)").range(1, 1000);
  d.field("dim", o.dim, "embedding width (gpt, mmt, dlrm)").range(1, 1 << 17);
  d.field("vocab_size", o.vocab_size, "size of the vocabulary (gpt); 0 = taken from the data")
      .range(0, 1 << 24);
  d.field("activation", o.activation, "activation (airbench)").one_of({"gelu", "silu", "relu"});
  d.field("dropout", o.dropout, "share of activations dropped (gpt, mmt)").range(0, 0.99);
  d.field("convolutions", o.convolutions,
          "convolutions of each group: 2, or 3 with a residual around the last two (airbench)")
      .range(2, 3);
  d.field("later_width", o.later_width,
          "channels of the second and the third group; 0 = 4 * model.width (airbench)")
      .range(0, 4096);
}

}  // namespace ductile::spec
