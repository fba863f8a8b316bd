// Two resource callbacks of CUPTI and a map.
#include "cuda/cupti/graph_nodes.h"

#include <array>
#include <mutex>
#include <unordered_map>

#include "cuda/cupti/library.h"

namespace deltatune::cuda {
namespace {

struct OpenIds {
  std::array<uint64_t, 64> ids{};
  size_t depth = 0;
  uint64_t innermost() const { return depth == 0 ? 0 : ids[(depth < ids.size() ? depth : ids.size()) - 1]; }
};
thread_local OpenIds open_ids;

class Nodes {
 public:
  static Nodes& self() {
    static Nodes& nodes = *new Nodes;  // CUPTI may call while the process ends
    return nodes;
  }

  bool watch(std::string& why) {
    const std::lock_guard lock(watching_);
    if (subscribed_) return true;
    const CuptiFunctions* cupti = cupti_functions();
    CUptiResult status = cupti->subscribe(&subscriber_, called, nullptr);
    for (const CUpti_CallbackId id :
         {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED}) {
      if (status == CUPTI_SUCCESS)
        status = cupti->enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id);
    }
    if (status != CUPTI_SUCCESS) {
      const char* text = nullptr;
      cupti->result_string(status, &text);
      why = std::string("CUPTI: ") + (text ? text : "error") + " in subscribe";
      return false;
    }
    return subscribed_ = true;
  }

  uint64_t id_of(uint64_t node) {
    const std::lock_guard lock(mutex_);
    const auto at = ids_.find(node);
    return at == ids_.end() ? 0 : at->second;
  }

 private:
  static void CUPTIAPI called(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
    const auto* resource = static_cast<const CUpti_ResourceData*>(data);
    const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
    if (graph) self().note(id, *graph);
  }

  void note(CUpti_CallbackId callback, const CUpti_GraphData& graph) noexcept {
    const CuptiFunctions* cupti = cupti_functions();
    uint64_t node = 0;
    if (cupti->graph_node_id(graph.node, &node) != CUPTI_SUCCESS) return;
    try {
      const std::lock_guard lock(mutex_);
      if (callback == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
        if (const uint64_t id = open_ids.innermost()) ids_[node] = id;
        return;
      }
      uint64_t original = 0;
      if (cupti->graph_node_id(graph.originalNode, &original) != CUPTI_SUCCESS) return;
      if (const auto at = ids_.find(original); at != ids_.end()) ids_[node] = uint64_t{at->second};
    } catch (...) {  // NOLINT(bugprone-empty-catch): no memory; the node has no id then
    }
  }

  std::mutex watching_;
  bool subscribed_ = false;
  CUpti_SubscriberHandle subscriber_{};
  std::mutex mutex_;  // of ids_
  std::unordered_map<uint64_t, uint64_t> ids_;
};

}  // namespace

bool watch_graph_nodes(std::string& why) {
  return Nodes::self().watch(why);
}

void open_id(uint64_t id) {
  OpenIds& open = open_ids;
  if (open.depth < open.ids.size()) open.ids[open.depth] = id;
  ++open.depth;
}

void close_id() {
  if (open_ids.depth > 0) --open_ids.depth;
}

uint64_t noted_id(uint64_t node) {
  return Nodes::self().id_of(node);
}

}  // namespace deltatune::cuda
