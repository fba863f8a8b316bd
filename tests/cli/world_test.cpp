// What the ranks of a run have to agree on, and GPU ranks where there is no GPU.
#include "cli/world.h"

#include <gtest/gtest.h>

#include "cli/run_binary.h"

namespace deltatune::cli {
namespace {

std::string agreement(const std::string& yaml) {
  return agreement_of(load_text(yaml, "cfg.yaml", {}, reader::train));
}

TEST(WorldTest, WhatDecidesTheNumbersIsAgreedOn) {
  const std::string plain = agreement("");
  EXPECT_NE(plain.find("learning_rate: 1e-05\n"), std::string::npos) << plain;
  EXPECT_EQ(plain.find('#'), std::string::npos);
  for (const char* other :
       {"learning_rate: 1e-4", "max_tokens: 8192", "seed: 1", "gradient_accumulation_steps: 2", "dtype: f32",
        "shard: grads", "chat_template_kwargs: {a: 1}"})
    EXPECT_NE(agreement(other), plain) << other;
  // Machines have their own paths; spelling and origin do not matter.
  for (const char* same : {"output_dir: /elsewhere", "model_name_or_path: /m", "dataset: [a, b]",
                           "progress: none", "lr: 1e-5", "seed: 42", "max_restarts: 3"})
    EXPECT_EQ(agreement(same), plain) << same;
  // Too long to be sent: still told apart.
  const std::string many(40000, 'x');
  const std::string a = agreement("chat_template_kwargs: {a: " + many + "}");
  EXPECT_LT(a.size(), 200u);
  EXPECT_NE(a, agreement("chat_template_kwargs: {a: " + many + "y}"));
}

TEST(WorldTest, GpuRanksWithoutGpus) {
  const ProgramResult result =
      run_deltatune("train --nproc 2 --device cuda --output_dir /nowhere", "CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_NE(result.err.find("no CUDA device"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace deltatune::cli
