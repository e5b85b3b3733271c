#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/nodes_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/net/loop.h"

namespace ductile::cluster {
namespace {

// One borrowed node, of which the test says what is true.
class BorrowedNode final : public Engine {
 public:
  std::string why = "no pilot is there, since nothing needs it", leaves;
  bool is_absent = true;

  void changed() const { on_change_(); }

  std::unique_ptr<server::Launcher> launcher(const run::RunFolder&, bool) override { return {}; }
  std::unique_ptr<server::Launcher> keepers(const fs::path&) override { return {}; }
  std::string trouble(int32_t) const override { return why; }
  std::string leaving(int32_t) const override { return leaves; }
  bool absent(int32_t) const override { return is_absent; }
  const std::optional<server::NodeHardware>& hardware(int32_t) const override { return hardware_; }
  void call_on_change(std::function<void()> on_change) override {
    on_change_ = std::move(on_change);
  }
  int64_t nodes() const override { return 1; }
  std::string listen() const override { return "127.0.0.1"; }

 private:
  std::function<void()> on_change_;
  std::optional<server::NodeHardware> hardware_;
};

struct Watched {
  TempFolder folder;
  Store store{folder.path() / "store.db"};
  CommitQueue queue{store};
  net::Loop loop;
  StoreWriter writer{loop, queue};
  BorrowedNode engine;
  Nodes nodes{loop, cluster(), engine, writer, 3600};

  static spec::Cluster cluster() {
    spec::NodeGroup group;
    group.type = "xeon";
    group.hosts = {"lab-1"};
    return {{group}, {}};
  }
  // What the log says once the node is so.
  std::string said(const std::string& why, bool absent, const std::string& leaves = "") {
    engine.why = why;
    engine.is_absent = absent;
    engine.leaves = leaves;
    ::testing::internal::CaptureStderr();
    engine.changed();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST(NodesLog, ANodeThatIsOnItsWayIsNotCalledLost) {
  Watched w;
  EXPECT_EQ(w.said("pilot 7 is pending", true), "node lab-1 is not there: pilot 7 is pending\n");
  EXPECT_EQ(w.said("its agent has not answered", false),
            "node lab-1 is not there: its agent has not answered\n");
  EXPECT_EQ(w.said("", false), "node lab-1 is up\n");
  EXPECT_EQ(w.said("pilot 7 has ended", true), "node lab-1 is lost: pilot 7 has ended\n");
  EXPECT_EQ(w.said("pilot 8 is pending", true), "node lab-1 is not there: pilot 8 is pending\n");
  EXPECT_EQ(w.nodes.record(0).state, NodeState::lost);
}

TEST(NodesLog, NorOneWhosePilotIsCancelledBeforeItBegins) {
  Watched w;
  w.said("pilot 7 is pending", true);
  EXPECT_EQ(w.said("nothing needs it", true, "nothing needs it"),
            "node lab-1 is not there: nothing needs it\n");
  EXPECT_EQ(w.said("no pilot is there", true), "node lab-1 is not there: no pilot is there\n");
}

}  // namespace
}  // namespace ductile::cluster
