#include <chrono>

#include "ductile/cluster/engine_impl.h"
#include "ductile/process/worker.h"
#include "ductile/server/node_devices.h"
#include "ductile/server/zygotes.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::seconds kLookAtDevices{5};

class LocalEngine final : public Engine {
 public:
  LocalEngine(net::Loop& loop, fs::path worker, fs::path keeper, int64_t devices)
      : loop_(loop),
        worker_(std::move(worker)),
        keeper_(std::move(keeper)),
        devices_(devices),
        zygotes_(std::make_shared<server::Zygotes>(loop)) {
    server::warm_up(options_of(worker_, {}));
    look_ = loop_.every(kLookAtDevices, [this] {
      if (!devices_.look()) return;
      hardware_ = devices_.hardware();
      if (on_change_) on_change_();
    });
  }

  std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) override {
    server::LocalLauncherOptions options =
        options_of(python ? process::python_worker(worker_) : worker_, run.log_file());
    if (python) options.zygotes = nullptr;
    return server::make_local_launcher(loop_, std::move(options), run.path());
  }
  std::unique_ptr<server::Launcher> keepers(const fs::path& run) override {
    server::LocalLauncherOptions options{keeper_, run / "worker.log"};
    options.keepers = true;
    share(options);
    return server::make_local_launcher(loop_, std::move(options), run);
  }
  std::string trouble(int32_t) const override { return ""; }
  const std::optional<server::NodeHardware>& hardware(int32_t) const override { return hardware_; }
  void call_on_change(std::function<void()> on_change) override {
    on_change_ = std::move(on_change);
  }
  int64_t nodes() const override { return 1; }
  bool only_here() const override { return true; }
  std::string listen() const override { return "127.0.0.1"; }

 private:
  server::LocalLauncherOptions options_of(const fs::path& program, const fs::path& log) const {
    server::LocalLauncherOptions options{program, log, 1};
    share(options);
    options.zygotes = zygotes_;
    return options;
  }
  void share(server::LocalLauncherOptions& options) const {
    options.cores = devices_.cores();
    options.gpus = devices_.gpus();
  }

  net::Loop& loop_;
  const fs::path worker_, keeper_;
  server::NodeDevices devices_;
  const std::shared_ptr<server::Zygotes> zygotes_;
  std::optional<server::NodeHardware> hardware_ = devices_.hardware();
  std::function<void()> on_change_;
  net::Loop::Timer look_;
};

}  // namespace

std::unique_ptr<Engine> make_local_engine(net::Loop& loop, const fs::path& worker,
                                          const fs::path& keeper, int64_t devices) {
  return std::make_unique<LocalEngine>(loop, worker, keeper, devices);
}

}  // namespace ductile::cluster
