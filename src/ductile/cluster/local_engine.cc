#include "ductile/cluster/engine_impl.h"
#include "ductile/process/worker.h"
#include "ductile/server/core_pool.h"

namespace ductile::cluster {
namespace {

class LocalEngine final : public Engine {
 public:
  LocalEngine(net::Loop& loop, fs::path worker, fs::path keeper, int64_t devices)
      : loop_(loop),
        worker_(std::move(worker)),
        keeper_(std::move(keeper)),
        cores_(std::make_shared<server::CorePool>(devices)) {}

  std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) override {
    server::LocalLauncherOptions options{python ? process::python_worker(worker_) : worker_,
                                         run.log_file(), 1};
    options.cores = cores_;
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
  net::Loop& loop_;
  const fs::path worker_, keeper_;
  const std::shared_ptr<server::CorePool> cores_;
};

}  // namespace

std::unique_ptr<Engine> make_local_engine(net::Loop& loop, const fs::path& worker,
                                          const fs::path& keeper, int64_t devices) {
  return std::make_unique<LocalEngine>(loop, worker, keeper, devices);
}

}  // namespace ductile::cluster
