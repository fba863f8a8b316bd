// The options table itself: complete, documented, consistent.
#include "cli/options.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "cli/help.h"
#include "cli/load.h"
#include "cli/run_binary.h"

namespace deltatune::cli {
namespace {

// Converts to any member type, so that Config{Any{}, Any{}, ...} compiles while there are that many members.
struct Any {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <size_t... I>
constexpr bool initialisable(std::index_sequence<I...>) {
  return requires {
    Config{(static_cast<void>(I), Any{})...};
  };
}

template <size_t N = 200>
constexpr size_t member_count() {
  if constexpr (initialisable(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return member_count<N - 1>();
  }
}

const void* address(const Config& config, const Option& option) {
  return std::visit([&](auto member) { return static_cast<const void*>(&(config.*member)); }, option.member);
}

TEST(Options, EveryMemberHasExactlyOneRow) {
  const Config config;
  std::set<const void*> members;
  for (const Option& option : options()) {
    EXPECT_TRUE(members.insert(address(config, option)).second) << option.name << " shares a member";
  }
  // rank, world_size and local_world_size come from the launch, profile_only from the verb: they are no keys.
  constexpr size_t no_keys = 4;
  EXPECT_EQ(members.size() + no_keys, member_count());
}

TEST(Options, EveryRowIsDocumentedGroupedAndRead) {
  for (const Option& option : options()) {
    EXPECT_GE(option.doc.size(), 8u) << option.name;
    EXPECT_NE(option.doc.back(), '.') << option.name;
    EXPECT_FALSE(option.group.empty()) << option.name;
    EXPECT_NE(option.readers, 0u) << option.name;
  }
}

TEST(Options, NamesAndAliasesAreUnique) {
  std::set<std::string> names;
  for (const Option& option : options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    for (const std::string& alias : option.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

TEST(Options, DefaultsAreAllowedValues) {
  for (const Option& option : options()) {
    Config config;
    const yaml::Node value = yaml::parse(show(Config{}, option), "default");
    EXPECT_NO_THROW(assign(config, option, value, "default")) << option.name;
    EXPECT_EQ(show(config, option), show(Config{}, option)) << option.name;
  }
}

TEST(Options, ReferencePageIsCurrent) {
  EXPECT_EQ(slurp(std::string(DELTATUNE_SOURCE_DIR) + "/docs/reference/options.md"), options_markdown())
      << "regenerate it: deltatune help --markdown > docs/reference/options.md";
}

TEST(Options, ResolvedYamlLoadsBackToTheSameValues) {
  const std::string text =
      "lr: 3e-4\nmodel: 'a b/#c: \"d\"'\ndataset: [x.jsonl, 'y z.jsonl']\nchat_template_kwargs: "
      "{enable_thinking: false, "
      "name: 'true'}\nresume_from_checkpoint: true\nreport_to: none\n";
  const Loaded first = load_text(text, "cfg.yaml", {{"seed", "7", "--seed"}}, reader::train);
  const Loaded second = load_text(resolved_yaml(first), "config.resolved.yaml", {}, reader::train);
  EXPECT_EQ(first.config.model_name_or_path, "a b/#c: \"d\"");
  EXPECT_EQ(first.config.chat_template_kwargs.at("name"), "\"true\"");
  EXPECT_EQ(first.config.chat_template_kwargs.at("enable_thinking"), "false");
  EXPECT_TRUE(first.config.report_to.empty());
  for (const Option& option : options()) {
    EXPECT_EQ(show(first.config, option), show(second.config, option)) << option.name;
  }
}

TEST(Options, ResolvedYamlNamesOrigins) {
  const std::string text =
      resolved_yaml(load_text("lr: 3e-4\n", "cfg.yaml", {{"seed", "7", "--seed"}}, reader::train));
  EXPECT_NE(text.find("# file cfg.yaml:1, alias lr"), std::string::npos) << text;
  EXPECT_NE(text.find("# flag --seed"), std::string::npos);
  EXPECT_NE(text.find("adam_beta2: 0.95"), std::string::npos);
}

TEST(Options, SchemaIsJsonWithEveryKey) {
  const json::Value schema = json::parse(options_schema(), "schema");
  for (const Option& option : options()) {
    EXPECT_EQ(schema.at("properties").find(option.name) != nullptr, !option.flag_only) << option.name;
  }
}

}  // namespace
}  // namespace deltatune::cli
