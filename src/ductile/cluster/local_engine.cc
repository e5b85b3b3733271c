#include "ductile/cluster/engine_impl.h"
#include "ductile/process/worker.h"
#include "ductile/server/core_pool.h"
#include "ductile/server/zygotes.h"

namespace ductile::cluster {
namespace {

class LocalEngine final : public Engine {
 public:
  LocalEngine(net::Loop& loop, fs::path worker, fs::path keeper, int64_t devices)
      : loop_(loop),
        worker_(std::move(worker)),
        keeper_(std::move(keeper)),
        cores_(std::make_shared<server::CorePool>(devices)),
        zygotes_(std::make_shared<server::Zygotes>(loop)) {
    server::warm_up(options_of(worker_, {}));
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
    options.cores = cores_;
    return server::make_local_launcher(loop_, std::move(options), run);
  }
  std::string trouble(int32_t) const override { return ""; }
  void call_on_change(std::function<void()>) override {}
  int64_t nodes() const override { return 1; }
  std::string listen() const override { return "127.0.0.1"; }

 private:
  server::LocalLauncherOptions options_of(const fs::path& program, const fs::path& log) const {
    server::LocalLauncherOptions options{program, log, 1};
    options.cores = cores_;
    options.zygotes = zygotes_;
    return options;
  }

  net::Loop& loop_;
  const fs::path worker_, keeper_;
  const std::shared_ptr<server::CorePool> cores_;
  const std::shared_ptr<server::Zygotes> zygotes_;
};

}  // namespace

std::unique_ptr<Engine> make_local_engine(net::Loop& loop, const fs::path& worker,
                                          const fs::path& keeper, int64_t devices) {
  return std::make_unique<LocalEngine>(loop, worker, keeper, devices);
}

}  // namespace ductile::cluster
