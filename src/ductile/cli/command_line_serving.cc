// The options of `ductile serve`.
#include "ductile/cli/parsed.h"

namespace ductile::cli {

void add_serve(CLI::App& app, Parsed& parsed) {
  ServeCommand& c = parsed.serve;
  CLI::App* sub = app.add_subcommand("serve", "answer inference requests for the model of a run");
  parsed.example[sub] =
      "Example:\n"
      "  ductile serve runs/latest --port 8000\n"
      "  ductile serve runs/latest --follow --max-batch 64\n"
      "\n"
      "The command prints the model's address and runs until Ctrl-C. It speaks the Open Inference "
      "Protocol\n(version 2) over HTTP: POST to the address with /infer after it.\n";
  sub->add_option("run", c.run, "a run directory")->option_text(" ")->required();
  sub->add_option("--host", c.host, "the address of this machine to listen on (default 127.0.0.1)")
      ->option_text("ADDRESS");
  sub->add_option("--port", c.port, "the port; 0 is any free one (default 0)")
      ->option_text("N")
      ->check(Range(0, 65535));
  sub->add_option("--checkpoint", c.checkpoint,
                  "begin with the weights of this checkpoint (default: the newest weights)")
      ->option_text("STEP")
      ->check(Range(int64_t{0}, int64_t{1} << 60));
  sub->add_flag("--follow", c.follow, "take newer weights of the run as soon as they are there");
  sub->add_option("--name", c.name, "what the model is called (default: the job's name)")
      ->option_text("NAME");
  sub->add_option("--max-batch", c.max_batch, "samples that are computed at once (default 32)")
      ->option_text("N")
      ->check(Range(1, 4096));
  sub->add_option("--max-delay", c.max_delay,
                  "milliseconds that a sample waits for others to join it (default 0)")
      ->option_text("MS")
      ->check(Range(0.0, 10'000.0));
  sub->add_option("--max-waiting", c.max_waiting,
                  "samples that wait at most; requests beyond them are refused (default 1,024)")
      ->option_text("N")
      ->check(Range(1, 1 << 20));
  sub->add_option("--replicas", c.replicas,
                  "workers that compute, behind one address; a lost one is replaced (default 1)")
      ->option_text("N")
      ->check(Range(1, 1024));
  sub->add_option("--threads", c.threads, "threads of each worker (default: as the job says)")
      ->option_text("N")
      ->check(Range(1, 4096));
  sub->add_flag("--trust", c.trust,
                "use a run of another user, whose files name a program to load (library)");
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return serve(parsed.serve, context); };
  });
}

}  // namespace ductile::cli
