#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ductile::cli {

// The lines of a run's metrics.jsonl as a person reads them, as they come: "step 120  epoch 0.26
// loss 0.31  accuracy 91.2 %".
class MetricText {
 public:
  // What the text adds, which follows what was given before. A line that is not whole yet waits for
  // its rest; one that is torn, or of a writer that had been replaced, is left out.
  std::string add(std::string_view text);

 private:
  std::string line(std::string_view text);

  std::string rest_;
  int64_t generation_ = 0;
};

}  // namespace ductile::cli
