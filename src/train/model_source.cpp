// Opening a model and filling the store from it.
#include "train/model_source.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/model_path.h"
#include "io/tensor_names.h"

namespace deltatune {
namespace {

void check_names(const ModelSource& source) {
  const ModelParams params = make_params(source.config, source.tied);
  std::vector<std::string> expected;
  for (const Param& param : params.table.params) {
    for (const ParamSlice& slice : param.slices) expected.push_back(slice.hf_name);
  }
  // A tied checkpoint may ship its head a second time; vision tower and multi-token head are carried through.
  const std::vector<std::string> carried = {"model.visual.", "mtp.", "lm_head.weight"};
  const std::vector<std::string> present = source.checkpoint->names();
  check_tensor_names(expected, present, carried, source.folder.string());
  const std::set<DType> floating = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (const std::string& name : expected) {
    const TensorInfo* info = source.checkpoint->find(name);  // none: a dtype that is not even known here
    if (info && floating.contains(info->dtype)) continue;
    throw Error(ErrorKind::model, format("tensor {} does not hold floating-point numbers", name),
                source.folder.string(), "fine-tune an unquantised checkpoint (BF16, F16 or F32)");
  }
}

}  // namespace

ModelSource open_model(const std::string& name_or_path, const std::string& init) {
  if (name_or_path.empty()) {
    throw Error(ErrorKind::usage, "no model is named", "model_name_or_path",
                "give the folder of a Hugging Face checkpoint, e.g. model_name_or_path: ./Qwen3.5-0.8B");
  }
  ModelSource source;
  source.folder = resolve_model_path(name_or_path);
  source.checkpoint = std::make_unique<HfCheckpoint>(source.folder);
  source.config =
      ModelConfig::from_json(source.checkpoint->config(), (source.folder / "config.json").string());
  source.random = init == "random";
  if (!source.random && !source.checkpoint->has_weights()) {
    throw Error(ErrorKind::model, "the model folder has a config.json but no weights", source.folder.string(),
                "download the weights, or train from scratch with init: random");
  }
  if (source.random) {
    source.tied = decide_tied(source.config, nullptr);
    return source;
  }
  source.checkpoint->check_trainable();
  source.tied = decide_tied(source.config, source.checkpoint.get());
  check_names(source);
  return source;
}

ModelSource open_trained_model(const std::string& name_or_path, const std::string& init) {
  ModelSource source = open_model(name_or_path, init);
  if (!source.random) return source;
  if (source.checkpoint->has_weights()) {
    log::info("init: random is for training: the weights in {} are used", source.folder.string());
    return open_model(name_or_path, "pretrained");
  }
  log::warn("{} has no weights: random ones are used, for init is random", source.folder.string());
  return source;
}

void fill_store(ParamStore& store, Stream& stream, const ModelSource& source, uint64_t seed) {
  if (source.random) {
    store.initialise(stream, seed, source.config.initializer_range);
  } else {
    store.load(stream, *source.checkpoint);
  }
}

}  // namespace deltatune
