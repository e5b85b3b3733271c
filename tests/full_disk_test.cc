// A real run on a disk that fills up: it ends with an error that names the disk and the way on, the
// last good checkpoint stays usable, and with room again the run comes to the same weights.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/files.h"

namespace ductile {
namespace {

int shell(const std::string& script) { return std::system(script.c_str()); }

TEST(FullDisk, AFullDiskLosesNothing) {
  if (shell("unshare -rm mount -t tmpfs none /mnt 2>/dev/null") != 0) {
    GTEST_SKIP() << "no permission to mount a small file system in a namespace of our own";
  }
  const TempFolder folder;
  // Checkpoints of 0.8 MB every 10 steps; 40 steps. The limit of 2 checkpoints kept fits in 8 MB
  // but for the ballast, which leaves room for one.
  write_file_atomic(folder.path() / "script", R"(set -e
mount -t tmpfs -o size=12m none "$1"
cd "$1"
job="--set data.train_limit=640 --set data.test_limit=200 --set train.epochs=8
     --set checkpoint.every_steps=10 --set checkpoint.every_seconds=0"
ductile -q train --out whole $job >"$2/log" 2>&1
# The ballast takes all but 1.6 MB: room for the run's files and a checkpoint, not for two.
cp -r whole/model.safetensors "$2/whole.safetensors"
rm -r whole
head -c $(($(df --output=avail -B1 . | tail -1) - 1600000)) /dev/zero >ballast
status=0
ductile -q train --out run $job >"$2/full" 2>&1 || status=$?
echo "exit $status" >>"$2/full"
ductile ckpt list run >"$2/list" 2>&1
rm ballast
ductile -q train --resume run >"$2/resumed" 2>&1
cp run/model.safetensors "$2/resumed.safetensors"
)");
  fs::create_directories(folder.path() / "mount");
  const int status = shell("unshare -rm env PATH=" DUCTILE_BINARY_DIR "/bin:\"$PATH\" bash " +
                           (folder.path() / "script").string() + " " +
                           (folder.path() / "mount").string() + " " + folder.path().string());
  const auto text = [&](const char* name) {
    std::error_code error;
    return fs::exists(folder.path() / name, error) ? read_file(folder.path() / name)
                                                   : std::string();
  };
  ASSERT_EQ(status, 0) << text("log") << text("full") << text("list") << text("resumed");
  for (const char* part : {"disk full: the checkpoint of step ", "are missing; make room there",
                           "ductile train --resume ", "exit 3"}) {
    EXPECT_NE(text("full").find(part), std::string::npos) << part << "\n" << text("full");
  }
  EXPECT_NE(text("list").find("ok"), std::string::npos) << text("list");
  EXPECT_EQ(text("whole.safetensors"), text("resumed.safetensors"));
}

}  // namespace
}  // namespace ductile
