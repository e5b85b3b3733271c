#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What the samples of data.format = "synthetic" consist of.
namespace ductile::spec {

// One of the several inputs of a sample.
struct SampleInput {
  enum class Kind : uint8_t {
    vector,   // floats
    tokens,   // numbers below `range`, in an order that says something
    indices,  // numbers below `range`, rows of a table
  };
  Kind kind = Kind::vector;
  int64_t length = 1;  // values
  int64_t range = 0;   // of tokens and indices

  bool is_numbers() const { return kind != Kind::vector; }
  bool operator==(const SampleInput&) const = default;
};

// The inputs that data.synthetic.inputs names: "vector:LENGTH", "tokens:LENGTH:RANGE" or
// "indices:LENGTH:RANGE", and before it "COUNT*" for several alike. Throws invalid_argument that
// names the text and says what would be right.
std::vector<SampleInput> sample_inputs(const std::vector<std::string>& texts);

// The inverse, one text for each input.
std::vector<std::string> to_texts(const std::vector<SampleInput>& inputs);

}  // namespace ductile::spec
