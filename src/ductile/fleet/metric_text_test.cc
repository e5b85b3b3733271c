#include <gtest/gtest.h>

#include "ductile/fleet/metric_text_impl.h"

namespace ductile::cli {
namespace {

constexpr const char* kLines =
    R"({"epoch":0.256,"lr":0.1,"samples_per_second":4310.2,"seconds":28.61,"step":120,"time":1763690028.61,"train/accuracy":0.912,"train/loss":0.31}
{"epoch":1.0,"eval/accuracy":0.894,"eval/loss":"NaN","seconds":110.2,"step":469,"time":1763690110.2,"depth":3}
)";
constexpr const char* kText =
    "step 120  epoch 0.26  lr 0.1  4310 samples/s  accuracy 91.2 %  loss 0.31\n"
    "step 469  epoch 1.00  test accuracy 89.4 %  test loss NaN  depth 3\n";

TEST(MetricText, SaysWhatALineSays) {
  MetricText text;
  EXPECT_EQ(text.add(kLines), kText);
  EXPECT_EQ(text.add(""), "");
}

TEST(MetricText, NamesAreThoseThatTrainingShows) {
  MetricText text;
  EXPECT_EQ(text.add(R"({"batch_size":256,"eval/calibration_error":0.05,"eval/f1":0.5,)"
                     R"("noise_scale":700,"step":9,"train/selected":64,"mine/depth":3})"
                     "\n"),
            "step 9  batch 256  test calibration error 0.05  test f1 0.5  noise scale 700  "
            "selected 64  mine/depth 3\n");
}

TEST(MetricText, AnyPiecesGiveTheSame) {
  const std::string lines = kLines;
  for (size_t size = 1; size < lines.size(); size += 7) {
    MetricText text;
    std::string out;
    for (size_t at = 0; at < lines.size(); at += size) out += text.add(lines.substr(at, size));
    EXPECT_EQ(out, kText) << size;
  }
}

// Torn lines, a writer that had been replaced, and the place from which its successor goes on.
TEST(MetricText, LinesThatDoNotCountAreLeftOut) {
  MetricText text;
  EXPECT_EQ(text.add("{\"step\":1,\"generation\":2,\"x\":1}\n"
                     "{\"step\":9,\"generation\":1,\"x\":9}\n"
                     "{\"step\":2,\"gener\n"
                     "[]\n\"step\"\n{\"step\":\"2\"}\n\n"
                     "{\"step\":0,\"generation\":3,\"begins\":true}\n"
                     "{\"step\":1,\"generation\":4,\"begins\":true}\n"
                     "{\"step\":2,\"generation\":4,\"x\":[1]}\n"),
            "step 1  x 1\ngoes on after step 1\nstep 2  x ?\n");
}

}  // namespace
}  // namespace ductile::cli
