// The options of commands on datasets and checkpoints.
#include "ductile/cli/parsed.h"

namespace ductile::cli {
namespace {

void add_split(CLI::App& app, std::string& split) {
  app.add_option("--split", split, "train, test or both")
      ->option_text("NAME")
      ->check(CLI::IsMember({"train", "test", "both"}));
}

}  // namespace

void add_data(CLI::App& app, Parsed& parsed) {
  CLI::App* data = app.add_subcommand("data", "inspect data, or convert it");
  data->require_subcommand(1);
  parsed.example[data] =
      "Example:\n"
      "  ductile data inspect images/\n"
      "  ductile data convert images/ shards/ --to tar\n";

  DataInspectCommand& i = parsed.data_inspect;
  CLI::App* inspect =
      data->add_subcommand("inspect", "print counts, classes, shapes, mean and bad files");
  parsed.example[inspect] =
      "Example:\n"
      "  ductile data inspect images/\n"
      "  ductile data inspect job.toml --json\n"
      "\n"
      "The command reads and decodes everything, and exits with 1 if a sample is bad. It takes "
      "the\n"
      "format from the names of the files; if they do not tell, use --set data.format=...\n";
  inspect->add_option("path", i.path, "path of the data, or a job file that names it")
      ->option_text(" ")
      ->required();
  add_set(*inspect, i.assignments);
  add_split(*inspect, i.split);
  add_json(*inspect, i.json);
  inspect->callback([&parsed] {
    parsed.chosen = [&parsed](Context& c) { return data_inspect(parsed.data_inspect, c); };
  });

  DataConvertCommand& v = parsed.data_convert;
  CLI::App* convert = data->add_subcommand("convert", "rewrite an image set for faster reading");
  parsed.example[convert] =
      "Example:\n"
      "  ductile data convert images/ shards/ --to tar\n"
      "  ductile data convert images/ packed/ --to records --raw --short-side 256\n";
  convert->add_option("source", v.source, "path of the data, or a job file that names it")
      ->option_text(" ")
      ->required();
  convert->add_option("destination", v.destination, "folder for the result")
      ->option_text(" ")
      ->required();
  convert->add_option("--to", v.to, "tar (WebDataset shards) or records (one packed file)")
      ->option_text("FORMAT")
      ->required()
      ->check(CLI::IsMember({"tar", "records"}));
  convert->add_option("--shard-mb", v.shard_mb, "approximate size of a shard in MiB (tar)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 20));
  convert->add_flag("--raw", v.raw, "store decoded pixels (records)");
  convert
      ->add_option("--short-side", v.short_side, "reduce the short side to N pixels (with --raw)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 16));
  add_set(*convert, v.assignments);
  add_split(*convert, v.split);
  add_json(*convert, v.json);
  convert->callback([&parsed] {
    parsed.chosen = [&parsed](Context& c) { return data_convert(parsed.data_convert, c); };
  });
}

namespace {

void add_ckpt_import(CLI::App& ckpt, Parsed& parsed) {
  CkptCommand& c = parsed.ckpt;
  CLI::App* sub = ckpt.add_subcommand(
      "import", "make a file of weights, as a job may begin with, of another program's files");
  parsed.example[sub] =
      "Example:\n"
      "  ductile ckpt import net.pt -o net.safetensors\n"
      "  ductile ckpt import model-*.safetensors --prefix backbone. -o backbone.safetensors\n"
      "  ductile train train.py:Job --weights net.safetensors\n";
  sub->add_option("file", c.files, "files of torch.save() or safetensors, such as all shards")
      ->option_text("FILE...")
      ->required();
  sub->add_option("-o,--output", c.output, "the file to write")->option_text("FILE")->required();
  sub->add_option("--prefix", c.prefix,
                  "take the tensors whose names begin with this, and take it off")
      ->option_text("TEXT");
  sub->add_option("--key", c.key,
                  "the entry of a file of torch.save() that is the state_dict, a.b for b in a "
                  "(default: it is found)")
      ->option_text("KEY");
  sub->add_option("--python", c.python,
                  "the Python with torch that reads files of torch.save() (default: that of "
                  "DUCTILE_PYTHON__INTERPRETER, of $VIRTUAL_ENV, or python3 on PATH)")
      ->option_text("PROGRAM");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return ckpt_import(parsed.ckpt, context); };
  });
}

}  // namespace

void add_ckpt(CLI::App& app, Parsed& parsed) {
  CkptCommand& c = parsed.ckpt;
  CLI::App* ckpt = app.add_subcommand("ckpt", "inspect the checkpoints of a run");
  ckpt->require_subcommand(1);
  parsed.example[ckpt] =
      "Example:\n"
      "  ductile ckpt list runs/latest\n"
      "  ductile ckpt export runs/latest -o model.safetensors\n";
  const auto add = [&](const char* name, const char* help, const char* example,
                       ExitCode (*run)(const CkptCommand&, Context&)) {
    CLI::App* sub = ckpt->add_subcommand(name, help);
    parsed.example[sub] = fmt::format("Example:\n  ductile ckpt {} {}\n", name, example);
    sub->add_option("run", c.run, "a run directory, or a folder of checkpoints")
        ->option_text(" ")
        ->required();
    add_json(*sub, c.json);
    sub->callback([&parsed, run] {
      parsed.chosen = [&parsed, run](Context& context) { return run(parsed.ckpt, context); };
    });
    return sub;
  };
  const auto add_step = [&](CLI::App* sub) {
    sub->add_option("--step", c.step, "the checkpoint of this step (default: the newest sound one)")
        ->option_text("N");
  };
  add("list", "list the checkpoints, newest first", "runs/latest", ckpt_list);
  add_step(add("show", "print the tensors and the state of one checkpoint",
               "runs/latest --step 200", ckpt_show));
  add("verify", "read every chunk, and exit with 1 if one is bad", "runs/latest", ckpt_verify);
  CLI::App* export_ = add("export", "write the trained weights as a safetensors file",
                          "runs/latest -o model.safetensors", ckpt_export);
  add_step(export_);
  export_->add_option("-o,--output", c.output, "the file to write")
      ->option_text("FILE")
      ->required();
  add_ckpt_import(*ckpt, parsed);
}

}  // namespace ductile::cli
