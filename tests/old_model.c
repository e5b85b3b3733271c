// A library as another version of Ductile would have built it: the interface number is one ahead.
struct export_head {
  unsigned abi, args_bytes;
  const char* torch_version;
  void* make;
};

const struct export_head* ductile_model_export(void) {
  static const struct export_head head = {MODEL_ABI, ARGS_BYTES, "0.0.0", 0};
  return &head;
}
