// URIs, and the door of the Arrow plug-in to object stores.
#include "data/remote_files.h"

#include <algorithm>
#include <atomic>

#include "base/format.h"
#include "base/hash.h"
#include "data/arrow_plugin.h"

namespace deltatune {
namespace {

constexpr const char* remote_schemes[] = {"s3", "gs", "gcs", "hdfs", "viewfs"};

std::string scheme_of(const std::string& entry) {
  const size_t end = entry.find("://");
  return end == std::string::npos ? std::string() : entry.substr(0, end);
}

// Set once a store was asked for.
std::atomic<const ArrowPlugin*> used_plugin = nullptr;

const ArrowPlugin& plugin_for(const std::string& uri) {
  std::string why;
  const ArrowPlugin* plugin = arrow_plugin(why);
  if (plugin) {
    used_plugin = plugin;
    return *plugin;
  }
  throw Error(ErrorKind::resource, "object stores need the Arrow plug-in: " + why, remote_name(uri),
              "`./dev build` builds it where pip can install pyarrow; or copy the files to this machine");
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

bool is_remote(const std::string& entry) {
  const std::string scheme = scheme_of(entry);
  return std::any_of(std::begin(remote_schemes), std::end(remote_schemes),
                     [&](const char* known) { return scheme == known; });
}

std::string local_path(const std::string& entry) {
  constexpr std::string_view start = "file://";
  if (entry.rfind(start, 0) != 0) return entry;
  std::string path = entry.substr(start.size());
  if (path.rfind("localhost/", 0) == 0) path.erase(0, 9);
  if (path.empty() || path[0] != '/') {
    throw Error(ErrorKind::usage, format("{} names another machine", entry), "dataset",
                "file:///absolute/path, or the path alone");
  }
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool escape =
        path[i] == '%' && i + 2 < path.size() && digit(path[i + 1]) >= 0 && digit(path[i + 2]) >= 0;
    out += escape ? static_cast<char>(digit(path[i + 1]) * 16 + digit(path[i + 2])) : path[i];
    if (escape) i += 2;
  }
  return out;
}

std::string remote_name(const std::string& uri) {
  return scheme_of(uri).empty() ? uri : uri.substr(0, uri.find('?'));  // a local name may have one
}

void check_uri(const std::string& uri) {
  const std::string scheme = scheme_of(uri);
  if (scheme.empty()) return;
  const std::string rest = remote_name(uri).substr(scheme.size() + 3);
  const std::string authority = rest.substr(0, rest.find('/'));
  if (const size_t at = authority.find('@'); at != std::string::npos && authority.find(':') < at) {
    throw Error(ErrorKind::usage, "credentials in a URI end up in logs and checkpoints",
                format("dataset: {}://...@{}", scheme, authority.substr(at + 1)),
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, in the environment");
  }
  if (!is_remote(uri) && scheme != "file") {
    throw Error(
        ErrorKind::usage, format("{}:// is not read", scheme), format("dataset: {}", remote_name(uri)),
        "name a file, a folder, or a URI of s3, gs, hdfs or file; other data has to be copied here first");
  }
  if (authority.empty() && (scheme == "s3" || scheme == "gs" || scheme == "gcs")) {
    throw Error(ErrorKind::usage, "the URI names no bucket", format("dataset: {}", remote_name(uri)),
                format("{}://bucket/path", scheme));
  }
}

std::vector<RemoteEntry> remote_files_below(const std::string& uri) {
  const ArrowPlugin& plugin = plugin_for(uri);
  auto out = with_retries<std::vector<RemoteEntry>>(remote_name(uri),
                                                    [&list = *plugin.list, uri] { return list(uri); });
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

bool remote_file_exists(const std::string& uri) {
  const ArrowPlugin& plugin = plugin_for(uri);
  return with_retries<bool>(remote_name(uri), [&exists = *plugin.is_file, uri] { return exists(uri); });
}

std::string read_remote(const std::string& uri, size_t most) {
  RetryingFile file([uri] { return open_remote(uri); }, remote_name(uri));
  if (file.size() > most) {
    throw Error(ErrorKind::data, format("the file has {} bytes, at most {} are read", file.size(), most),
                remote_name(uri), "make it smaller");
  }
  std::string out(static_cast<size_t>(file.size()), '\0');
  out.resize(file.read_at(0, out));
  return out;
}

std::shared_ptr<RemoteFile> open_remote(const std::string& uri) {
  return plugin_for(uri).open(uri);
}

void close_object_stores() {
  if (const ArrowPlugin* plugin = used_plugin.exchange(nullptr)) plugin->close();
}

std::string file_identity(const fs::path& path) {
  if (!is_remote(path.string())) {
    const MappedFile file(path);
    return format("{} bytes, xxh3 {}", file.text().size(), hash_hex(file.text()));
  }
  const std::string uri = path.string();
  const RetryingFile file([uri] { return open_remote(uri); }, remote_name(uri));
  if (file.version().empty()) {
    throw Error(ErrorKind::data, "the store gives the object no version", remote_name(uri),
                "copy the file to this machine, so that a changed one can be told from the old");
  }
  return format("{} bytes, version {}", file.size(), file.version());
}

}  // namespace deltatune
